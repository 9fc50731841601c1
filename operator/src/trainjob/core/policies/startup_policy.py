"""`spec.startTimeoutSeconds`: a job one of whose replicas gets no node yields its machines; it retries later.

Otherwise two jobs that each hold half of the machines would block each other forever. A gang that waits for
nodes holds none: its time begins with its first node. A job whose pods all have nodes keeps them, however
long they take to start: new pods would begin that work again, on the same machines.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

from trainjob.core import transitions
from trainjob.core.actions import Event, Plan
from trainjob.core.agent import python_hint
from trainjob.core.conditions import RUNNING, active_since, find_condition
from trainjob.core.delays import time_left
from trainjob.core.failure import trains_on
from trainjob.core.names import Replica
from trainjob.core.observed import Observed
from trainjob.core.pods import Pod, PodState
from trainjob.core.wording import listed, quoted, utc
from trainjob_trainer.contract.reports import ABSENT, LOST, MEETING

LONGEST_PAUSE = timedelta(seconds=60)
SHORTEST_PAUSE = timedelta(seconds=5)


def yielded(observed: Observed, now: datetime) -> Plan | None:
    """Stop an attempt one of whose replicas has had no node for too long; say who is missing, and why."""
    left = start_time_left(observed, now)
    if left is None or left > timedelta(0) or not observed.training_pods:
        return None
    allowed = observed.effective_job.spec.start_timeout_seconds
    message = (
        f"{listed(who_is_missing(observed))}; yielded after {allowed} s (spec.startTimeoutSeconds),"
        " trying again within a minute"
    )
    until = now + pause(observed, observed.attempt + 1)
    reason, pods = transitions.START_TIMEOUT, observed.training_pods
    return Plan(
        transitions.replace_pods(observed, reason, message, now, pods=pods, until=until),
        events=(Event("Warning", reason, message),),
    )


def start_time_left(observed: Observed, now: datetime) -> timedelta | None:
    """Return the time left until the start timeout, or None while no replica waits for a node.

    A replica whose pod is refused, as by a quota, waits for one too.
    """
    since, refused = waiting_since(observed), observed.training_refusal is not None
    unplaced = [p.created_at for p in observed.training_pods if p.state is PodState.PENDING and p.created_at]
    if since is None or not (unplaced or refused):
        return None
    begun = since if refused else max(since, min(unplaced))
    return begun + timedelta(seconds=observed.effective_job.spec.start_timeout_seconds) - now


def waiting_since(observed: Observed) -> datetime | None:
    """Return since when the training replicas have been starting, or None if they aren't."""
    if trains_on(observed) or (observed.waits_for_gang and observed.training_refusal is None):
        return None
    running, status = find_condition(observed.status, RUNNING), observed.status
    if running is None or running.status == "True" or status.start_time is None:
        return None
    created = min((p.created_at for p in observed.training_pods if p.created_at), default=None)
    since = running.last_transition_time
    nodes = (p.placed_at for p in observed.training_pods if p.placed_at and observed.gang_size is not None)
    placed = min(nodes, default=None)
    # The time before the first pod was created doesn't count towards the timeout.
    begun = max(since, status.restarts.next_time or since, created or since, placed or since)
    return active_since(status, begun)


def pause(observed: Observed, attempt: int) -> timedelta:
    """Return how long to yield; it differs by job and attempt, so that the same jobs don't collide again."""
    digest = hashlib.sha256(f"{observed.meta.uid}/{attempt}".encode()).digest()
    spread = int.from_bytes(digest[:4], "big") / 2**32
    return SHORTEST_PAUSE + spread * (LONGEST_PAUSE - SHORTEST_PAUSE)


def pause_left(observed: Observed, now: datetime) -> timedelta:
    """Return what is left of the pause of a job that yielded."""
    until = observed.status.restarts.next_time
    return time_left(until - LONGEST_PAUSE, LONGEST_PAUSE, now) if until is not None else timedelta(0)


def who_is_missing(observed: Observed) -> list[str]:
    """Return a clause for each missing replica, with the reason."""
    pods = {p.replica: p for p in observed.training_pods}
    clauses = []
    for replica in observed.training_replicas:
        pod = pods.get(replica)
        if pod is None:
            clauses.append(f"{replica.title} has no pod" + _refused(observed))
        elif pod.waiting is not None:
            clauses.append(describe_waiting(observed, pod, pod.waiting))
        elif pod.activity:
            clauses.append(f"{replica.title} has not started: {pod.activity}")
        elif pod.state in (PodState.PENDING, PodState.STARTING):
            clauses.append(f"{replica.title} has not started")
        elif is_away(observed, replica):
            clauses.append(f"{replica.title} has not joined the others")
    return clauses or ["not all workers have joined"]


def describe_waiting(observed: Observed, pod: Pod, waiting: tuple[str, str]) -> str:
    """Return `worker 1 can't start: ImagePullBackOff: no such image`."""
    reason, detail = waiting
    why = f"{reason}: {detail}{python_hint(observed.effective_job.spec, detail)}" if detail else reason
    return f"{pod.replica.title} can't start: {why}"


def describe_slow(observed: Observed, pod: Pod) -> str:
    """Return what a pod does before its training container runs, with its newest event.

    A missing volume is only an event: the status is the same while an image is pulled.
    """
    event = observed.pod_events.get(pod.name)
    warning = f"{event.reason}: {event.message}" if event is not None and event.is_warning else ""
    code = observed.effective_job.spec.code
    such = f", such as its code in ConfigMap {code.config_map}" if code is not None else ""
    place = f" on node {pod.node}" if pod.node else ""
    if pod.activity:
        why = pod.activity + (f" ({warning})" if warning else "")
    elif warning:
        why = warning
    elif event is not None and event.reason == "Pulling":
        why = f"{event.message} since {utc(event.at)}"
    else:
        why = (
            f"its image is still being pulled{place}, or a volume is missing{such}; kubectl describe pod "
            f"{pod.name} -n {observed.meta.namespace} says which"
        )
    return f"{pod.replica.title} hasn't started yet: {why}"


def _refused(observed: Observed) -> str:
    refusal = observed.training_refusal
    return f": {quoted(refusal.message)}" if refusal is not None else ""


def is_away(observed: Observed, replica: Replica) -> bool:
    """Return whether the pod of this replica runs, and its agent isn't among those that meet."""
    report = observed.agent_report
    runs = any(p.replica == replica and p.state is PodState.RUNNING for p in observed.training_pods)
    if report is None or report.phase != MEETING or not runs:
        return False
    member = report.members.get(replica)
    return member is None or member.state in (ABSENT, LOST)
