"""How many restarts a job has left.

`spec.maxRestarts` counts what the user's program does wrong since training last came further than ever
before: what the cluster does is not charged, and a checkpoint beyond every failure so far refunds what was.
"""

from __future__ import annotations

from functools import reduce

from trainjob.api import Restarts
from trainjob.core.checkpoints import checkpoint_step
from trainjob.core.failure import Failure
from trainjob.core.gang import Ledger
from trainjob.core.observed import Observed

MOST_ALIKE = 3
"""The same failure at the same step so many times in a row is given up early: it will come again."""


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
    if before is None or failure.step is None:
        return 1
    same = (before.rank, before.reason, before.exit_code, before.step) == (
        failure.replica.name,
        failure.reason,
        failure.exit_code,
        failure.step,
    )
    return observed.status.restarts.same + 1 if same else 1


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
