"""Workers that training goes on without: beside parameter servers it needs the chief and the `ps` alone."""

from __future__ import annotations

from trainjob.core.gang import RUNNING
from trainjob.core.names import Replica
from trainjob.core.observed import Observed
from trainjob.core.pods import PodState
from trainjob.core.topology import is_training


def trains_without(observed: Observed, replica: Replica) -> bool:
    """Tell whether training goes on while this replica is away, by the word of the leading agent."""
    if observed.job.spec.ps is None or replica.role != "worker":
        return False
    gang = observed.gang
    return gang is not None and gang.phase == RUNNING and observed.is_current(gang)


def trains_incomplete(observed: Observed) -> bool:
    """Tell whether training goes on though somebody is missing."""
    present = {p.replica for p in observed.training_pods if p.state in (PodState.RUNNING, PodState.SUCCEEDED)}
    missing = [seat for seat in observed.seats if is_training(seat) and seat not in present]
    return bool(missing) and all(trains_without(observed, seat) for seat in missing)
