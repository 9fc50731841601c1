"""Terminal states absorb: what has ended is only cleaned up."""

from __future__ import annotations

from datetime import datetime, timedelta

from trainjob.api import KIND
from trainjob.core.actions import Delete, Plan, stop_pods
from trainjob.core.conditions import is_finished
from trainjob.core.objects import ObjectRef
from trainjob.core.observed import Observed


def finished(observed: Observed, now: datetime) -> Plan | None:
    """Stop stragglers, and delete the job when its `ttlSecondsAfterFinished` has run out."""
    if not is_finished(observed.status):
        return None
    stragglers = stop_pods(observed, observed.unfinished_pods)
    ttl = observed.job.spec.ttl_seconds_after_finished
    ended = observed.status.completion_time
    if ttl is None or ended is None:
        return Plan(observed.status, stragglers)
    left = ended + timedelta(seconds=ttl) - now
    if left > timedelta(0):
        return Plan(observed.status, stragglers, requeue=left)
    meta = observed.meta
    return Plan(observed.status, (*stragglers, Delete(ObjectRef(KIND, meta.namespace, meta.name, meta.uid))))
