"""Training that has finished: the evaluator gets its time, then the job is complete."""

from __future__ import annotations

from datetime import datetime, timedelta

from trainjob.core import transitions
from trainjob.core.actions import Event, Plan, create_agent_objects, stop_pods
from trainjob.core.backoff import soonest
from trainjob.core.conditions import SUCCESS_CRITERIA_MET, active_since, find_condition, is_true
from trainjob.core.names import Replica
from trainjob.core.observed import Observed
from trainjob.core.pods import PodState
from trainjob.core.policies.evaluator import EvaluatorStep, evaluator_step
from trainjob.core.topology import EVALUATOR, finishing_roles, leader
from trainjob.core.wording import quoted

NO_STEPS = (
    "no step was reported; a Keras model's fit, trainjob_trainer.train_and_evaluate "
    "and trainjob_trainer.init() report steps"
)
"""Of a program that has ended well: it may have trained in its own way, or not at all."""


def succeeded(observed: Observed, now: datetime) -> Plan | None:
    """Complete a job whose training replicas have all ended well, after the evaluator or its time-out."""
    if not is_true(observed.status, SUCCESS_CRITERIA_MET):
        return _training_finished(observed, now)
    step = evaluator_step(observed, now)
    training = tuple(p for p in observed.unfinished_pods if p not in observed.evaluator_pods)
    stops = stop_pods(observed, training)
    left = _evaluator_time_left(observed, now)
    if not step.done and left > timedelta(0):
        requeue = soonest(left, step.requeue)
        agents = create_agent_objects(observed) if step.creating else ()
        return Plan(observed.status, (*stops, *agents, *step.actions), step.events, requeue=requeue)
    if observed.unfinished_pods:
        return Plan(observed.status, stop_pods(observed, observed.unfinished_pods))
    message = _outcome(observed, step, timed_out=not step.done)
    return Plan(transitions.complete(observed, message, now), events=(Event("Normal", "Complete", message),))


def _training_finished(observed: Observed, now: datetime) -> Plan | None:
    roles = finishing_roles(observed.job.spec)
    seats = {r for r in observed.seats if r.role in roles}
    ended = {p.replica for p in observed.training_pods if p.state is PodState.SUCCEEDED and not p.taken}
    if not seats <= ended:
        return None
    scoring = bool(observed.job.spec.evaluator.replicas) and _has_reported(observed)
    message = _training_done(observed) + ("; the evaluator scores the final checkpoint" if scoring else "")
    return Plan(
        transitions.meet_success_criteria(observed, message, now),
        events=(Event("Normal", "TrainingFinished", message),),
    )


def _evaluator_time_left(observed: Observed, now: datetime) -> timedelta:
    met = find_condition(observed.status, SUCCESS_CRITERIA_MET)
    assert met is not None  # noqa: S101 - checked by the caller
    allowed = timedelta(seconds=observed.job.spec.evaluator.completion_timeout_seconds)
    return active_since(observed.status, met.last_transition_time) + allowed - now


def _outcome(observed: Observed, step: EvaluatorStep, *, timed_out: bool) -> str:
    done = _training_done(observed)
    if step.trouble:
        return f"{done}; {step.trouble}"
    if timed_out:
        return f"{done}; the evaluator wasn't done within spec.evaluator.completionTimeoutSeconds"
    report = observed.report_of(Replica(EVALUATOR, 0))
    evaluation = (report.evaluation if report else None) or observed.status.evaluation
    if evaluation is None or not evaluation.metrics:
        return done
    scores = ", ".join(f"{name} {value}" for name, value in sorted(evaluation.metrics.items()))
    return f"{done}; the checkpoint of step {evaluation.step} scores {quoted(scores)}"


def _training_done(observed: Observed) -> str:
    report = observed.report_of(leader(observed.job.spec))
    if not _has_reported(observed):
        return f"training has finished, but {NO_STEPS}"
    if report is None or not report.stopped_early:
        return "training has finished"
    of = f" of {report.total_steps}" if report.total_steps else ""
    return f"training stopped early at step {report.step}{of}: {report.stopped_early}"


def _has_reported(observed: Observed) -> bool:
    """Tell whether a step was ever heard of, from whichever replica, or a checkpoint's score."""
    status = observed.status
    known = status.progress is not None and status.progress.step is not None
    heard = any(r.step is not None or r.evaluation is not None for r in observed.reports.values())
    return known or heard or status.evaluation is not None
