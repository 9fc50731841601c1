"""The page of one job: its rows, which `get`, the live display, notebooks and the web page show."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from trainjob.api import Progress
from trainjob.client.presenter import (
    Results,
    Rows,
    brief_message,
    describe_evaluation,
    describe_failure,
    describe_figures,
    describe_resume,
    format_count,
    format_metric,
    last_events,
    main_metric,
    results_of,
    training_phrases,
    write_rows,
)
from trainjob.client.request import describe as describe_request
from trainjob.client.request import describe_environment
from trainjob.client.view import Figures, JobView, ReplicaView, as_number, current_metrics, describe_pod
from trainjob.core.pods import Pod
from trainjob.core.progress import WAITING_FOR_STORAGE
from trainjob.core.stragglers import describe, describe_input
from trainjob.core.wording import count_roles, printable, quoted, short_duration
from trainjob_trainer.contract.curves import read_curves
from trainjob_trainer.contract.replicas import EVALUATOR

_BUSY = ("training", "evaluating", "saving", "preparing", "rereading", "Running", "Evaluating")
_TONES = {
    **dict.fromkeys(_BUSY, "busy"),
    **dict.fromkeys(("finished", "Complete"), "good"),
    **dict.fromkeys(("Failed", "Failing"), "bad"),
    **dict.fromkeys(("Restarting", WAITING_FOR_STORAGE, "Interrupted", "stopping"), "warning"),
}
"""States of jobs and replicas by how they are coloured; all others are `idle`."""

_UNHURRIED = ("running", "training", "finished")
"""Their length is the job's own, or of no interest."""


def describe_phase(replica: ReplicaView, job: JobView) -> str:
    """Return what the replica does, such as `tracing the first step` or `waiting for worker 1`."""
    report, state = replica.report, replica.state
    if report.waiting_for_storage:
        return "training, waiting for storage" if state == "training" else "waiting for storage"
    if state == "waiting":
        if replica.is_evaluator:
            return "waiting for a checkpoint"
        if report.state == "waiting" and report.step is not None:
            return "waiting for the evaluator"  # with the last step taken, for the final result
        done = ("waiting", "preparing", "finished")
        late = [
            each
            for each in job.replicas
            if not (each.is_evaluator or each.is_stepping or each.has_failed or each.state in done)
        ]
        one = late[0].name.replace("-", " ") if len(late) == 1 else f"{len(late)} replicas"
        return f"waiting for {one}" if late else "waiting"
    if state == "rereading" and report.reread_batches:
        return f"rereading, {report.reread_batches} batches so far"
    has_figures = report.step_seconds is not None or report.examples_per_second is not None
    is_at_start = report.step is not None and report.step == (report.resumed_from or 0)
    is_tracing = state in ("starting", "training") and is_at_start and not has_figures
    return "tracing the first step" if is_tracing else state


_SMALLER = ("loss", "error", "mse", "mae", "rmse", "mape", "perplexity")
_LARGER = ("accuracy", "acc", "precision", "recall", "auc", "f1", "f1_score", "r2", "r2_score", "iou")
_RATE_SECONDS = 30.0
_MOST_POINTS = 4000


def direction(metric: str) -> int:
    """Return 1 if larger is better, -1 if smaller is, 0 if that is unknown."""
    name = metric.lower()
    if name.endswith(_SMALLER):
        return -1
    return 1 if name.endswith(_LARGER) else 0


