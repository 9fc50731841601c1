"""`spec.runPolicy`: what becomes of a job that has run too long, has ended, or waits.

Before training-operator 1.3 these fields stood in `spec` itself; both places are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.api.group import INT32_MAX
from trainjob.api.wording import shown
from trainjob.convert.ledger import Ledger, Path

_OLD_NAMES = {"ttlSecondsAfterFinishing": "ttlSecondsAfterFinished"}

THEIR_CONTROLLER = "kubeflow.org/training-operator"

_CLEANING = {
    "All": "All is not carried over: pods that have ended stay for their logs until the job is deleted,"
    " by you or by spec.ttlSecondsAfterFinished",
    "None": "None is not carried over: pods that still run when the job has ended are stopped",
}


@dataclass(frozen=True)
class Field:
    """A field's value, None when absent, and where it stands."""

    value: Any
    path: Path


class RunPolicy:
    """The fields of the run policy, wherever the TFJob has them."""

    FIELDS = frozenset(
        [
            *("cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"),
            *("schedulingPolicy", "suspend", "managedBy"),
        ]
    )
    IN_SPEC = FIELDS | _OLD_NAMES.keys()
    """What older TFJobs have of these in `spec`."""

    def __init__(self, spec: Mapping[str, Any], ledger: Ledger) -> None:
        policy = spec.get("runPolicy")
        self._fields: dict[str, Field] = {}
        if isinstance(policy, Mapping):
            path: Path = ("spec", "runPolicy")
            self._take(policy, path, ledger)
            ledger.note_rest(policy, self.FIELDS, path, "left out: it is no field of a TFJob's run policy")
        elif policy is not None:
            ledger.refuse(("spec", "runPolicy"), f"must be an object, got {shown(policy)}")
        self._take(spec, ("spec",), ledger)

    def __getitem__(self, name: str) -> Field:
        return self._fields.get(name, Field(None, ("spec", "runPolicy", name)))

    def _take(self, holder: Mapping[str, Any], path: Path, ledger: Ledger) -> None:
        for key, value in holder.items():
            name = _OLD_NAMES.get(key, key)
            if name not in self.FIELDS or value is None:
                continue
            if name in self._fields:
                ledger.note((*path, key), "left out: spec.runPolicy says it, too")
            else:
                self._fields[name] = Field(value, (*path, key))


def run_settings(policy: RunPolicy, ledger: Ledger) -> dict[str, Any]:
    """Return the fields of the TrainJob's spec that have the same meaning there."""
    settings: dict[str, Any] = {}
    if policy["suspend"].value is not None:
        settings["suspend"] = policy["suspend"].value
    deadline = policy["activeDeadlineSeconds"]
    if _is_number(deadline.value) and deadline.value > INT32_MAX:
        ledger.note(deadline.path, f"left out: a TrainJob's deadline is at most {INT32_MAX}; it has none now")
    elif deadline.value is not None:
        settings["activeDeadlineSeconds"] = deadline.value
    if policy["ttlSecondsAfterFinished"].value is not None:
        settings["ttlSecondsAfterFinished"] = policy["ttlSecondsAfterFinished"].value
    _note_cleaning(policy["cleanPodPolicy"], ledger)
    manager = policy["managedBy"]
    if manager.value == THEIR_CONTROLLER:
        ledger.note(manager.path, "left out: the controller of TrainJobs looks after the job")
    elif manager.value not in (None, ""):
        settings["managedBy"] = manager.value
    return settings


def _note_cleaning(cleaning: Field, ledger: Ledger) -> None:
    # Running is what a TrainJob does.
    if cleaning.value in (None, "", "Running"):
        return
    if isinstance(cleaning.value, str) and cleaning.value in _CLEANING:
        ledger.note(cleaning.path, _CLEANING[cleaning.value])
    else:
        ledger.refuse(cleaning.path, f"must be All, Running or None, got {shown(cleaning.value)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
