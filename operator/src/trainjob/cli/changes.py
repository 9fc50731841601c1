"""What has changed between two views of a job, one line each, for output without a live display."""

from collections.abc import Iterator

from trainjob.api import FirstFailure
from trainjob.cli.figures import format_metric
from trainjob.cli.view import JobView, ReplicaView
from trainjob.core.reports import EvaluationResult
from trainjob.core.stragglers import describe

# They come and go with every checkpoint; what comes of them is told instead.
_PASSING_STATES = ("preparing", "saving", "evaluating")
_BETWEEN = ("training", "waiting")


def describe_changes(before: JobView | None, after: JobView) -> tuple[str, ...]:
    """Return the lines to print now that the job looks like `after`; `before` is None at the start."""
    return tuple(_lines(before, after))


def describe_evaluation(evaluation: EvaluationResult) -> str:
    """Return `step 440: accuracy 97.5 %, loss 0.0812`."""
    metrics = ", ".join(format_metric(name, value) for name, value in evaluation.metrics.items())
    return f"step {evaluation.step}: {metrics or 'no metrics'}"


def resumed_from(view: JobView) -> int | None:
    """Return the step that training went on from, or None when it started at the beginning."""
    steps = (replica.report.resumed_from for replica in view.replicas)
    return next((step for step in steps if step), None)


def _lines(before: JobView | None, after: JobView) -> Iterator[str]:
    failure = _failure_between(before, after) if before is not None else None
    if failure is not None:
        yield f"{after.name}: Restarting: {failure.message}"
    known = None if before is None else (before.status.state, before.message)
    if after.status.state and known != (after.status.state, after.message):
        yield f"{after.name}: {after.state}" + (f": {after.message}" if after.message else "")
    old = {replica.name: replica for replica in before.replicas} if before else {}
    for replica in after.replicas:
        yield from _replica_lines(old.get(replica.name), replica)
    step = resumed_from(after)
    again = before is None or before.status.attempt != after.status.attempt or resumed_from(before) != step
    if step is not None and again:
        yield f"{after.name}: resumed from step {step}"
    slow_before = {straggler.replica for straggler in before.status.stragglers} if before else set()
    for straggler in after.status.stragglers:
        if straggler.replica not in slow_before:
            yield f"{after.name}: {describe(straggler)}"
    evaluation = after.evaluation
    if evaluation is not None and (before is None or before.evaluation != evaluation):
        final = ", final checkpoint" if evaluation.final else ""
        yield f"{after.name}: evaluation at {describe_evaluation(evaluation)}{final}"


def _failure_between(before: JobView, after: JobView) -> FirstFailure | None:
    """Return the failure after which training runs again already: agents need less time than a view."""
    failure = after.status.first_failure
    is_new = after.status.restarts.last_time != before.status.restarts.last_time
    is_told = failure == before.status.first_failure or (failure and failure.message == after.message)
    return failure if is_new and not is_told else None


def _replica_lines(before: ReplicaView | None, after: ReplicaView) -> Iterator[str]:
    if before is not None and (before.state, before.pod) == (after.state, after.pod):
        return
    if after.state in _PASSING_STATES or after.pod is None:
        return
    is_same_pod = before is not None and before.pod == after.pod
    if before is not None and is_same_pod and before.state in _PASSING_STATES and after.state in _BETWEEN:
        return
    of = f", step {after.report.step}" if after.report.step else ""
    total = f" of {after.report.total_steps}" if of and after.report.total_steps else ""
    yield f"{after.name}: {after.state}{of}{total}"
