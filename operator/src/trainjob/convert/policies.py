"""The restart, run and scheduling policies of a TFJob."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.api.constants import INT32_MAX
from trainjob.api.errors import mapping_at, shown, suggestion, value_at
from trainjob.convert.notes import Notes, Path
from trainjob.convert.pod_templates import find_trainer
from trainjob.convert.replica_specs import ReplicaSet

# Restarts of training: their number and strategy, from restartPolicy, backoffLimit and the commands.


POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
DEFAULT_RESTARTS = 3
"""The TrainJob's default, for a TFJob that restarts without a limit."""

_RESTARTING = {
    "Always": "a failure restarts the training of all replicas from the last checkpoint, {times}; a replica"
    " that ends with exit code 0 is finished",
    "OnFailure": "a failure restarts the training of all replicas from the last checkpoint, {times}",
    "ExitCode": "every exit code except 0 restarts the training of all replicas, including 1 to 127, "
    "{times}; a script that must not be restarted exits with 80",
}
_TIMES = "at most spec.maxRestarts times"
_NO_LIMIT = f"{_TIMES}, which is {DEFAULT_RESTARTS} where a TFJob without backoffLimit has no limit"


def max_restarts(roles: Mapping[str, ReplicaSet], limit: Any, limit_path: Path, notes: Notes) -> Any:
    """Return `spec.maxRestarts`.

    Args:
        roles: the replicas from which each role of the TrainJob is made.
        limit: the TFJob's backoffLimit; None if it is absent.
        limit_path: the path of `limit`.
        notes: collects the notes.
    """
    for replicas in roles.values():
        if replicas.restart_policy not in (None, *POLICIES):
            notes.refuse((*replicas.path, "restartPolicy"), _problem(replicas.restart_policy))
    if (evaluator := roles.get("evaluator")) and evaluator.restart_policy is not None:
        notes.note(
            (*evaluator.path, "restartPolicy"),
            f"left out: a failed evaluator is restarted alone, {_TIMES}, and never fails the job",
        )
    training = [replicas for role, replicas in roles.items() if role != "evaluator"]
    if any(replicas.restart_policy in tuple(_RESTARTING) for replicas in training):
        return _limited(training, limit, notes)
    for replicas in training:
        notes.note(
            (*replicas.path, "restartPolicy"),
            "Never, a TFJob's default, becomes spec.maxRestarts 0: training restarts only after a lost node "
            "or preemption; raise it to resume from the last checkpoint after a failure, too",
        )
    if limit is not None:
        notes.note(limit_path, "left out: with restartPolicy Never nothing is restarted")
    return 0


def _limited(training: list[ReplicaSet], limit: Any, notes: Notes) -> Any:
    times = _NO_LIMIT if limit is None else _TIMES
    for replicas in training:
        words = _RESTARTING.get(str(replicas.restart_policy))
        notes.note(
            (*replicas.path, "restartPolicy"),
            words.format(times=times)
            if words
            else "Never isn't possible for one role: its failure also restarts the training of all replicas",
        )
    return DEFAULT_RESTARTS if limit is None else limit


def _problem(policy: Any) -> str:
    choices = f"{', '.join(POLICIES[:-1])} or {POLICIES[-1]}"
    return f"must be {choices}, got {shown(policy)}{suggestion(policy, POLICIES)}"


def restart_settings(roles: Mapping[str, ReplicaSet], notes: Notes) -> dict[str, str]:
    """Return `spec.restartStrategy` unless it is the default, for which agents need commands to start."""
    without = [path for replicas in roles.values() if (path := _missing_command(replicas)) is not None]
    for path in without:
        notes.note(
            path,
            "missing, and the image's own command isn't known: spec.restartStrategy is Recreate, with which "
            "a failure replaces all pods; to restart training in the running pods, write the image's "
            "command here and remove restartStrategy",
        )
    return {"restartStrategy": "Recreate"} if without else {}


def _missing_command(replicas: ReplicaSet) -> Path | None:
    """Return the path of the trainer container's command if it is missing, else None."""
    pod = mapping_at(replicas.template, "spec")
    index = find_trainer(pod)
    if index is None or value_at(pod, "containers", index, "command") not in (None, []):
        return None
    return (*replicas.path, "template", "spec", "containers", index, "command")


# `spec.runPolicy`: deadline, cleanup, time to live and suspension.
#
# Before training-operator 1.3 these fields were in `spec` itself; both are read.


_OLD_NAMES = {"ttlSecondsAfterFinishing": "ttlSecondsAfterFinished"}

THEIR_CONTROLLER = "kubeflow.org/training-operator"

_CLEANING = {
    "All": "All is not carried over: pods that have ended stay for their logs until the job is deleted,"
    " by you or by spec.ttlSecondsAfterFinished",
    "None": "None is not carried over: pods that still run when the job has ended are stopped",
}


