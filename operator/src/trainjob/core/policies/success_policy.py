"""Completion of training, and the evaluator, which never affects the training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from trainjob.core import transitions
from trainjob.core.actions import Action, CreatePod, Event, Plan, create_agent_objects, stop_pods
from trainjob.core.agent_reports import evaluation_of
from trainjob.core.conditions import (
    RESTARTING,
    RUNNING,
    SUCCESS_CRITERIA_MET,
    active_since,
    find_condition,
    is_true,
)
from trainjob.core.delays import RECHECK, soonest, start_delay, time_left
from trainjob.core.failure import awaited_pods, describe_pod, end_due, is_unreachable, lost_nodes
from trainjob.core.names import LABEL_RESTORED, Replica, finishing_roles, leader, shown_output
from trainjob.core.observed import Observed
from trainjob.core.pods import Pod, PodState, slow_start_left
from trainjob.core.policies.startup_policy import describe_slow, describe_waiting
from trainjob.core.wording import quoted
from trainjob_trainer.contract.exits import ExitCode
from trainjob_trainer.contract.replicas import EVALUATOR
from trainjob_trainer.contract.restarts import restart_delay

# The evaluator: a failure restarts it alone.


@dataclass(frozen=True)
class EvaluatorStep:
    """What the evaluator needs now.

    Attributes:
        done: it has evaluated the final checkpoint, has used up its restarts, or is not part of the job.
        problem: its problem, as a clause for the job's message; empty if there is none.
    """

    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue: timedelta | None = None
    done: bool = False
    problem: str = ""

    @property
    def creating(self) -> bool:
        """Return whether it is about to be created, which the cluster may still refuse."""
        return any(isinstance(action, CreatePod) for action in self.actions)


def evaluator_step(observed: Observed, now: datetime) -> EvaluatorStep:
    """Create the evaluator, or replace it after a failure, at most `spec.maxRestarts` times."""
    if observed.effective_job.spec.evaluator.replicas == 0:
        return EvaluatorStep(stop_pods(observed, observed.evaluator_pods), done=True)
    pods = observed.evaluator_pods
    if not pods:
        return _create(observed, 1, now)
    newest = max(pods, key=lambda p: p.incarnation)
    older = stop_pods(observed, tuple(p for p in pods if p is not newest))
    if newest.state is PodState.SUCCEEDED and not newest.deleted:
        return EvaluatorStep(older, done=True)
    lost = is_unreachable(observed, newest, now)
    if newest.state is not PodState.FAILED and not newest.deleting and not lost:
        misplaced = avoids_for_nothing([newest], lost_nodes(observed, now))
        left, problem = slow_start_left(newest, now), ""
        if newest.waiting is not None:
            problem = describe_waiting(observed, newest, newest.waiting)
        elif left is not None and left <= timedelta(0):
            problem, left = describe_slow(observed, newest), RECHECK
        return EvaluatorStep((*older, *stop_pods(observed, misplaced)), requeue=left, problem=problem)
    cause = describe_pod(observed, newest).cause
    if newest.incarnation > observed.effective_job.spec.max_restarts and cause.counted:
        return EvaluatorStep(older, done=True, problem=f"the evaluator {cause.text}")
    left = _pause_left(newest, now)
    if left > timedelta(0):
        return EvaluatorStep(older, requeue=left)
    step = _create(observed, newest.incarnation + 1, now, after=(*older, *stop_pods(observed, (newest,))))
    return replace(step, events=(_restarted(observed, newest),)) if step.creating else step


def _restarted(observed: Observed, gone: Pod) -> Event:
    failure = describe_pod(observed, gone)
    count = "not counted against maxRestarts"
    if failure.cause.counted:
        count = f"restart {gone.incarnation} of {observed.effective_job.spec.max_restarts}"
    return Event("Warning", "EvaluatorRestarted", f"{failure.sentence}; it starts again ({count})")


def avoids_for_nothing(pods: Iterable[Pod], lost: frozenset[str]) -> tuple[Pod, ...]:
    """Return the pods without a node that avoid one which is back: perhaps the only one with room."""
    return tuple(p for p in pods if p.state is PodState.PENDING and not p.deleting and p.avoided - lost)


def _pause_left(pod: Pod, now: datetime) -> timedelta:
    since = pod.finished_at or pod.created_at  # not every eviction has a finish time
    delay = start_delay if pod.failed_at_start else restart_delay
    return time_left(since, delay(pod.incarnation), now) if since else timedelta(0)


def _create(
    observed: Observed, incarnation: int, now: datetime, after: tuple[Action, ...] = ()
) -> EvaluatorStep:
    pod = CreatePod(
        observed.effective_job,
        Replica(EVALUATOR, 0),
        incarnation=incarnation,
        attempt=incarnation,
        source=observed.agent_source,
        avoided=lost_nodes(observed, now),
        spec_digest=observed.spec_digest,
    )
    if observed.waits_for_gang:
        return EvaluatorStep(after)  # it would take a node from a gang of another job, and not train
    actions = (*after, pod)
    refusal = observed.refusal
    if refusal is None or refusal.role != EVALUATOR:
        return EvaluatorStep(actions)
    problem = f"the evaluator couldn't be created: {quoted(refusal.message)}"
    due = refusal.patience_left(now) <= timedelta(0)
    return EvaluatorStep(actions if due else (), requeue=refusal.next_attempt(now), problem=problem)


# Finished training: the job completes after the evaluator or its timeout.


NO_STEPS = (
    "no step was reported; a Keras model's fit, trainjob_trainer.train_and_evaluate "
    "and trainjob_trainer.init() report steps"
)
"""For a program that exits with 0: it may have trained in its own way, or not at all."""


def succeeded(observed: Observed, now: datetime) -> Plan | None:
    """Complete a job whose training replicas have all succeeded, after the evaluator or its timeout.

    So does a job from a backup whose output holds its finished training: nothing is trained again.
    """
    if not is_true(observed.status, SUCCESS_CRITERIA_MET):
        return _training_finished(observed, now)
    step = evaluator_step(observed, now)
    training = tuple(p for p in observed.unfinished_pods if p not in observed.evaluator_pods)
    stops = stop_pods(observed, training)
    left = _evaluator_time_left(observed, now)
    if not step.done and left > timedelta(0):
        requeue = soonest(left, step.requeue)
        agents = create_agent_objects(observed) if step.creating else ()
        met = find_condition(observed.status, SUCCESS_CRITERIA_MET)
        message = "; ".join(clause for clause in (met.message if met else "", step.problem) if clause)
        status = observed.status.model_copy(update={"message": message})
        return Plan(status, (*stops, *agents, *step.actions), step.events, requeue=requeue)
    awaited = awaited_pods(observed, now)
    if awaited:
        stops = stop_pods(observed, observed.unfinished_pods)
        return Plan(observed.status, stops, requeue=end_due(awaited, now))
    message = _outcome(observed, step, timed_out=not step.done)
    return Plan(transitions.complete(observed, message, now), events=(Event("Normal", "Complete", message),))


def _training_finished(observed: Observed, now: datetime) -> Plan | None:
    roles = finishing_roles(observed.effective_job.spec)
    replicas = {r for r in observed.training_replicas if r.role in roles}
    ended = {p.replica for p in observed.training_pods if p.state is PodState.SUCCEEDED and not p.deleted}
    left = end_left(observed, now)
    is_waited_out = left is not None and left <= timedelta(0)
    if not (replicas <= ended or _had_finished(observed) or is_waited_out):
        return None
    scoring = bool(observed.effective_job.spec.evaluator.replicas) and _has_reported(observed)
    message = _training_done(observed) + ("; the evaluator scores the final checkpoint" if scoring else "")
    return Plan(
        transitions.meet_success_criteria(observed, message, now),
        events=(Event("Normal", "TrainingFinished", message),),
    )


LAST_ENDS = timedelta(seconds=60)
"""How long the other pods may take to end once the leading agent has: it has told them to."""


def end_left(observed: Observed, now: datetime) -> timedelta | None:
    """Return how long to wait for the others' ends once the leading agent has exited with 0; else None.

    It does so when all replicas whose end counts have finished, or have failed after it had (ADR 37). A pod
    that is gone by then, or was made after that, would wait for it in vain.
    """
    roles, first = finishing_roles(observed.effective_job.spec), leader(observed.effective_job.spec)
    pods = [p for p in observed.training_pods if p.replica.role in roles]
    done = next((p for p in pods if p.replica == first and p.state is PodState.SUCCEEDED), None)
    has_run = is_true(observed.status, RUNNING) or is_true(observed.status, RESTARTING)
    if not observed.in_place or not has_run or done is None or done.deleted:
        return None
    if all(p.ended or p.deleted for p in pods):
        return timedelta(0)
    return time_left(done.finished_at, LAST_ENDS, now) if done.finished_at is not None else timedelta(0)


def _had_finished(observed: Observed) -> bool:
    """Return whether a job from a backup has found its own finished training in its output."""
    codes = {pod.exit_code for pod in observed.training_pods}
    return LABEL_RESTORED in observed.meta.labels and ExitCode.OUTPUT_FINISHED in codes


def _evaluator_time_left(observed: Observed, now: datetime) -> timedelta:
    met = find_condition(observed.status, SUCCESS_CRITERIA_MET)
    assert met is not None  # noqa: S101 - checked by the caller
    allowed = timedelta(seconds=observed.effective_job.spec.evaluator.completion_timeout_seconds)
    return active_since(observed.status, met.last_transition_time) + allowed - now


def _outcome(observed: Observed, step: EvaluatorStep, *, timed_out: bool) -> str:
    done = _training_done(observed)
    if step.problem:
        return f"{done}; {step.problem}"
    if timed_out:
        return f"{done}; the evaluator didn't finish within spec.evaluator.completionTimeoutSeconds"
    report = observed.report_of(Replica(EVALUATOR, 0))
    evaluation = evaluation_of(report) or observed.status.evaluation
    if evaluation is None or not evaluation.metrics:
        return done
    scores = ", ".join(f"{name} {value}" for name, value in sorted(evaluation.metrics.items()))
    return f"{done}; the checkpoint of step {evaluation.step} scores {quoted(scores)}"


def _training_done(observed: Observed) -> str:
    report = observed.report_of(leader(observed.effective_job.spec))
    if _had_finished(observed):
        return "training had finished before the job was restored from a backup"
    if report is not None and report.already_finished:
        output = shown_output(observed.effective_job)
        return (
            f"training had already finished: the output {output} belongs to the same spec (to train again, "
            "set spec.output.resume: Never)"
        )
    if not _has_reported(observed):
        return f"training has finished, but {NO_STEPS}"
    return "training has finished"


def _has_reported(observed: Observed) -> bool:
    """Return whether any replica has reported a step, or the score of a checkpoint."""
    status = observed.status
    known = status.progress is not None and status.progress.step is not None
    heard = any(r.step is not None or r.evaluation is not None for r in observed.reports.values())
    return known or heard or status.evaluation is not None
