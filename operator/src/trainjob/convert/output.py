"""Where the TrainJob's output goes: a TFJob doesn't say it, its volumes may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainjob.convert.ledger import Ledger
from trainjob.convert.mounts import SharedMount, mount_paths, remove_mount, shared_mounts
from trainjob.convert.replicas import PATH, ReplicaSet

PLACEHOLDER_CLAIM = "name-of-your-claim"
"""Stands for a claim that the user has to name."""

_DEFAULT_PATH = "/output"
_TRAINING = ("worker", "chief")

Templates = Mapping[str, dict[str, Any]]
"""The converted templates by role."""


def choose_output(
    templates: Templates, roles: Mapping[str, ReplicaSet], claim: str | None, ledger: Ledger
) -> dict[str, Any]:
    """Return `spec.output`, and take its mount out of the templates.

    It is the volume that workers and chief all mount, writable and at one place, if there is one such volume.

    Args:
        templates: by role.
        roles: what each template is from.
        claim: the claim that the user has named for it, if any.
        ledger: takes the notes.
    """
    candidates = _candidates(templates)
    if claim is not None:
        candidates = [mount for mount in candidates if mount.source == ("claim", (("claimName", claim),))]
    if len(candidates) == 1:
        _note_choice(candidates[0], templates, roles, ledger)
        for template in templates.values():
            remove_mount(template, candidates[0])
        return candidates[0].as_output()
    path = _free_path(templates)
    where = {} if path == _DEFAULT_PATH else {"mountPath": path}
    if claim is None:
        ledger.note(PATH, _say_missing(candidates, path))
    return {"claim": {"claimName": claim or PLACEHOLDER_CLAIM}, **where}


def _candidates(templates: Templates) -> list[SharedMount]:
    training = [templates[role] for role in _TRAINING if role in templates]
    if not training:
        return []
    everywhere = [{mount for _, mount in shared_mounts(template)} for template in training]
    common = [mount for _, mount in shared_mounts(training[0]) if all(mount in found for found in everywhere)]
    return [mount for mount in dict.fromkeys(common) if _is_free(mount, templates)]


def _is_free(mount: SharedMount, templates: Templates) -> bool:
    """Tell whether no role has something else mounted where this is."""
    return all(
        mount_paths(template).count(mount.mount_path)
        == [found for _, found in shared_mounts(template)].count(mount)
        for template in templates.values()
    )


def _note_choice(
    mount: SharedMount, templates: Templates, roles: Mapping[str, ReplicaSet], ledger: Ledger
) -> None:
    first = next(role for role in _TRAINING if role in templates)
    index = next(index for index, found in shared_mounts(templates[first]) if found == mount)
    containers = templates[first]["spec"]["containers"]
    place = next(i for i, container in enumerate(containers) if container.get("name") == "trainer")
    reader = "; the evaluator sees it read-only but for its own folder" if "evaluator" in roles else ""
    ledger.note(
        (*roles[first].path, "template", "spec", "containers", place, "volumeMounts", index),
        f"becomes spec.output: the {mount.title} at {mount.mount_path}, which all training replicas mount,"
        f" takes checkpoints and logs in a folder of the job's name{reader}",
    )


def _say_missing(candidates: list[SharedMount], path: str) -> str:
    found = " and ".join(f"{mount.title} at {mount.mount_path}" for mount in candidates)
    why = f"{found} could each be the output" if found else "no claim is mounted in all training replicas"
    return (
        f"{why}: write the claim for checkpoints and logs in place of {PLACEHOLDER_CLAIM} in spec.output, or"
        f" convert with --claim; it is mounted at {path}"
    )


def _free_path(templates: Templates) -> str:
    taken = {path for template in templates.values() for path in mount_paths(template)}
    names = (_DEFAULT_PATH, "/trainjob-output", *(f"/trainjob-output-{number}" for number in range(2, 300)))
    return next(name for name in names if name not in taken)
