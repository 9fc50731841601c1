"""How often and how the TrainJob restarts training: by restartPolicy, backoffLimit and the commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainjob.api.paths import mapping_at, value_at
from trainjob.api.wording import shown, suggestion
from trainjob.convert.ledger import Ledger, Path
from trainjob.convert.replicas import ReplicaSet
from trainjob.convert.trainer import find_trainer

POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
DEFAULT_RESTARTS = 3
"""The TrainJob's own default, for a TFJob that restarts without a limit."""

_RESTARTING = {
    "Always": "a failure restarts the training of all replicas from the last checkpoint, {times}; a replica"
    " that ends with exit code 0 is finished",
    "OnFailure": "a failure restarts the training of all replicas from the last checkpoint, {times}",
    "ExitCode": "every exit code but 0 restarts the training of all replicas, 1 to 127 too, {times}; a script"
    " that must not be restarted exits with 80",
}
_TIMES = "at most spec.maxRestarts times"
_NO_LIMIT = f"{_TIMES}, which is {DEFAULT_RESTARTS} where a TFJob without backoffLimit has no limit"


def max_restarts(roles: Mapping[str, ReplicaSet], limit: Any, limit_path: Path, ledger: Ledger) -> Any:
    """Return `spec.maxRestarts`.

    Args:
        roles: what each role of the TrainJob is made from.
        limit: its backoffLimit, None when absent.
        limit_path: where that stands.
        ledger: takes the notes.
    """
    for replicas in roles.values():
        if replicas.restart_policy not in (None, *POLICIES):
            ledger.refuse((*replicas.path, "restartPolicy"), _problem(replicas.restart_policy))
    if (evaluator := roles.get("evaluator")) and evaluator.restart_policy is not None:
        ledger.note(
            (*evaluator.path, "restartPolicy"),
            f"left out: a failed evaluator is restarted alone, {_TIMES}, and never fails the job",
        )
    training = [replicas for role, replicas in roles.items() if role != "evaluator"]
    if any(replicas.restart_policy in tuple(_RESTARTING) for replicas in training):
        return _limited(training, limit, ledger)
    for replicas in training:
        ledger.note(
            (*replicas.path, "restartPolicy"),
            "Never, a TFJob's default, becomes spec.maxRestarts 0: only lost nodes and preemption are made"
            " good; raise it, so that training resumes from the last checkpoint after a failure",
        )
    if limit is not None:
        ledger.note(limit_path, "left out: with restartPolicy Never nothing is restarted")
    return 0


def _limited(training: list[ReplicaSet], limit: Any, ledger: Ledger) -> Any:
    times = _NO_LIMIT if limit is None else _TIMES
    for replicas in training:
        words = _RESTARTING.get(str(replicas.restart_policy))
        ledger.note(
            (*replicas.path, "restartPolicy"),
            words.format(times=times)
            if words
            else "Never can't hold for one role: a failure of it restarts the training of all replicas, too",
        )
    return DEFAULT_RESTARTS if limit is None else limit


def _problem(policy: Any) -> str:
    choices = f"{', '.join(POLICIES[:-1])} or {POLICIES[-1]}"
    return f"must be {choices}, got {shown(policy)}{suggestion(policy, POLICIES)}"


def restart_settings(roles: Mapping[str, ReplicaSet], ledger: Ledger) -> dict[str, str]:
    """Return `spec.restartStrategy` where it isn't the default, which needs commands for agents to start."""
    without = [path for replicas in roles.values() if (path := _missing_command(replicas)) is not None]
    for path in without:
        ledger.note(
            path,
            "there is none, and an image's own can't be seen from here: spec.restartStrategy is Recreate, by"
            " which a failure replaces all pods; to restart training in living pods write the image's command"
            " here and leave restartStrategy out",
        )
    return {"restartStrategy": "Recreate"} if without else {}


def _missing_command(replicas: ReplicaSet) -> Path | None:
    """Return where the command of the container that trains should stand, or None where there is one."""
    pod = mapping_at(replicas.template, "spec")
    index = find_trainer(pod)
    if index is None or value_at(pod, "containers", index, "command") not in (None, []):
        return None
    return (*replicas.path, "template", "spec", "containers", index, "command")
