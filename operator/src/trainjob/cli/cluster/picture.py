"""One job in full, for a person: state, figures, conditions, what failed, and its pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from trainjob.api import Progress
from trainjob.cli.cluster.ending import describe_failure
from trainjob.cli.cluster.reading import Job, Outcome
from trainjob.cli.cluster.selection import has_log, why_no_log
from trainjob.cli.cluster.table import layout
from trainjob.cli.figures import format_metric, format_rate
from trainjob.core.budget import used
from trainjob.core.input_bound import describe_input
from trainjob.core.pods import Pod, PodState
from trainjob.core.stragglers import describe
from trainjob.core.wording import printable, short_duration


def draw_job(job: Job, pods: Iterable[Pod], now: datetime) -> tuple[str, ...]:
    """Return the lines.

    Args:
        job: which.
        pods: those that are its own.
        now: by the API server's clock, as far as one can know.
    """
    parts = (_header(job, now), _figures(job), _conditions(job, now), _failure(job), _pods(job, pods, now))
    return tuple(printable(line) for part in parts for line in part)


def _header(job: Job, now: datetime) -> Iterator[str]:
    state = f"{job.state}, being deleted" if job.deleting else job.state
    message = f": {job.status.message}" if job.status.message else ""
    yield f"{job.name}   {state}{message}"
    yield f"  namespace     {job.namespace}"
    ages = [f"created {short_duration(now - job.created_at)} ago"] if job.created_at else []
    start, end = job.status.start_time, job.status.completion_time
    if start and end:
        ages.append(f"took {short_duration(end - start)}, over since {short_duration(now - end)}")
    elif start:
        ages.append(f"at it for {short_duration(now - start)}")
    if ages:
        yield f"  time          {'; '.join(ages)}"


def _figures(job: Job) -> Iterator[str]:
    status = job.status
    if status.worker is not None and status.worker.summary:
        yield f"  workers       {status.worker.summary} ready"
    if status.progress is not None and (told := _progress(status.progress, going_on=not job.is_over)):
        yield f"  progress      {told}"
    if not job.is_over:
        yield from (f"  straggler     {describe(straggler)}" for straggler in status.stragglers)
        steps = status.progress or Progress()
        if (waiting := describe_input(steps.step_seconds, steps.input_seconds)) is not None:
            yield f"  input         {waiting}"
    if status.output is not None and (status.output.path or status.output.checkpoint_step is not None):
        step = status.output.checkpoint_step
        of = f"step {step} in " if step is not None else ""
        yield f"  checkpoint    {of}{status.output.path}"
    if status.evaluation is not None:
        yield f"  evaluation    step {status.evaluation.step}: {_metrics(status.evaluation.metrics)}"
    restarts = status.restarts
    most = job.spec.get("maxRestarts", 3)
    good = f", {restarts.refunded} more that training has got beyond" if restarts.refunded else ""
    free = f", {restarts.uncharged} that the job isn't charged for" if restarts.uncharged else ""
    last = f", attempt {status.attempt}" if status.attempt else ""
    yield f"  restarts      {used(restarts)} of {most}{good}{free}{last}"


def _progress(progress: Progress, *, going_on: bool) -> str:
    told = []
    if progress.step is not None:
        of = f" of {progress.total_steps}" if progress.total_steps else ""
        told.append(f"step {progress.step}{of}")
    if progress.epoch is not None:
        told.append(f"epoch {progress.epoch}")
    if going_on and progress.examples_per_second is not None:
        told.append(f"{format_rate(progress.examples_per_second)} examples/s")
    if going_on and progress.eta:
        told.append(f"{progress.eta} left")
    if progress.metrics:
        told.append(_metrics(progress.metrics))
    return ", ".join(told)


def _metrics(metrics: dict[str, str]) -> str:
    return ", ".join(format_metric(name, value) for name, value in metrics.items()) or "no metrics"


def _conditions(job: Job, now: datetime) -> Iterator[str]:
    if not job.status.conditions:
        return
    yield "  conditions"
    rows = [("TYPE", "STATUS", "SINCE", "REASON", "MESSAGE")]
    for c in job.status.conditions:
        rows.append((c.type, c.status, short_duration(now - c.last_transition_time), c.reason, c.message))
    yield from (f"    {line}" for line in layout(rows))


def _failure(job: Job) -> Iterator[str]:
    first = job.status.first_failure
    if first is not None and first.rank:
        yield from describe_failure(job, first, advice=job.outcome is Outcome.FAILED)


def _pods(job: Job, pods: Iterable[Pod], now: datetime) -> Iterator[str]:
    progress = job.status.progress or Progress()
    times = {"STEP TIME": progress.step_seconds, "OWN WORK": progress.work_seconds}
    known = {title: seconds for title, seconds in times.items() if seconds}
    rows = [("REPLICA", "STATE", "READY", *known, "NODE", "AGE", "POD")]
    for pod in pods:
        name, ready = pod.replica.name, "yes" if pod.ready else "no"
        taken = (_seconds(seconds.get(name)) for seconds in known.values())
        age = short_duration(now - pod.created_at) if pod.created_at else ""
        rows.append((name, _state(pod), ready, *taken, pod.node, age, pod.name))
    if len(rows) == 1:
        yield "  pods          none"
        return
    yield "  pods"
    yield from (f"    {line}" for line in layout(rows))


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} s"


def _state(pod: Pod) -> str:
    if pod.state is PodState.SUCCEEDED:
        return "finished"
    if pod.state is PodState.FAILED:
        return f"failed ({pod.exit_code if pod.exit_code is not None else pod.reason or 'unknown'})"
    if pod.deleting:
        return "stopping"
    if has_log(pod):
        return "running"
    return why_no_log(pod).partition(":")[0]
