"""What the display of a run shows: phases, time left, best metrics, replicas in short, and last events."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING

from trainjob.client.presenter import format_count, format_metric, format_rate, time_of_day
from trainjob.client.view import JobView, ReplicaView
from trainjob.core.wording import count_roles, short_duration
from trainjob_trainer.contract.replicas import EVALUATOR
from trainjob_trainer.contract.reports import Report

if TYPE_CHECKING:
    from trainjob.cluster.protocol import PostedEvent

# What a replica does.


STEPPING = ("training", "saving", "evaluating")
"""In other states the figures of the last step are out of date."""

_BEFORE_FIRST_STEP = ("starting", "training")
_UNHURRIED = ("running", "training", "finished")
"""Their length is the job's own, or of no interest."""


def describe_phase(replica: ReplicaView, job: JobView) -> str:
    """Return what the replica does, such as `tracing the first step` or `waiting for worker 1`."""
    report, state = replica.report, replica.state
    if report.waiting_for_storage:
        return "training, waiting for storage" if state == "training" else "waiting for storage"
    if state == "waiting":
        return _waiting(replica, job)
    if state == "rereading" and report.reread_batches:
        return f"rereading, {format_count(report.reread_batches, None, '')} batches so far"
    if state in _BEFORE_FIRST_STEP and _is_before_first_step(report):
        return "tracing the first step"
    return state


def _is_before_first_step(report: Report) -> bool:
    """Return whether the process knows where it starts, and hasn't finished a step."""
    has_figures = report.step_seconds is not None or report.examples_per_second is not None
    return report.step is not None and report.step == (report.resumed_from or 0) and not has_figures


def _waiting(replica: ReplicaView, job: JobView) -> str:
    if replica.is_evaluator:
        return "waiting for a checkpoint"
    if replica.report.state == "waiting" and replica.report.step is not None:
        return "waiting for the evaluator"  # with the last step taken, for the final result
    late = [each for each in job.replicas if not each.is_evaluator and _is_late(each)]
    if not late:
        return "waiting"
    one = late[0].name.replace("-", " ")
    return f"waiting for {one if len(late) == 1 else f'{len(late)} replicas'}"


def _is_late(replica: ReplicaView) -> bool:
    is_up = replica.state in (*STEPPING, "waiting", "preparing", "finished")
    return not is_up and not replica.has_failed


def leading_replica(replicas: Iterable[ReplicaView]) -> ReplicaView | None:
    """Return the chief, or worker 0 if there is none."""
    named = {each.name: each for each in replicas}
    return named.get("chief-0") or named.get("worker-0")


# What earlier views have shown.


_SMALLER = ("loss", "error", "mse", "mae", "rmse", "mape", "perplexity")
_LARGER = ("accuracy", "acc", "precision", "recall", "auc", "f1", "f1_score", "r2", "r2_score", "iou")
_RATE_SECONDS = 30.0
_SAMPLE_SECONDS = 1.0


def direction(metric: str) -> int:
    """Return 1 if larger is better, -1 if smaller is, 0 if that is unknown."""
    name = metric.lower()
    if name.endswith(_SMALLER):
        return -1
    return 1 if name.endswith(_LARGER) else 0


@dataclass(frozen=True)
class Best:
    """The best value of a metric so far, and its step."""

    value: float
    step: int


class History:
    """What one view alone doesn't show; call `observe` with each view.

    Attributes:
        best: by metric: of the evaluator's results and of validations (`val_...`). Values within an epoch are
            averages over its first batches, so the smallest or largest of them says nothing.
        figures: the latest report of the leading replica that has a step, or an empty one.
    """

    def __init__(self) -> None:
        self.best: dict[str, Best] = {}
        self.figures = Report()
        self._phases: dict[str, tuple[tuple[str, str | None], float]] = {}
        self._steps: deque[tuple[float, int]] = deque()
        self._now = 0.0

    def observe(self, job: JobView) -> None:
        """Record a view; views come in the order of their `elapsed`."""
        self._now = job.elapsed.total_seconds() if job.elapsed is not None else self._now
        for replica in job.replicas:
            phase = describe_phase(replica, job), replica.pod
            if self._phases.get(replica.name, (None, 0.0))[0] != phase:
                self._phases[replica.name] = phase, self._now
        if job.evaluation is not None:
            self._score(job.evaluation.step, job.evaluation.metrics)
        leader = leading_replica(job.replicas)
        report = leader.report if leader is not None else Report()
        if report.step is not None:
            self.figures = report
            validations = {k: v for k, v in (report.metrics or {}).items() if k.startswith("val_")}
            self._score(report.step, validations)
        self._sample(report.step if leader is not None and leader.state in STEPPING else None)

    def phase(self, replica: ReplicaView, job: JobView) -> str:
        """Return what the replica does, with the time since it began where people wait for it."""
        phase = describe_phase(replica, job)
        _, since = self._phases.get(replica.name, (None, self._now))
        seconds = int(self._now - since)
        if seconds < 1 or job.is_over or replica.exit_code is not None or phase in _UNHURRIED:
            return phase
        return f"{phase} {short_duration(timedelta(seconds=seconds))}"

    def time_left(self, job: JobView) -> timedelta | None:
        """Return the time until the last step at the speed of the last half minute, or None if unknown."""
        total = self.figures.total_steps
        if job.is_over or total is None or len(self._steps) < 2:
            return None
        (then, before), (now, step) = self._steps[0], self._steps[-1]
        if step <= before or step >= total:
            return None
        return timedelta(seconds=(total - step) * (now - then) / (step - before))

    def _score(self, step: int | None, metrics: Mapping[str, float] | Mapping[str, str]) -> None:
        for name, text in metrics.items():
            sign, known = direction(name), self.best.get(name)
            try:
                value = float(text)
            except ValueError:
                continue
            if (
                sign
                and math.isfinite(value)
                and step is not None
                and (known is None or sign * value > sign * known.value)
            ):
                self.best[name] = Best(value, step)

    def _sample(self, step: int | None) -> None:
        if step is None or (self._steps and step < self._steps[-1][1]):
            self._steps.clear()
            return
        if self._steps and step == self._steps[-1][1]:
            return
        if len(self._steps) > 1 and self._steps[-1][0] - self._steps[-2][0] < _SAMPLE_SECONDS:
            self._steps.pop()
        self._steps.append((self._now, step))
        while self._now - self._steps[0][0] > _RATE_SECONDS and len(self._steps) > 2:
            self._steps.popleft()


