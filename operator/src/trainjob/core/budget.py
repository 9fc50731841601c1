"""How many restarts a job has left.

`spec.maxRestarts` counts what the user's program does wrong since training last came further than ever
before: what the cluster does is not charged, and a checkpoint beyond every failure so far refunds what was.
"""

from __future__ import annotations

from functools import reduce

from trainjob.api import Restarts
from trainjob.core.checkpoints import checkpoint_step
from trainjob.core.exits import find_exception, is_mistake
from trainjob.core.failure import Failure
from trainjob.core.gang import Ledger
from trainjob.core.observed import Observed

MOST_ALIKE = 3
"""The same failure at the same step so many times in a row is given up early: it will come again.

It is the same exception at the same place, whichever replica was first; without one, the same replica's.
"""

EARLY_SECONDS = 60.0
"""Without a step, exceptions are the same only where pods ended this soon: they failed at their start."""


def restarts_of(observed: Observed) -> Restarts:
    """Return the restarts so far, by the status and by the agents, refunds included."""
    known = reduce(_merged, observed.ledgers, observed.status.restarts)
    step, furthest = checkpoint_step(observed), known.furthest_step
    if step is not None and furthest is not None and step > furthest:
        return known.model_copy(update={"refunded": known.charged})
    return known


def used(restarts: Restarts) -> int:
    """Return how many restarts count against `spec.maxRestarts`."""
    return max(0, restarts.charged - restarts.refunded)


def alike(observed: Observed, failure: Failure) -> int:
    """Return how many times in a row this failure has come, this time included."""
    before = observed.status.first_failure
    if before is None or (failure.step is None and not _is_early(failure)):
        return 1
    same_end = (before.reason, before.exit_code, before.step) == (
        failure.reason,
        failure.exit_code,
        failure.step,
    )
    raised, then = failure.exception, find_exception(before.exit_code, before.log_tail or "")
    if raised is None or then is None:
        same_cause = failure.step is not None and before.rank == failure.replica.name
    else:
        same_cause = (raised.kind, raised.place) == (then.kind, then.place)
    return observed.status.restarts.same + 1 if same_end and same_cause else 1


def is_mistake_at_start(observed: Observed, failure: Failure) -> bool:
    """Tell whether the first attempt failed before any step, by what each attempt would fail by."""
    has_stepped = bool(failure.step or restarts_of(observed).furthest_step)
    is_first = observed.attempt == 1 and failure.cause.charged
    return is_first and not has_stepped and is_mistake(failure.exit_code, failure.log)


def _is_early(failure: Failure) -> bool:
    pod = failure.pod
    if pod is None or pod.started_at is None or pod.finished_at is None:
        return False
    return (pod.finished_at - pod.started_at).total_seconds() < EARLY_SECONDS


def _merged(known: Restarts, told: Ledger) -> Restarts:
    """Return the larger of each count: both sides see each other's within seconds, and none is taken back."""
    if told.restarts <= known.charged + known.uncharged:
        return known
    furthest = [s for s in (known.furthest_step, told.furthest_step) if s is not None]
    return known.model_copy(
        update={
            "charged": max(known.charged, told.charged),
            "uncharged": max(known.uncharged, told.uncharged),
            "refunded": max(known.refunded, told.refunded),
            "since_progress": told.since_progress,
            "furthest_step": max(furthest, default=None),
        }
    )
