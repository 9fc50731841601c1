"""Workers that training goes on without: beside parameter servers it needs the chief and the `ps` alone."""

from __future__ import annotations

from trainjob.core.gang import RUNNING
from trainjob.core.names import Replica
from trainjob.core.observed import Observed
from trainjob.core.pods import PodState
from trainjob.core.topology import is_training


def trains_without(observed: Observed, replica: Replica) -> bool:
    """Tell whether training goes on while this replica is away, by the word of the leading agent."""
    return replica.role == "worker" and _is_coordinated(observed)


def trains_on(observed: Observed) -> bool:
    """Tell whether training goes on whoever is missing: no worker has to be there for it."""
    present = {p.replica for p in observed.training_pods if p.state in (PodState.RUNNING, PodState.SUCCEEDED)}
    needed = {seat for seat in observed.seats if is_training(seat) and seat.role != "worker"}
    return _is_coordinated(observed) and needed <= present


def _is_coordinated(observed: Observed) -> bool:
    gang = observed.gang
    has_begun = gang is not None and gang.phase == RUNNING and observed.is_current(gang)
    return observed.job.spec.ps is not None and has_begun
