"""The one function that decides: from what was observed to what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from trainjob.api import CONTROLLER, TrainJobStatus
from trainjob.core.actions import Action, Plan, build_target, delete_agent_secrets, end_other_containers
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
    queued,
    suspended,
    time_left_of_deadline,
)
from trainjob.core.policies.memory_policy import outgrown, resize_pods
from trainjob.core.policies.startup_policy import yielded
from trainjob.core.policies.success_policy import succeeded
from trainjob.core.progress import with_overview
from trainjob.core.stragglers import straggler_events

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
    outgrown,
    resized,
    elastic,
    yielded,
    incomplete,
)
"""In order: the first policy that returns a plan decides. The last one always returns one."""


def plan(observed: Observed, now: datetime) -> Plan:
    """Return what to do for a job.

    Level-triggered: it reads the current state, never past events. To repeat it on an unchanged state changes
    nothing. When a part of a plan has been carried out, the rest is planned again.

    Args:
        observed: the job and all that belongs to it.
        now: the current time, with zone.
    """
    chain, integrations = CHAIN, observed.settings.integrations
    if observed.manager not in (None, CONTROLLER):
        # Without a decision, the status of a delegated job isn't this controller's.
        chain = tuple(each.held_here for each in integrations if each.delegates(observed))
    if observed.meta.deletion_timestamp is not None or not chain:
        return Plan(observed.status)
    decided = next((made for policy in chain if (made := policy(observed, now)) is not None), None)
    if decided is None:
        return Plan(observed.status, _integration_actions(observed, observed.status, now))
    status, recheck = with_overview(observed, decided.status, now)
    requeue = soonest(decided.requeue, recheck, _deadline(observed, now))
    events = (*decided.events, *straggler_events(observed.status, status))
    return replace(
        decided,
        status=status,
        actions=(
            *decided.actions,
            *end_other_containers(observed),
            *resize_pods(observed),
            *_integration_actions(observed, status, now),
        ),
        events=events,
        requeue=requeue,
        target=build_target(observed, status),
        beforehand=delete_agent_secrets(observed, status),
    )


def _deadline(observed: Observed, now: datetime) -> timedelta | None:
    left = time_left_of_deadline(observed, now)
    return left if left is not None and left > timedelta(0) else None


def _integration_actions(observed: Observed, status: TrainJobStatus, now: datetime) -> tuple[Action, ...]:
    integrations = observed.settings.integrations
    return tuple(action for each in integrations for action in each.actions(observed, status, now))
