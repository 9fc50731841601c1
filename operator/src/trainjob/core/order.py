"""What the controller keeps telling a job's leading agent (its keys are in `docs/contract.md`)."""

from __future__ import annotations

from typing import Any

from trainjob.api import TrainJobStatus
from trainjob.core.conditions import FAILURE_TARGET, SUCCESS_CRITERIA_MET, is_finished, is_true
from trainjob.core.observed import Observed
from trainjob.core.topology import training_counts, training_seats


def build_order(observed: Observed, status: TrainJobStatus) -> dict[str, Any] | None:
    """Return the order that goes with this status, or None where there is nobody to tell.

    Args:
        observed: the job and all that belongs to it.
        status: as it is about to be written.
    """
    if observed.parsed is None or not observed.in_place or observed.job.spec.suspend:
        return None
    if is_finished(status) or is_true(status, FAILURE_TARGET) or is_true(status, SUCCESS_CRITERIA_MET):
        return None
    spec, restarts = observed.job.spec, status.restarts
    return {
        # Not the API server's resourceVersion: each progress write would be another order.
        "lease": observed.settings.lease,
        "generation": observed.meta.generation,
        "world": training_counts(spec),
        "without": list(status.worker.without) if status.worker else [],
        "incarnations": _incarnations(observed, status),
        "maxRestarts": spec.max_restarts,
        "stallTimeoutSeconds": spec.stall_timeout_seconds,
        "ledger": {
            "attempt": observed.attempt - 1,
            "charged": restarts.charged,
            "uncharged": restarts.uncharged,
            "refunded": restarts.refunded,
            "sinceProgress": restarts.since_progress,
            "furthestStep": restarts.furthest_step,
        },
    }


def _incarnations(observed: Observed, status: TrainJobStatus) -> dict[str, int]:
    """Return the incarnation of each training seat's pod; of one to come, the least that it will have."""
    going = set(status.restarts.replaced)
    there = {p.replica: p.incarnation for p in observed.training_pods if p.name not in going}
    seats = training_seats(observed.job.spec)
    return {seat.name: there.get(seat, status.attempt or 1) for seat in seats}