class JobHistory:
    """What one view alone doesn't show; call `observe` with each view.

    Attributes:
        best: value and step by metric, of the evaluator's results and of validations (both `val_...`).
            Values within an epoch are averages over its first batches, so the best of them says nothing.
        figures: those of the latest view in which a replica has a step.
        curves: of a job whose output isn't here: the metrics of all views, by name and step; once training
            is over those that its status has.
    """

    def __init__(self) -> None:
        self.best: dict[str, tuple[float, int]] = {}
        self.figures = Figures()
        self.curves: dict[str, dict[int, float]] = {}
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
            self._score(job.evaluation.step, {f"val_{k}": v for k, v in job.evaluation.metrics.items()})
        if (lead := job.lead) is not None:
            self.figures = job.figures
            own = lead.report.metrics or {}
            self._score(lead.report.step, {k: v for k, v in own.items() if k.startswith("val_")})
        self._add_points(job)
        self._sample(lead.report.step if lead is not None and lead.is_stepping else None)

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

    def _score(self, step: int | None, metrics: Mapping[str, float | str] | Mapping[str, str]) -> None:
        for name, text in metrics.items():
            sign, value = direction(name), as_number(text)
            if not sign or value is None or not math.isfinite(value) or step is None:
                continue
            if name not in self.best or sign * value > sign * self.best[name][0]:
                self.best[name] = value, step

    def _add_points(self, job: JobView) -> None:
        """Add to the curves; steps that training repeats replace the earlier ones."""
        if job.status.curves:
            self.curves |= read_curves(job.status.curves)
            return
        scored = job.evaluation.step if job.evaluation is not None else job.figures.step
        for name, value in current_metrics(job).items():
            step = scored if name.startswith("val_") else job.figures.step
            if step is None:
                continue
            curve = self.curves.setdefault(name, {})
            for later in [known for known in curve if known > step]:
                del curve[later]
            curve[step] = value
            if len(curve) > _MOST_POINTS:
                self.curves[name] = dict([*curve.items()][::2])

    def _sample(self, step: int | None) -> None:
        if step is None or (self._steps and step < self._steps[-1][1]):
            self._steps.clear()
            return
        if self._steps and step == self._steps[-1][1]:
            return
        self._steps.append((self._now, step))
        while self._now - self._steps[0][0] > _RATE_SECONDS and len(self._steps) > 2:
            self._steps.popleft()


@dataclass(frozen=True)
class ReplicaRow:
    """A replica, several that do the same, or a pod: its cells by title, and how its state is coloured."""

    cells: Mapping[str, str]
    tone: str


@dataclass(frozen=True, kw_only=True)
class Page:
    """One job as rows; no text has control characters.

    Attributes:
        state: in one word.
        tone: how the state is coloured: `busy`, `good`, `bad`, `warning` or `idle`.
        message: the state in one sentence.
        about: phrases beside the state, such as `attempt 2`.
        share: the part of the steps that is done.
        training: phrases such as `step 120/440` and `2m left`.
        metrics: phrases such as `loss 0.5`.
        rows: everything that has a name, and its text; a name may come more than once.
        replicas: of a run here its replicas; of a job in a cluster its pods, as far as they are given.
        events: the last unusual ones, each with its local time.
    """

    name: str
    state: str
    tone: str
    message: str
    about: tuple[str, ...]
    share: float | None
    training: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]
    replicas: tuple[ReplicaRow, ...]
    events: tuple[str, ...]

    def texts(self, *names: str) -> list[str]:
        """Return the texts of the rows with these names."""
        return [text for name, text in self.rows if name in names]


def build_page(
    job: JobView,
    history: JobHistory | None = None,
    *,
    pods: Iterable[Pod] = (),
    results: Results | None = None,
    now: datetime | None = None,
    grouped: bool = False,
) -> Page:
    """Return the page.

    Args:
        job: its current state.
        history: of its earlier views, this one included.
        pods: of a job in a cluster: those to show.
        results: where its output and its logs are.
        now: without it nothing has an age.
        grouped: more than six replicas are summed up by role and phase.
    """
    status, history = job.status, history or JobHistory()
    figures = history.figures if history.figures.step is not None else job.figures
    left, time_left = status.progress.eta if status.progress else None, history.time_left(job)
    left = short_duration(time_left) if time_left is not None else left or ""
    step, total, restarts = figures.step, figures.total_steps, status.restarts.counted
    evaluation = job.last_evaluation
    is_here, workers = bool(job.replicas or job.folder), status.worker.summary if status.worker else ""
    saved, path = job.checkpoint_step, status.output.path if status.output and not is_here else ""
    rows = (
        ("folder", results.output if results is not None else job.folder)
        if is_here
        else ("namespace", job.namespace),
        ("request", quoted(describe_request(job.request))),
        ("environment", quoted(describe_environment(job.request))),
        ("time", "; ".join(_ages(job, now)) if now is not None else ""),
        ("workers", workers and f"{workers}{'' if job.is_over else ' ready'}" if not is_here else ""),
        ("progress", describe_figures(job, left)),
        *(() if job.is_over else _warnings(job)),
        ("checkpoint", f"step {saved}{path and f' in {path}'}" if saved is not None else path),
        ("evaluation", describe_evaluation(evaluation) if evaluation is not None else ""),
        ("best", ", ".join(_best(job, figures, history))),
        ("restarts", _describe_restarts(job)),
        *(("notice", each) for each in status.notices),
    )
    about = (
        f"attempt {status.attempt}" if status.attempt else "",
        f"{restarts} restart{'' if restarts == 1 else 's'}" if restarts else "",
        short_duration(job.elapsed) if job.elapsed is not None else "",
        describe_resume(job),
    )
    training = (
        *training_phrases(job, figures, left, "/"),
        f"saved at {saved}" if saved is not None else "",
        f"{workers} workers ready" if workers and not (is_here or job.is_over) else "",
    )
    if job.replicas:
        replicas = _replica_rows(job, history, results.logs if results is not None else {}, grouped=grouped)
    else:
        replicas = _pod_rows(job, pods, now)
    return Page(
        name=printable(job.name),
        state=printable(job.state),
        tone=_TONES.get(job.state, "idle"),
        message=printable(brief_message(job)),
        about=tuple(filter(None, about)),
        share=min(step / total, 1.0) if step is not None and total else None,
        training=_printable(training),
        metrics=_printable(format_metric(*metric) for metric in figures.metrics.items()),
        rows=tuple((name, printable(text)) for name, text in rows if text),
        replicas=tuple(replicas),
        events=_printable(last_events((e for e in job.events if e.reason not in _USUAL), _SHOWN_EVENTS)),
    )


