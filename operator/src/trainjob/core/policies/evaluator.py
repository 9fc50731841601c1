"""The evaluator's seat: its failures restart it alone, and never touch the training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from trainjob.core.actions import Action, CreatePod, Event, stop_pods
from trainjob.core.backoff import restart_delay, time_left
from trainjob.core.failure import describe_pod
from trainjob.core.names import Replica
from trainjob.core.observed import Observed
from trainjob.core.pods import Pod, PodState
from trainjob.core.topology import EVALUATOR
from trainjob.core.wording import quoted


@dataclass(frozen=True)
class EvaluatorStep:
    """What the evaluator needs now.

    Attributes:
        done: it has evaluated the final checkpoint, has been given up, or there is none.
        trouble: what the user should know of it, to stand in a sentence; empty when all is well.
    """

    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue: timedelta | None = None
    done: bool = False
    trouble: str = ""

    @property
    def creating(self) -> bool:
        """Tell whether it is about to be created: nobody knows yet whether the cluster lets it."""
        return any(isinstance(action, CreatePod) for action in self.actions)


def evaluator_step(observed: Observed, now: datetime) -> EvaluatorStep:
    """Create the evaluator, or replace it after a failure, at most `spec.maxRestarts` times."""
    if observed.job.spec.evaluator.replicas == 0:
        return EvaluatorStep(stop_pods(observed, observed.evaluator_pods), done=True)
    pods = observed.evaluator_pods
    if not pods:
        return _create(observed, 1, now)
    newest = max(pods, key=lambda p: p.incarnation)
    older = stop_pods(observed, tuple(p for p in pods if p is not newest))
    if newest.state is PodState.SUCCEEDED and not newest.taken:
        return EvaluatorStep(older, done=True)
    if newest.state is not PodState.FAILED and not newest.deleting:
        return EvaluatorStep(older)
    restarts = newest.incarnation - 1
    if restarts >= observed.job.spec.max_restarts and not (newest.taken or newest.infrastructure):
        cause = describe_pod(observed, newest).cause.text
        return EvaluatorStep(older, done=True, trouble=f"the evaluator {cause}")
    left = _pause_left(newest, now)
    if left > timedelta(0):
        return EvaluatorStep(older, requeue=left)
    step = _create(observed, newest.incarnation + 1, now, after=(*older, *stop_pods(observed, (newest,))))
    return replace(step, events=(_restarted(observed, newest),)) if step.creating else step


def _restarted(observed: Observed, gone: Pod) -> Event:
    failure = describe_pod(observed, gone)
    count = f"restart {gone.incarnation} of {observed.job.spec.max_restarts}"
    if gone.taken or gone.infrastructure:
        count = "not counted against maxRestarts"
    return Event("Warning", "EvaluatorRestarted", f"{failure.sentence}; it starts again ({count})")


def _pause_left(pod: Pod, now: datetime) -> timedelta:
    since = pod.finished_at or pod.created_at  # a kubelet that evicts doesn't always say when
    return time_left(since, restart_delay(pod.incarnation), now) if since else timedelta(0)


def _create(
    observed: Observed, incarnation: int, now: datetime, after: tuple[Action, ...] = ()
) -> EvaluatorStep:
    pod = CreatePod(
        observed.job,
        Replica(EVALUATOR, 0),
        incarnation=incarnation,
        attempt=incarnation,
        source=observed.agent_source,
    )
    actions = (*after, pod)
    refusal = observed.refusal
    if refusal is None or refusal.role != EVALUATOR:
        return EvaluatorStep(actions)
    trouble = f"the evaluator couldn't be created: {quoted(refusal.message)}"
    due = refusal.patience_left(now) <= timedelta(0)
    return EvaluatorStep(actions if due else (), requeue=refusal.next_attempt(now), trouble=trouble)
