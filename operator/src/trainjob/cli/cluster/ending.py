"""The last words about a job in a cluster: what came of it, or what failed and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from trainjob.api import FirstFailure
from trainjob.cli.advice import ON_CLUSTER
from trainjob.cli.cluster.reading import Job, Outcome
from trainjob.cli.figures import format_metric
from trainjob.cli.summary import describe_ending, quote_log
from trainjob.core.conditions import COMPLETE, FAILED, find_condition
from trainjob.core.topology import EVALUATOR
from trainjob.core.wording import short_duration


def describe_end(job: Job) -> tuple[str, ...]:
    """Return the lines for a job that is over."""
    lines = _success(job) if job.outcome is Outcome.COMPLETE else _failure(job)
    return tuple(lines)


def describe_deletion(name: str, last: Job | None, *, replaced: bool = False) -> str:
    """Return the sentence for a job that was deleted while somebody waited for it."""
    known = f" (last seen: {last.state}{_told(last)})" if last else ""
    again = "; another job of that name is there now" if replaced else ""
    return f"{name} was deleted{known}{again}"


def describe_failure(job: Job, first: FirstFailure, *, advice: bool = True) -> Iterator[str]:
    """Yield the lines about the replica that failed first."""
    node = f", on node {first.node}" if first.node else ""
    yield f"  first failure {first.rank}, {describe_ending(first)}{node}"
    tail = tuple((first.log_tail or "").splitlines())
    yield from quote_log(first.rank, tail)
    role, _, index = first.rank.rpartition("-")
    yield f"  whole log     trainjob logs {job.name} -n {job.namespace} --role {role} --index {index}"
    if advice:
        yield f"  what to do    {ON_CLUSTER.on(first.reason, first.exit_code, first.log_tail)}"


def _told(job: Job) -> str:
    return f", {job.status.message}" if job.status.message else ""


def _success(job: Job) -> Iterator[str]:
    status = job.status
    condition = find_condition(status, COMPLETE)
    message = f": {condition.message}" if condition and condition.message else ""
    yield f"{job.name} is complete{_took(job)}{message}"
    if status.evaluation is not None:
        metrics = ", ".join(format_metric(name, value) for name, value in status.evaluation.metrics.items())
        yield f"  evaluation    step {status.evaluation.step}: {metrics or 'no metrics'}"
    elif _has_evaluator(job):
        yield "  evaluation    none was reported"
    if status.output is not None and status.output.path:
        yield f"  checkpoints   {status.output.path}/checkpoints"


def _failure(job: Job) -> Iterator[str]:
    condition = find_condition(job.status, FAILED)
    yield f"{job.name} failed{_took(job)}: {condition.message if condition else job.status.message or ''}"
    first = job.status.first_failure
    if first is not None and first.rank:
        yield from describe_failure(job, first)
    elif condition:
        yield f"  reason        {condition.reason}"


def _took(job: Job) -> str:
    start, end = job.status.start_time, job.status.completion_time
    return f" after {short_duration(end - start)}" if start and end else ""


def _has_evaluator(job: Job) -> bool:
    role = job.spec.get(EVALUATOR)
    return not isinstance(role, dict) or role.get("replicas", 1) != 0