def _printable(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(printable(text) for text in texts if text)


def _ages(job: JobView, now: datetime) -> Iterator[str]:
    start, end = job.status.start_time, job.status.completion_time
    if job.created_at is not None:
        yield f"created {short_duration(now - job.created_at)} ago"
    if start and end:
        yield f"took {short_duration(end - start)}, ended {short_duration(now - end)} ago"
    elif start and not job.is_over:
        yield f"started {short_duration(now - start)} ago"


def _warnings(job: JobView) -> Rows:
    progress = job.status.progress or Progress()
    yield from (("straggler", describe(each)) for each in job.status.stragglers)
    steps: Mapping[str, float | None] = progress.step_seconds
    waits: Mapping[str, float | None] = progress.input_seconds
    if job.replicas:
        reports = {each.name: each.report for each in job.replicas if each.is_stepping}
        steps = {name: report.step_seconds for name, report in reports.items()}
        waits = {name: report.input_seconds for name, report in reports.items()}
    if (waiting := describe_input(steps, waits)) is not None:
        yield "input", waiting


def _best(job: JobView, figures: Figures, history: JobHistory) -> Iterator[str]:
    scores = job.evaluation.metrics if job.evaluation is not None else {}
    latest = {**figures.metrics, **{f"val_{name}": value for name, value in scores.items()}}
    for name, (value, step) in history.best.items():
        if as_number(latest.get(name)) != value:
            yield f"{format_metric(name, value)} at step {step}"


def _describe_restarts(job: JobView) -> str:
    restarts, attempt = job.status.restarts, job.status.attempt
    reset = f", {restarts.reset} reset by later progress" if restarts.reset else ""
    uncounted = f", {restarts.not_counted} not counted" if restarts.not_counted else ""
    last = f", attempt {attempt}" if attempt else ""
    return f"{restarts.counted} of {job.spec.get('maxRestarts', 3)}{reset}{uncounted}{last}"


_SINGLY = 6
_RANGES = 3


def _replica_rows(
    job: JobView, history: JobHistory, logs: Mapping[str, str], *, grouped: bool
) -> Iterator[ReplicaRow]:
    def kind(replica: ReplicaView) -> tuple[bool, str, str]:
        role = replica.name.rpartition("-")[0]
        return role == EVALUATOR, role, describe_phase(replica, job)

    groups = [[each] for each in job.replicas]
    if grouped and len(groups) > _SINGLY:
        groups = [list(group) for _, group in groupby(sorted(job.replicas, key=kind), kind)]
    for group in groups:
        first, report = group[0], group[0].report
        steps = [each.report.step for each in group if each.report.step is not None]
        total = next((each.report.total_steps for each in group if each.report.total_steps), None)
        low, high = min(steps, default=None), max(steps, default=None)
        cells = {
            "replica": first.name if len(group) == 1 else _names(group),
            "state": max((history.phase(each, job) for each in group), key=len),
            "step": ("" if low == high else f"{low}-") + format_count(high, total),
            "loss": "" if report.loss is None or len(group) > 1 else f"{report.loss:.4f}",
            "log": logs.get(first.name, ""),
        }
        yield _row(cells, "bad" if first.has_failed else _TONES.get(first.state, "idle"))


def _names(replicas: Sequence[ReplicaView]) -> str:
    """Return `worker 0-5,7`, or `12 workers` if that would be long."""
    role = replicas[0].name.rpartition("-")[0]
    numbers = sorted(int(each.name.rpartition("-")[2]) for each in replicas)
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    if len(runs) > _RANGES:
        return count_roles({role: len(replicas)})
    return f"{role} {','.join(f'{run[0]}' if len(run) == 1 else f'{run[0]}-{run[-1]}' for run in runs)}"


def _pod_rows(job: JobView, pods: Iterable[Pod], now: datetime | None) -> Iterator[ReplicaRow]:
    progress = job.status.progress or Progress()
    for pod in pods:
        cells = {
            "replica": pod.replica.name,
            "state": describe_pod(pod),
            "ready": "yes" if pod.ready else "no",
            "step time": _seconds(progress.step_seconds.get(pod.replica.name)),
            "own work": _seconds(progress.work_seconds.get(pod.replica.name)),
            "node": pod.node,
            "age": short_duration(now - pod.created_at) if now and pod.created_at else "",
            "pod": pod.name,
        }
        yield _row(cells, "bad" if pod.exit_code else "idle")


def _row(cells: Mapping[str, str], tone: str) -> ReplicaRow:
    return ReplicaRow({title: printable(text) for title, text in cells.items()}, tone)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} s"