@dataclass(frozen=True)
class Field:
    """A field's value, None if it is absent, and its path."""

    value: Any
    path: Path


class RunPolicy:
    """The fields of the run policy, from `spec.runPolicy` or from `spec`."""

    FIELDS = frozenset(
        [
            *("cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"),
            *("schedulingPolicy", "suspend", "managedBy"),
        ]
    )
    IN_SPEC = FIELDS | _OLD_NAMES.keys()
    """The names of these fields in the `spec` of older TFJobs."""

    def __init__(self, spec: Mapping[str, Any], notes: Notes) -> None:
        policy = spec.get("runPolicy")
        self._fields: dict[str, Field] = {}
        if isinstance(policy, Mapping):
            path: Path = ("spec", "runPolicy")
            self._take(policy, path, notes)
            notes.note_rest(policy, self.FIELDS, path, "left out: it is no field of a TFJob's run policy")
        elif policy is not None:
            notes.refuse(("spec", "runPolicy"), f"must be an object, got {shown(policy)}")
        self._take(spec, ("spec",), notes)

    def __getitem__(self, name: str) -> Field:
        return self._fields.get(name, Field(None, ("spec", "runPolicy", name)))

    def _take(self, holder: Mapping[str, Any], path: Path, notes: Notes) -> None:
        for key, value in holder.items():
            name = _OLD_NAMES.get(key, key)
            if name not in self.FIELDS or value is None:
                continue
            if name in self._fields:
                notes.note((*path, key), "left out: spec.runPolicy says it, too")
            else:
                self._fields[name] = Field(value, (*path, key))


def run_settings(policy: RunPolicy, notes: Notes) -> dict[str, Any]:
    """Return the fields that have the same meaning in the TrainJob's spec."""
    settings: dict[str, Any] = {}
    if policy["suspend"].value is not None:
        settings["suspend"] = policy["suspend"].value
    deadline = policy["activeDeadlineSeconds"]
    if _is_number(deadline.value) and deadline.value > INT32_MAX:
        notes.note(deadline.path, f"left out: a TrainJob's deadline is at most {INT32_MAX}; it has none now")
    elif deadline.value is not None:
        settings["activeDeadlineSeconds"] = deadline.value
    if policy["ttlSecondsAfterFinished"].value is not None:
        settings["ttlSecondsAfterFinished"] = policy["ttlSecondsAfterFinished"].value
    _note_cleaning(policy["cleanPodPolicy"], notes)
    manager = policy["managedBy"]
    if manager.value == THEIR_CONTROLLER:
        notes.note(manager.path, "left out: the controller of TrainJobs manages the job")
    elif manager.value not in (None, ""):
        settings["managedBy"] = manager.value
    return settings


def _note_cleaning(cleaning: Field, notes: Notes) -> None:
    # A TrainJob always behaves like `Running`.
    if cleaning.value in (None, "", "Running"):
        return
    if isinstance(cleaning.value, str) and cleaning.value in _CLEANING:
        notes.note(cleaning.path, _CLEANING[cleaning.value])
    else:
        notes.refuse(cleaning.path, f"must be All, Running or None, got {shown(cleaning.value)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# `schedulingPolicy`: its fields for a gang scheduler, and what a TrainJob has instead.


_NOTES = {
    "minAvailable": "left out: all replicas are created at once and wait for each other; a PodGroup always "
    "includes all of them",
    "minResources": "left out: a ResourceQuota of the namespace limits what jobs take",
    "queue": "left out: name the queue by label or annotation in the pod template",
    "scheduleTimeoutSeconds": "left out: spec.startTimeoutSeconds limits how long a replica waits for a node",
}


def priority_class(policy: Field, notes: Notes) -> str | None:
    """Return the job's priority class, for pods without one; note the rest of the scheduling policy."""
    if policy.value is None:
        return None
    if not isinstance(policy.value, Mapping):
        notes.refuse(policy.path, f"must be an object, got {shown(policy.value)}")
        return None
    for key, value in policy.value.items():
        if key != "priorityClass" and value is not None:
            unknown = "left out: it is no field of a TFJob's scheduling policy"
            notes.note((*policy.path, key), _NOTES.get(key, unknown))
    name = policy.value.get("priorityClass")
    if name in (None, ""):
        return None
    path = (*policy.path, "priorityClass")
    if not isinstance(name, str):
        notes.refuse(path, f"must be a string, got {shown(name)}")
        return None
    notes.note(path, "becomes priorityClassName of the pods whose template has none, instead of a PodGroup's")
    return name


def set_priority_class(template: dict[str, Any], name: str) -> None:
    """Set the priority class of the pods unless their template has one."""
    pod = template.get("spec")
    if isinstance(pod, dict) and pod.get("priorityClassName") in (None, ""):
        pod["priorityClassName"] = name
