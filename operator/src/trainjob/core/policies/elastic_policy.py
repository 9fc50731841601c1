"""Changes of the number of workers: by the user, or because some workers are unavailable."""

from __future__ import annotations

from datetime import datetime, timedelta

from trainjob.core import transitions
from trainjob.core.actions import Event, Plan
from trainjob.core.conditions import RUNNING, is_true
from trainjob.core.failure import describe_resume
from trainjob.core.names import Replica, desired_replicas, leader, training_counts
from trainjob.core.observed import Observed
from trainjob.core.pods import PodState
from trainjob.core.policies.startup_policy import waiting_since, who_is_missing
from trainjob.core.wording import count_roles, listed
from trainjob_trainer.contract.reports import IDLE

# Resizing by the user: another number of workers needs another world, and so another attempt.


def resized(observed: Observed, now: datetime) -> Plan | None:
    """Start a new attempt when the training runs with another world than the spec's."""
    wanted = training_counts(observed.effective_job.spec)
    if _is_current(observed, wanted):
        return None
    message = f"resized to {count_roles(wanted)}; {describe_resume(observed)}"
    return Plan(transitions.resize(observed, message, now), events=(Event("Normal", "Resized", message),))


def _is_current(observed: Observed, wanted: dict[str, int]) -> bool:
    """Return whether this world is running; agents give pods that stay their new TF_CONFIG."""
    if observed.in_place:
        size = observed.status.worker.size if observed.status.worker else None
        return size in (None, wanted["worker"])
    return all(pod.world in (None, wanted) for pod in observed.training_pods)


# `spec.worker.minReplicas`: training with fewer workers while some are unavailable, and growing back.


PATIENCE = timedelta(seconds=60)
"""How long a worker may be missing before training continues without it."""


def elastic(observed: Observed, now: datetime) -> Plan | None:
    """Shrink a job that waits for an unavailable worker, or grow one whose missing worker has joined."""
    if observed.effective_job.spec.worker.min_replicas is None or not observed.in_place:
        return None
    return _grown(observed, now) if is_true(observed.status, RUNNING) else _shrunk(observed, now)


def patience_left(observed: Observed, now: datetime) -> timedelta | None:
    """Return the time until a waiting job may continue with fewer workers, or None."""
    since = waiting_since(observed)
    if observed.effective_job.spec.worker.min_replicas is None or since is None:
        return None
    return since + PATIENCE - now


def _shrunk(observed: Observed, now: datetime) -> Plan | None:
    left = patience_left(observed, now)
    if left is None or left > timedelta(0):
        return None
    running = {p.replica for p in observed.training_pods if p.state is PodState.RUNNING}
    workers = _workers(observed)
    others = {r for r in observed.training_replicas if r.role != "worker"}
    present = [r for r in workers if r in running]
    if leader(observed.effective_job.spec) not in running or not others <= running:
        return None
    chosen = _divisible(observed, present)
    without = tuple(r.name for r in workers if r not in chosen)
    if len(chosen) < (observed.effective_job.spec.worker.min_replicas or 0) or without == _known(observed):
        return None
    why = listed(who_is_missing(observed))
    message = f"{why}; continuing with {len(chosen)} of {len(workers)} workers until it is available"
    return _resized(observed, message, without, now)


def _grown(observed: Observed, now: datetime) -> Plan | None:
    workers, known = _workers(observed), _known(observed)
    back = [r for r in workers if r.name not in known or _has_joined(observed, r)]
    chosen = _divisible(observed, back)
    without = tuple(r.name for r in workers if r not in chosen)
    if len(without) >= len(known):
        return None
    message = f"continuing with {len(chosen)} of {len(workers)} workers, more than before"
    return _resized(observed, message, without, now)


def _resized(observed: Observed, message: str, without: tuple[str, ...], now: datetime) -> Plan:
    status = transitions.resize(observed, message, now, without=without)
    return Plan(status, events=(Event("Normal", "Resized", message),))


def _workers(observed: Observed) -> list[Replica]:
    return [r for r in desired_replicas(observed.effective_job.spec) if r.role == "worker"]


def _known(observed: Observed) -> tuple[str, ...]:
    return observed.status.worker.unavailable if observed.status.worker else ()


def _has_joined(observed: Observed, replica: Replica) -> bool:
    member = observed.agent_report.members.get(replica) if observed.agent_report is not None else None
    pods = {p.name for p in observed.training_pods if p.replica == replica and p.state is PodState.RUNNING}
    return member is not None and member.state == IDLE and member.pod in pods


def _divisible(observed: Observed, workers: list[Replica]) -> list[Replica]:
    """Return the first of these workers, as many as can share the global batch."""
    sizes = range(len(workers), 0, -1)
    return workers[: next((n for n in sizes if observed.divides_batch(n)), 0)]
