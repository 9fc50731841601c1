"""Another number of workers means another world: training is started anew with it."""

from __future__ import annotations

from datetime import datetime

from trainjob.core import transitions
from trainjob.core.actions import Event, Plan
from trainjob.core.checkpoints import going_on
from trainjob.core.observed import Observed
from trainjob.core.topology import training_counts
from trainjob.core.wording import count_roles


def resized(observed: Observed, now: datetime) -> Plan | None:
    """Start a new attempt when training goes on with another world than the spec's."""
    wanted = training_counts(observed.job.spec)
    if _is_current(observed, wanted):
        return None
    message = f"resized to {count_roles(wanted)}; {going_on(observed)}"
    return Plan(transitions.resize(observed, message, now), events=(Event("Normal", "Resized", message),))


def _is_current(observed: Observed, wanted: dict[str, int]) -> bool:
    """Tell whether this is what is running: agents give a pod that stays its new TF_CONFIG."""
    if observed.in_place:
        size = observed.status.worker.size if observed.status.worker else None
        return size in (None, wanted["worker"])
    return all(pod.world in (None, wanted) for pod in observed.training_pods)
