"""Counts and figures in the status, which follow the pods and the reports without any decision."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from trainjob.api import (
    Evaluation,
    OutputStatus,
    Progress,
    Restarts,
    TrainJob,
    TrainJobStatus,
    WorkerStatus,
)
from trainjob.core.agent_reports import Member, evaluation_of, merge_notices
from trainjob.core.conditions import (
    COMPLETE,
    FAILED,
    FAILURE_TARGET,
    RESTARTING,
    RUNNING,
    SUCCESS_CRITERIA_MET,
    TRAINS_ALONE,
    find_condition,
    is_finished,
    is_true,
    truncated,
    with_condition,
)
from trainjob.core.delays import time_left
from trainjob.core.failure import checkpoint_step, reached_step, restarts_of, with_log
from trainjob.core.names import LABEL_JOB, LABEL_LIVE, LABEL_ROLE, Replica, leader, shown_output
from trainjob.core.observed import Observed
from trainjob.core.pods import PodState
from trainjob.core.stragglers import straggler_fields
from trainjob.core.wording import short_duration
from trainjob_trainer.contract.curves import read_curves, write_curves
from trainjob_trainer.contract.replicas import EVALUATOR
from trainjob_trainer.contract.reports import FINISHED, Report

WAITING_FOR_STORAGE = "Waiting for storage"
"""The state while files can't be read or written, or after a failure for that reason."""

_LONGEST_ETA = 10 * 365 * 86_400.0
"""Seconds; a training without an end reports a huge number of steps."""

# The time that a job spends in each state.


_SPENT_ON = {
    "Pending": "starting",
    "Running": "training",
    "Restarting": "restarting",
    "Evaluating": "evaluating",
    "Suspended": "suspended",
    "Queued": "queued",
}
"""By state; the few seconds of a failing job aren't counted."""


def with_time_spent(before: TrainJobStatus, status: TrainJobStatus, now: datetime) -> TrainJobStatus:
    """Return the status with the time spent in the previous state, if the state has changed."""
    since, kind = before.state_seconds.since, _spent_on(before)
    if status.state == before.state and _spent_on(status) == kind:
        return status
    changes: dict[str, object] = {"since": now}
    if since is not None and kind is not None:
        seconds = max(0, round((now - since).total_seconds()))
        changes[kind] = getattr(before.state_seconds, kind) + seconds
    return status.model_copy(update={"state_seconds": before.state_seconds.model_copy(update=changes)})


def _spent_on(status: TrainJobStatus) -> str | None:
    if status.state == WAITING_FOR_STORAGE:
        return "restarting" if is_true(status, RESTARTING) else "training"
    return _SPENT_ON.get(status.state or "")


# The steps that restarts cost. A pod that is asked to leave saves before it ends, so only the next attempt
# shows where training continues.


def with_lost_steps(observed: Observed, status: TrainJobStatus) -> Restarts:
    """Return the restart counts of this status, with the steps that its latest restart has cost, once known.

    Until then, training may continue as it was and report further steps.
    """
    known = status.restarts
    if known.reached_step is None:
        return known
    begin = _first_step(observed, status.attempt or 1)
    if begin is None:
        return known.model_copy(update={"reached_step": reached_step(observed, known.reached_step)})
    lost = known.steps_lost + max(0, known.reached_step - begin)
    return known.model_copy(update={"steps_lost": lost, "reached_step": None})


def _first_step(observed: Observed, attempt: int) -> int | None:
    """Return the step from which this attempt continues, by its writer's first reports; None before those.

    A loop that isn't the library's doesn't report where it resumed.
    """
    report = _report_in(observed, attempt)
    if report is None or report.step is None:
        return None
    if report.resumed_from is not None:
        return report.resumed_from
    return min(report.step, checkpoint_step(observed) or 0)


def _report_in(observed: Observed, attempt: int) -> Report | None:
    """Return the writer's report if it is of this attempt; agents drop earlier ones when they begin it."""
    writer, agents = leader(observed.effective_job.spec), observed.agent_report
    if not observed.in_place:
        return observed.report_of(writer) if observed.attempt >= attempt else None
    if agents is None or agents.restart_counts.attempt < attempt:
        return None
    if agents.failure is not None and agents.failure.attempt == agents.restart_counts.attempt:
        return None  # the next attempt hasn't begun
    return agents.members.get(writer, Member()).report


# Step times of each replica, and their attempt.