_SHOWN_EVENTS = 3
_USUAL = ("Created", "Started", "TrainingFinished", "Complete", "Failed")
"""The display's first lines and the job's end say this."""


def describe_job(job: JobView, pods: Iterable[Pod], now: datetime) -> tuple[str, ...]:
    """Return the lines of one job in full; `pods` are those of a job in a cluster."""
    results = results_of(job)
    page = build_page(job, pods=pods, results=results, now=now)
    state = f"{page.state}, being deleted" if job.deleting else page.state
    lines = [f"{page.name}   {state}" + (f": {page.message}" if page.message else ""), *write_rows(page.rows)]
    if job.status.conditions:
        table = [("TYPE", "STATUS", "SINCE", "REASON", "MESSAGE")]
        for c in job.status.conditions:
            table.append(
                (c.type, c.status, short_duration(now - c.last_transition_time), c.reason, c.message)
            )
        lines += ["  conditions", *(f"    {line}" for line in layout(table))]
    lines += describe_failure(job, results)
    rows, what = [row.cells for row in page.replicas], "replicas" if job.replicas else "pods"
    if rows:
        titles = [title for title in rows[0] if any(row[title] for row in rows)]
        cells = [[row[title] for title in titles] for row in rows]
        lines += [f"  {what}", *(f"    {line}" for line in layout([list(map(str.upper, titles)), *cells]))]
    else:
        lines += write_rows([(what, "none")])
    return tuple(map(printable, lines))


def cells_of(job: JobView, now: datetime | None = None) -> dict[str, str]:
    """Return what tables of jobs have of one job, by the columns' titles; without `now` it has no age."""
    figures, score, worker = job.figures, job.last_evaluation, job.status.worker
    return {
        "NAMESPACE": job.namespace,
        "NAME": job.name,
        "STATE": "Terminating" if job.deleting else job.state,
        "WORKERS": worker.summary if worker else "",
        "STEP": format_count(figures.step, figures.total_steps),
        "SCORE": main_metric(score.metrics) if score is not None else "",
        "ETA": (job.status.progress.eta if job.status.progress and not job.is_over else None) or "",
        "RESTARTS": str(job.status.restarts.counted),
        "AGE": short_duration(now - job.created_at) if now and job.created_at else "",
        "MESSAGE": printable(job.message).replace("\n", " "),
    }


def layout(rows: Iterable[Sequence[str]], widths: Sequence[int] = ()) -> Iterator[str]:
    """Yield the rows with aligned columns, at least as wide as `widths`."""
    every = [[cell or "-" for cell in row] for row in rows]
    wide = column_widths(every, widths)
    for row in every:
        yield "   ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip()


def column_widths(rows: Sequence[Sequence[str]], least: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the width of each column."""
    columns = tuple(max(map(len, column)) for column in zip(*rows, strict=True))
    return tuple(map(max, columns, least)) if least else columns
