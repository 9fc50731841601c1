"""The one function that decides: from what was observed to what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from trainjob.api import CONTROLLER
from trainjob.core.actions import (
    Plan,
    build_target,
    delete_agent_secrets,
    end_other_containers,
    pod_group_actions,
)
from trainjob.core.delays import soonest
from trainjob.core.observed import Observed
from trainjob.core.policies.creation import incomplete
from trainjob.core.policies.elastic_policy import elastic, resized
from trainjob.core.policies.failure_policy import failed, restarted_in_place
from trainjob.core.policies.lifecycle import (
    failing,
    finished,
    invalid,
    overdue,
    suspended,
    time_left_of_deadline,
)
from trainjob.core.policies.queue_policy import held_here, queued, workload_actions
from trainjob.core.policies.startup_policy import yielded
from trainjob.core.policies.success_policy import succeeded
from trainjob.core.progress import with_overview
from trainjob.core.stragglers import straggler_events
from trainjob.core.workload import MULTIKUEUE

Policy = Callable[[Observed, datetime], Plan | None]

CHAIN: tuple[Policy, ...] = (
    invalid,
    finished,
    failing,
    suspended,
    queued,
    succeeded,
    overdue,
    restarted_in_place,
    failed,
    resized,
    elastic,
    yielded,
    incomplete,
)
"""In order: the first policy that returns a plan decides. The last one always returns one."""

DELEGATED: tuple[Policy, ...] = (held_here,)
"""For jobs that MultiKueue runs in other clusters: without a decision, the status isn't this controller's."""


def plan(observed: Observed, now: datetime) -> Plan:
    """Return what to do for a job.

    Level-triggered: it reads the current state, never past events. To repeat it on an unchanged state changes
    nothing. When a part of a plan has been carried out, the rest is planned again.

    Args:
        observed: the job and all that belongs to it.
        now: the current time, with zone.
    """
    if observed.meta.deletion_timestamp is not None or _is_managed_elsewhere(observed):
        return Plan(observed.status)
    chain = DELEGATED if observed.manager == MULTIKUEUE else CHAIN
    decided = next((made for policy in chain if (made := policy(observed, now)) is not None), None)
    if decided is None:
        return Plan(observed.status, workload_actions(observed, observed.status, now))
    status, recheck = with_overview(observed, decided.status, now)
    requeue = soonest(decided.requeue, recheck, _deadline(observed, now))
    events = (*decided.events, *straggler_events(observed.status, status))
    return replace(
        decided,
        status=status,
        actions=(
            *decided.actions,
            *end_other_containers(observed),
            *pod_group_actions(observed, status),
            *workload_actions(observed, status, now),
        ),
        events=events,
        requeue=requeue,
        target=build_target(observed, status),
        beforehand=delete_agent_secrets(observed, status),
    )


def _deadline(observed: Observed, now: datetime) -> timedelta | None:
    left = time_left_of_deadline(observed, now)
    return left if left is not None and left > timedelta(0) else None


def _is_managed_elsewhere(observed: Observed) -> bool:
    """Return whether another controller does everything; for MultiKueue, this one writes the Workload."""
    if observed.manager == MULTIKUEUE:
        return observed.parsed is None or not observed.queue or not observed.settings.kueue
    return observed.manager not in (None, CONTROLLER)