def rank_times(observed: Observed) -> dict[str, Any]:
    """Return fields of `status.progress`: the attempt, and seconds per step and its parts by replica."""
    reports = {
        pod.replica.name: observed.reports[pod.name]
        for pod in observed.training_pods
        if pod.name in observed.reports
    }
    return {
        "attempt": _attempt(observed),
        "step_seconds": _times(reports, "step_seconds"),
        "work_seconds": _times(reports, "work_seconds"),
        "input_seconds": _times(reports, "input_seconds"),
    }


def _attempt(observed: Observed) -> int:
    """Return the attempt of the reports: agents begin the next attempt after the decision for it."""
    return _agents_attempt(observed) or observed.attempt


def _agents_attempt(observed: Observed) -> int:
    return observed.agent_report.restart_counts.attempt if observed.agent_report is not None else 0


def _times(reports: dict[str, Report], field: str) -> dict[str, float]:
    known = ((name, getattr(report, field)) for name, report in reports.items())
    return {name: float(f"{seconds:.4g}") for name, seconds in known if seconds is not None and seconds >= 0}


# Figures in the status. They change all the time, and a status write costs the API server: they are written
# with decisions, and otherwise at most every 30 seconds.


INTERVAL = timedelta(seconds=30)


def with_overview(
    observed: Observed, status: TrainJobStatus, now: datetime
) -> tuple[TrainJobStatus, timedelta | None]:
    """Return the status with current figures, and the time until the next pass if their write is delayed."""
    status = truncated(with_time_spent(observed.status, _stamp(status, observed.meta.generation), now))
    if observed.parsed is None:
        return status, None
    fresh = truncated(_figures(observed, observed.effective_job, status, now))
    if fresh == observed.status:
        return fresh, None
    is_news = _is_news(observed.status, fresh)
    if _outline(status) == _outline(observed.status) and not is_news:
        written = status.progress.time if status.progress else None
        left = time_left(written, INTERVAL, now) if written else timedelta(0)
        if left > timedelta(0):
            return observed.status, left
    progress = (fresh.progress or Progress()).model_copy(update={"time": now})
    return fresh.model_copy(update={"progress": progress}), None


def _is_news(before: TrainJobStatus, status: TrainJobStatus) -> bool:
    """Return whether this is an attempt's first step or less than the last step: users wait for these."""
    if before.first_step_time != status.first_step_time:
        return True
    known, progress = before.progress, status.progress
    if progress is None or progress.step is None:
        return False
    if known is None or known.step is None or known.attempt != progress.attempt:
        return True
    return progress.step < known.step


def _outline(status: TrainJobStatus) -> tuple[object, ...]:
    """Return what is written at once; not the messages, since a scheduler changes its own all the time."""
    conditions = [(c.type, c.status, c.reason) for c in status.conditions]
    return status.state, status.attempt, status.observed_generation, conditions


def _stamp(status: TrainJobStatus, generation: int) -> TrainJobStatus:
    """Set the observed generation, in every condition too: `kubectl wait` hangs otherwise."""
    conditions = tuple(c.model_copy(update={"observed_generation": generation}) for c in status.conditions)
    return status.model_copy(update={"observed_generation": generation, "conditions": conditions})


def _figures(observed: Observed, job: TrainJob, status: TrainJobStatus, now: datetime) -> TrainJobStatus:
    report = observed.report_of(leader(job.spec))
    scored = observed.report_of(Replica(EVALUATOR, 0))
    said = observed.agent_report.notices if observed.agent_report is not None else ()
    changes: dict[str, object] = {
        "worker": _workers(observed, job, status),
        "notices": merge_notices(status.notices, said, *(r.notices or () for r in observed.reports.values())),
        **_attempts(observed, status),
    }
    if report is not None and report.step is not None:
        progress = _progress(report, status, now).model_copy(update=rank_times(observed))
        changes |= {"progress": progress, **straggler_fields(observed, progress, now)}
        has_stepped = report.step > (report.resumed_from or 0)
        if observed.status.first_step_time is None and has_stepped:
            changes["first_step_time"] = now
    if report is not None and report.checkpoint_step is not None:
        changes["output"] = _output(job, report.checkpoint_step, status.output, now)
    if (evaluation := evaluation_of(scored)) is not None:
        changes["evaluation"] = Evaluation(step=evaluation.step, metrics=dict(evaluation.metrics))
    is_trained = any(is_true(status, kind) for kind in (SUCCESS_CRITERIA_MET, FAILURE_TARGET, FAILED))
    if is_trained and not is_finished(observed.status):
        changes["curves"] = _curves(status, report, scored)
    if status.first_failure is not None and not status.first_failure.log_tail:
        changes["first_failure"] = with_log(status.first_failure, observed)
    status = status.model_copy(update=changes)
    if report is None or not report.trains_alone or is_true(status, TRAINS_ALONE):
        return status
    return with_condition(
        status,
        TRAINS_ALONE,
        True,
        reason="NoStrategy",
        message="each worker trains the whole model by itself, and worker 0's is kept; see the notices",
        now=now,
        generation=job.metadata.generation,
    )


