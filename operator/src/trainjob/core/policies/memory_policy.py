"""The workers' pods once their memory is raised: they are resized in place, or replaced if that fails."""

from __future__ import annotations

from datetime import datetime, timedelta

from trainjob.api import TRAINER_CONTAINER
from trainjob.api.errors import trainer_of
from trainjob.core import transitions
from trainjob.core.actions import Action, Event, Patch, Plan, pod_ref
from trainjob.core.delays import time_left
from trainjob.core.failure import origin
from trainjob.core.manifests import role_template
from trainjob.core.memory import bytes_of, has_less, limit_of
from trainjob.core.observed import Observed
from trainjob.core.pods import Pod, PodState
from trainjob.core.wording import quoted

RESIZE_PATIENCE = timedelta(seconds=30)
"""How long a kubelet that refuses nothing may take to resize a pod: it looks at its pods every 10 s or so."""


def outgrown(observed: Observed, now: datetime) -> Plan | None:
    """Replace the workers' pods that can't be given the memory that their job has been raised to.

    Pods of this attempt are left: what made them smaller than asked would make their successors so.
    """
    small = [p for p in _small_pods(observed) if p.incarnation < observed.attempt]
    refused = [p for p in small if p.resize_refusal]
    if not small or (not refused and resize_left(observed, now) is not None):
        return None
    first = (refused or small)[0]
    place = f" on node {first.node}" if first.node else ""
    why = quoted(first.resize_refusal) or f"it has had no effect for {RESIZE_PATIENCE.seconds} s"
    message = (
        f"{first.replica.title}{place} can't be resized to {limit_of(observed.effective_job)} of memory"
        f" ({why}): its pod is replaced{origin(observed)} (not counted against maxRestarts)"
    )
    reason = transitions.OUTGROWN
    return Plan(
        transitions.replace_pods(observed, reason, message, now, pods=refused or small),
        events=(Event("Warning", reason, message),),
    )


def resize_pods(observed: Observed) -> tuple[Action, ...]:
    """Return what gives the workers' running pods the memory that their job has been raised to."""
    if observed.parsed is None or not _small_pods(observed):
        return ()
    job = observed.effective_job
    limit = bytes_of(limit_of(job)) or 0
    memory = {
        kind: {"memory": amounts["memory"]}
        for kind, amounts in (
            trainer_of(role_template(job.spec, "worker")["spec"]).get("resources") or {}
        ).items()
        if kind in ("limits", "requests") and "memory" in amounts
    }
    patch = {"spec": {"containers": [{"name": TRAINER_CONTAINER, "resources": memory}]}}
    return tuple(
        Patch(pod_ref(observed, p), "", patch, "resize")
        for p in _small_pods(observed)
        if p.state is PodState.RUNNING and (bytes_of(p.memory_asked) or limit) < limit
    )


def resize_left(observed: Observed, now: datetime) -> timedelta | None:
    """Return the time until pods that aren't resized are replaced, or None."""
    since = observed.status.restarts.last_time
    if since is None or not _small_pods(observed):
        return None
    left = time_left(since, RESIZE_PATIENCE, now)
    return left if left > timedelta(0) else None


def _small_pods(observed: Observed) -> list[Pod]:
    """Return the pods of workers that run, or are to, with less memory than the job has been raised to."""
    if not observed.in_place or observed.status.worker is None or not observed.status.worker.memory:
        return []
    return [p for p in observed.training_pods if not p.ended and not p.deleting and has_less(observed, p)]
