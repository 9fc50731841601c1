"""The last words about a job: where everything is, or what failed and what to do."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

from trainjob.api import FirstFailure
from trainjob.cli.advice import HERE
from trainjob.cli.changes import describe_evaluation, resumed_from
from trainjob.cli.view import JobView, ReplicaView
from trainjob.core.conditions import COMPLETE, FAILED, find_condition, is_true
from trainjob.core.policies.success import NO_STEPS
from trainjob.core.topology import EVALUATOR
from trainjob.core.wording import short_duration

_SHOWN_LOG_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where things are, as they are shown.

    Attributes:
        output: the job's output folder, or its `gs://` address.
        has_model: whether the training has left its model there.
        has_checkpoints: whether it has left checkpoints there.
        has_events: whether it has left what TensorBoard shows there.
        logs: the file that keeps each replica's log, by replica.
        tails: the last lines of each pod's log, by pod.
        command: what was typed, to be repeated.
        starts_over: whether that command begins anew each time.
    """

    output: str
    has_model: bool = False
    has_checkpoints: bool = False
    has_events: bool = False
    logs: dict[str, str] = field(default_factory=dict)
    tails: dict[str, tuple[str, ...]] = field(default_factory=dict)
    command: str = "trainjob run FILE"
    starts_over: bool = False


def is_complete(view: JobView) -> bool:
    """Tell whether the job ended well."""
    return is_true(view.status, COMPLETE)


def summarize(view: JobView, places: Places) -> tuple[str, ...]:
    """Return the lines for a job that has ended."""
    lines = _success(view, places) if is_complete(view) else _failure(view, places)
    return tuple(lines)


def summarize_interruption(view: JobView, places: Places) -> tuple[str, ...]:
    """Return the lines for a run that was interrupted."""
    step = view.checkpoint_step
    kept = f" The checkpoint of step {step} is kept in {places.output}/checkpoints." if step else ""
    if places.starts_over:
        again = "this command starts over each time, in a new folder"
    elif step:
        again = f"go on from there with the same command: {places.command}"
    else:
        again = f"start again with the same command: {places.command}"
    return (f"{view.name} was interrupted; all its processes have ended.{kept}", f"  {again}")


def _success(view: JobView, places: Places) -> Iterator[str]:
    steps = max((r.report.step or 0 for r in view.replicas), default=0)
    did = f"{steps} steps in " if steps else "done in "
    since = resumed_from(view)
    yield f"{view.name} is complete: {did}{short_duration(view.elapsed)}" + (
        f", resumed from step {since}" if since else ""
    )
    yield from (f"  stopped early {r.report.stopped_early}" for r in view.replicas if r.report.stopped_early)
    if not _has_reported(view):
        yield f"  {NO_STEPS}"
    yield from _scores(view, places)
    if places.has_model:
        yield f"  model         {places.output}/model"
    if places.has_checkpoints:
        yield f"  checkpoints   {places.output}/checkpoints"
    if places.has_events:
        yield f"  TensorBoard   tensorboard --logdir {places.output}"


def _has_reported(view: JobView) -> bool:
    known = view.status.progress is not None and view.status.progress.step is not None
    return known or view.evaluation is not None or any(r.report.step is not None for r in view.replicas)


def _scores(view: JobView, places: Places) -> Iterator[str]:
    if view.evaluation is not None:
        which = "final checkpoint, " if view.evaluation.final else "not the final checkpoint: "
        yield f"  evaluation    {which}{describe_evaluation(view.evaluation)}"
    evaluators = [replica for replica in view.replicas if replica.name.startswith(f"{EVALUATOR}-")]
    for replica in evaluators:
        if replica.has_failed:
            yield f"  The training is complete, but its evaluation is not: {view.message}."
            yield from _log(replica.name, _tail(replica, places), places)
        elif view.evaluation is None or not view.evaluation.final:
            yield f"  The final checkpoint was not evaluated: {view.message}."


def _failure(view: JobView, places: Places) -> Iterator[str]:
    condition = find_condition(view.status, FAILED)
    message = condition.message if condition else view.message
    yield f"{view.name} failed: {message}"
    first = view.status.first_failure
    if first is None or not first.rank:
        if condition:
            yield f"  reason        {condition.reason}"
        return
    yield f"  first failure {first.rank}, {describe_ending(first)}"
    tail = places.tails.get(first.pod or "") or tuple((first.log_tail or "").splitlines())
    yield from _log(first.rank, tail, places)
    yield f"  what to do    {HERE.on(first.reason or '', first.exit_code, chr(10).join(tail))}"


def describe_ending(failure: FirstFailure) -> str:
    """Return `exit code 1 (Crashed), at step 30`."""
    code = failure.exit_code
    at = f", at step {failure.step}" if failure.step is not None else ""
    if code is None:
        return f"{failure.reason}{at}"
    try:
        how = f"killed by {signal.Signals(code - 128).name}" if code > 128 else ""
    except ValueError:
        how = ""
    return f"{how or f'exit code {code}'} ({failure.reason}){at}"


def _tail(replica: ReplicaView, places: Places) -> tuple[str, ...]:
    return places.tails.get(replica.pod or "") or tuple(replica.message.splitlines())


def _log(replica: str, tail: tuple[str, ...], places: Places) -> Iterator[str]:
    yield from quote_log(replica, tail)
    if replica in places.logs:
        yield f"  whole log     {places.logs[replica]}"


def quote_log(replica: str, tail: tuple[str, ...]) -> Iterator[str]:
    """Yield the last lines of a replica's log, set apart."""
    if tail:
        yield f"  the last lines of {replica}:"
        yield from (f"    | {line}" for line in tail[-_SHOWN_LOG_LINES:])