_LARGEST_CURVES = 8192
"""Characters of all curves in the status, as JSON."""


def _curves(status: TrainJobStatus, writer: Report | None, evaluator: Report | None) -> dict[str, str]:
    """Return the curves that the last reports have; those whose pods are gone stay as they are known."""
    trained = read_curves(writer.curves or {}) if writer is not None else {}
    scored = read_curves(evaluator.curves or {}) if evaluator is not None else {}
    results = {f"val_{name}": points for name, points in scored.items()}
    return write_curves({**read_curves(status.curves), **trained, **results}, _LARGEST_CURVES)


def _output(job: TrainJob, step: int, before: OutputStatus | None, now: datetime) -> OutputStatus:
    """Return what lies in the output; a checkpoint's time is that of the first report of its step."""
    is_known = before is not None and before.checkpoint_step == step
    since = before.checkpoint_time if before is not None and is_known else None
    return OutputStatus(path=shown_output(job), checkpoint_step=step, checkpoint_time=since or now)


def _attempts(observed: Observed, status: TrainJobStatus) -> dict[str, object]:
    """Return what the agents' attempts and restarts change; nothing while a failure is being recorded."""
    if status.attempt is None or status.restarts.replaced_pods != observed.status.restarts.replaced_pods:
        return {}
    attempt = max(status.attempt, _agents_attempt(observed))
    restarts = with_lost_steps(observed, status)
    newly = max(0, min(restarts.counted, restarts_of(observed).reset - restarts.reset))
    counts = {"counted": restarts.counted - newly, "reset": restarts.reset + newly}
    return {"attempt": attempt, "restarts": restarts.model_copy(update=counts)}


def _workers(observed: Observed, job: TrainJob, status: TrainJobStatus) -> WorkerStatus:
    known = status.worker or WorkerStatus()
    workers = [p for p in observed.training_pods if p.replica.role == "worker" and not p.ended]
    ready = sum(p.ready and p.state is PodState.RUNNING for p in workers)
    has_trained = is_true(status, SUCCESS_CRITERIA_MET) or is_true(status, COMPLETE)
    shown = known.size or job.spec.worker.replicas if has_trained else ready
    return WorkerStatus(
        active=len(workers),
        ready=ready,
        summary=f"{shown}/{job.spec.worker.replicas}",
        selector=f"{LABEL_JOB}={job.metadata.name},{LABEL_ROLE}=worker,{LABEL_LIVE}=true",
        size=known.size or job.spec.worker.replicas,
        unavailable=known.unavailable,
        memory=known.memory,
    )


def _progress(report: Report, status: TrainJobStatus, now: datetime) -> Progress:
    before = status.progress
    metrics = {name: f"{value:.6g}" for name, value in (report.metrics or {}).items()}
    goes_on = before is None or (before.step, before.state) != (report.step, report.state)
    if report.loss is not None:
        metrics["loss"] = f"{report.loss:.6g}"
    return Progress(
        step=report.step,
        state=report.state,
        since=now if goes_on or before is None else before.since,
        total_steps=report.total_steps,
        epoch=report.epoch,
        eta=_eta(report, status, now),
        examples_per_second=report.examples_per_second,
        global_batch=report.global_batch or (before.global_batch if before else None),
        metrics=metrics,
        time=before.time if before else None,
    )


def _eta(report: Report, status: TrainJobStatus, now: datetime) -> str | None:
    """Return the time left at the speed since the last write; the same as before if no step was made.

    A start takes time, and goes back to a checkpoint: it takes two writes after it to know the speed.
    """
    before, running = status.progress, find_condition(status, RUNNING)
    if report.step is None or report.total_steps is None:
        return None
    if report.state == FINISHED or report.step >= report.total_steps:
        return None
    if before is None or before.step is None or before.time is None:
        return None
    if running is None or running.status != "True" or before.time <= running.last_transition_time:
        return None
    steps, seconds = report.step - before.step, (now - before.time).total_seconds()
    if steps <= 0 or seconds <= 0:
        return before.eta
    left = (report.total_steps - report.step) * seconds / steps
    return short_duration(timedelta(seconds=left)) if left <= _LONGEST_ETA else None
