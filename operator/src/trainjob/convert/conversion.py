"""One TFJob as a TrainJob: the order of the decisions, each of which is a module of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.api import API_VERSION, KIND, FieldError, InvalidTrainJob, parse
from trainjob.api.paths import mapping_at
from trainjob.api.wording import shown
from trainjob.convert.differences import role_differences
from trainjob.convert.ledger import Ledger, Note
from trainjob.convert.metadata import convert_metadata
from trainjob.convert.origins import Origins
from trainjob.convert.output import choose_output
from trainjob.convert.replicas import ReplicaSet, read_replicas
from trainjob.convert.restarts import max_restarts, restart_settings
from trainjob.convert.roles import assign_roles
from trainjob.convert.run_policy import RunPolicy, run_settings
from trainjob.convert.scheduling import priority_class, set_priority_class
from trainjob.convert.success import note_dynamic_workers, note_success
from trainjob.convert.templates import convert_template
from trainjob.convert.trainer import find_trainer

_DOCUMENT_FIELDS = frozenset(["apiVersion", "kind", "metadata", "spec"])
_SPEC_FIELDS = RunPolicy.IN_SPEC | {"runPolicy", "successPolicy", "tfReplicaSpecs", "enableDynamicWorker"}
_ROLES = ("worker", "chief", "ps", "evaluator")


@dataclass(frozen=True)
class Conversion:
    """What has become of a TFJob.

    Attributes:
        manifest: the TrainJob as plain JSON, fields in the order in which people read them.
        notes: what isn't simply carried over, field by field of the TFJob.
        refusals: why it is no valid TrainJob, field by field of the TFJob where it comes from there; none
            when it is valid.
    """

    manifest: dict[str, Any]
    notes: tuple[Note, ...]
    refusals: tuple[FieldError, ...]


def convert(tfjob: Mapping[str, Any], *, claim: str | None = None) -> Conversion:
    """Return a TFJob (`kubeflow.org/v1`, and older versions with `tfReplicaSpecs`) as a TrainJob.

    Args:
        tfjob: as plain JSON, as it is read from YAML; it is left as it is.
        claim: the claim for checkpoints and logs, where the TFJob's volumes don't tell it.
    """
    ledger = Ledger()
    ledger.note_rest(tfjob, _DOCUMENT_FIELDS, (), "left out: the controller writes its own")
    manifest: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": convert_metadata(tfjob, ledger),
        "spec": {},
    }
    origins = Origins(tfjob, manifest)
    spec = tfjob.get("spec")
    if isinstance(spec, Mapping):
        manifest["spec"] = _convert_spec(spec, claim, origins, ledger)
    else:
        ledger.refuse(("spec",), "required" if spec is None else f"must be an object, got {shown(spec)}")
    refusals = ledger.refusals or tuple(origins.trace(error) for error in _mistakes(manifest))
    return Conversion(manifest, ledger.notes, refusals)


def _convert_spec(
    spec: Mapping[str, Any], claim: str | None, origins: Origins, ledger: Ledger
) -> dict[str, Any]:
    roles = assign_roles(read_replicas(spec, ledger), ledger)
    policy = RunPolicy(spec, ledger)
    ledger.note_rest(spec, _SPEC_FIELDS, ("spec",), "left out: it is no field of a TFJob's spec")
    templates = _convert_templates(roles, priority_class(policy["schedulingPolicy"], ledger), ledger)
    output = choose_output(templates, roles, claim, ledger)
    note_success(spec.get("successPolicy"), roles, ledger)
    note_dynamic_workers(spec.get("enableDynamicWorker"), ledger)
    limit = policy["backoffLimit"]
    for name in ("activeDeadlineSeconds", "ttlSecondsAfterFinished", "suspend", "managedBy"):
        origins.add(("spec", name), policy[name].path)
    origins.add(("spec", "maxRestarts"), limit.path)
    return {
        **_convert_roles(roles, templates, origins),
        "output": output,
        **run_settings(policy, ledger),
        "maxRestarts": max_restarts(roles, limit.value, limit.path, ledger),
        **restart_settings(roles, ledger),
        **({"template": templates["worker"]} if "worker" in templates else {}),
    }


def _convert_templates(
    roles: Mapping[str, ReplicaSet], priority: str | None, ledger: Ledger
) -> dict[str, dict[str, Any]]:
    templates = {role: convert_template(roles[role], ledger) for role in _ROLES if role in roles}
    for template in templates.values():
        if priority:
            set_priority_class(template, priority)
    return templates


def _convert_roles(
    roles: Mapping[str, ReplicaSet], templates: Mapping[str, dict[str, Any]], origins: Origins
) -> dict[str, Any]:
    """Return the roles' fields; a role says only what is different from the workers' template."""
    made: dict[str, Any] = {}
    for role in _ROLES:
        if role not in roles:
            continue
        replicas = roles[role]
        _add_origins(replicas, origins)
        is_default = role in ("chief", "evaluator") and _is_one(replicas.count)
        made[role] = {} if is_default else {"replicas": replicas.count}
        if role != "worker" and "worker" in templates:
            made[role] |= role_differences(templates["worker"], templates[role], role)
    return made if "evaluator" in roles else {**made, "evaluator": {"replicas": 0}}


def _add_origins(replicas: ReplicaSet, origins: Origins) -> None:
    role, template = replicas.role, (*replicas.path, "template")
    origins.add(("spec", role), replicas.path)
    if role == "worker":
        origins.add(("spec", "template"), template)
    pod = (*template, "spec")
    for field in ("nodeSelector", "tolerations", "affinity", "priorityClassName"):
        origins.add(("spec", role, field), (*pod, field))
    container = find_trainer(mapping_at(replicas.template, "spec"))
    for field in ("env", "resources"):
        if container is not None:
            origins.add(("spec", role, field), (*pod, "containers", container, field))


def _is_one(count: Any) -> bool:
    return count == 1 and not isinstance(count, bool)


def _mistakes(manifest: Mapping[str, Any]) -> tuple[FieldError, ...]:
    try:
        parse(manifest)
    except InvalidTrainJob as invalid:
        return invalid.errors
    return ()