# Figures of the whole job, as phrases of which a line shows as many as fit.


def describe_training(job: JobView, history: History) -> tuple[str, ...]:
    """Return phrases such as `50 %`, `1m10s left` and `epoch 10/20`; the first is the most important."""
    figures, left = history.figures, history.time_left(job)
    is_stepping = any(each.state in STEPPING for each in job.replicas if not each.is_evaluator)
    speed = figures.examples_per_second
    return tuple(
        filter(
            None,
            (
                f"step {format_count(figures.step, figures.total_steps)}" if figures.step is not None else "",
                f"{short_duration(left)} left" if left is not None else "",
                f"epoch {format_count(figures.epoch, figures.total_epochs)}" if figures.epoch else "",
                f"{format_rate(speed)} examples/s"
                if speed is not None and (is_stepping or job.is_over)
                else "",
                f"saved at {job.checkpoint_step}" if job.checkpoint_step is not None else "",
            ),
        )
    )


def describe_scores(history: History) -> tuple[str, ...]:
    """Return the leading replica's loss and metrics, such as `loss 0.0812`."""
    figures = history.figures
    loss = () if figures.loss is None else (format_metric("loss", figures.loss),)
    return (*loss, *(format_metric(name, value) for name, value in (figures.metrics or {}).items()))


def describe_best(job: JobView, history: History) -> tuple[str, ...]:
    """Return the best metrics so far that aren't the latest, such as `accuracy 97.5 % at step 220`."""
    scores = job.evaluation.metrics if job.evaluation is not None else {}
    latest: dict[str, float | str] = {**(history.figures.metrics or {}), **scores}
    return tuple(
        f"{format_metric(name, best.value)} at step {best.step}"
        for name, best in history.best.items()
        if float(latest.get(name, "nan")) != best.value
    )


# Rows of the table: one for each replica, or for those of a role that do the same.


_SINGLY = 6
_RANGES = 3


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        name: of the replica, or of several.
        state: what they do, in words.
        replica: the first of them.
        step: as `3/10` or `3-5/10`.
        loss: of a single replica.
    """

    name: str
    state: str
    replica: ReplicaView
    step: str
    loss: str


def table_rows(job: JobView, history: History) -> tuple[Row, ...]:
    """Return the rows; more than `_SINGLY` replicas are summed up by role and phase."""
    if len(job.replicas) <= _SINGLY:
        return tuple(_row([each], job, history) for each in job.replicas)
    ordered = sorted(job.replicas, key=lambda each: _kind(each, job))
    return tuple(_row(list(group), job, history) for _, group in groupby(ordered, lambda e: _kind(e, job)))


def _kind(replica: ReplicaView, job: JobView) -> tuple[bool, str, str]:
    role = replica.name.rpartition("-")[0]
    return role == EVALUATOR, role, describe_phase(replica, job)


def _row(replicas: Sequence[ReplicaView], job: JobView, history: History) -> Row:
    first = replicas[0]
    steps = [each.report.step for each in replicas if each.report.step is not None]
    total = next((each.report.total_steps for each in replicas if each.report.total_steps), None)
    loss = first.report.loss if len(replicas) == 1 else None
    step = ""
    if steps:
        low, high = min(steps), max(steps)
        step = format_count(low, total) if low == high else f"{low}-{format_count(high, total)}"
    longest = max(replicas, key=lambda each: len(history.phase(each, job)))
    name = first.name if len(replicas) == 1 else _names(replicas)
    return Row(name, history.phase(longest, job), first, step, "" if loss is None else f"{loss:.4f}")


def _names(replicas: Sequence[ReplicaView]) -> str:
    """Return `worker 0-5,7`, or `12 workers` if that would be long."""
    role = replicas[0].name.rpartition("-")[0]
    numbers = sorted(int(each.name.rpartition("-")[2]) for each in replicas)
    ranges = list(_ranges(numbers))
    if len(ranges) > _RANGES:
        return count_roles({role: len(replicas)})
    return f"{role} {','.join(ranges)}"


def _ranges(numbers: Iterable[int]) -> Iterator[str]:
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        yield f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}"


# Events.


_USUAL = ("Created", "Started", "TrainingFinished", "Complete", "Failed")
"""The display's first lines and the job's end say this."""


def last_events(events: Sequence[PostedEvent], most: int) -> tuple[str, ...]:
    """Return the last unusual events, each with its local time, and how many came before."""
    shown = [event for event in events if event.reason not in _USUAL]
    earlier = len(shown) - most
    lines = [f"{time_of_day(event.at)} {event.message}" for event in shown[-most:]]
    return (*([f"{earlier} earlier event{'' if earlier == 1 else 's'}"] if earlier > 0 else []), *lines)
