"""`trainjob compare`: what differs between runs and jobs, and their figures beside each other."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from trainjob.cli.documents import UnreadableFile
from trainjob.cli.ending import ABOUT_A_JOB, Exit, command, like_ctrl_c, print_lines
from trainjob.cli.options import cluster_options
from trainjob.client.connection import ClusterOptions
from trainjob.client.handle import find_handle
from trainjob.client.history import History, metric_names
from trainjob.client.output import open_output
from trainjob.client.page import cells_of, direction, layout
from trainjob.client.presenter import brief_message, format_metric, write_rows
from trainjob.client.problems import ClusterProblem
from trainjob.client.request import compare as differences
from trainjob.client.request import describe
from trainjob.client.view import JobView, current_metrics
from trainjob.core.wording import quoted, short_duration
from trainjob_trainer.contract.curves import read_curves


@dataclass(frozen=True)
class Compared:
    """One of the runs and jobs that are compared.

    Attributes:
        name: in the table and the legend.
        job: its state.
        curves: its metrics over the steps, as far as they are known.
        problem: why its curves can't be read.
    """

    name: str
    job: JobView
    curves: History
    problem: str = ""


def describe_comparison(runs: Sequence[Compared], now: datetime) -> Iterator[str]:
    """Yield the lines: state and request of each, how it differs from the first one, and the figures."""
    for run in runs:
        yield f"{run.name}   {': '.join(filter(None, (run.job.state, brief_message(run.job))))}"
        rows = [("request", describe(run.job.request))]
        if run is not runs[0]:
            found = differences(runs[0].job.request, run.job.request).all or ("nothing: the same request",)
            rows += [("" if number else "differs in", phrase) for number, phrase in enumerate(found)]
        rows.append(("figures", run.problem and f"from its status only: {run.problem}"))
        yield from write_rows((name, quoted(text)) for name, text in rows if text)
    yield ""
    yield from layout(build_table(runs, now))


_MOST_METRICS = 12
"""In the table, which is to fit on a screen."""


def build_table(runs: Sequence[Compared], now: datetime) -> list[tuple[str, ...]]:
    """Return the rows, each with a name and a cell for each run; of a metric the latest value and the best.

    Which value is the best isn't known of every metric; its row is left out then.
    """
    cells = [cells_of(run.job) for run in runs]
    rows = [
        ("run", *(run.name for run in runs)),
        ("steps", *(each["STEP"] for each in cells)),
        ("time trained", *(_time_trained(run.job, now) for run in runs)),
        ("restarts", *(each["RESTARTS"] for each in cells)),
    ]
    latest = [
        {name: [*curve.values()][-1] for name, curve in run.curves.items()} or current_metrics(run.job)
        for run in runs
    ]
    names = metric_names(name for found in latest for name in found)
    for name in (f"{prefix}{name}" for name in names[:_MOST_METRICS] for prefix in ("", "val_")):
        if any(name in found for found in latest):
            rows.append((name, *(_format(name, found.get(name)) for found in latest)))
            best = tuple(_best(name, run.curves.get(name, {})) for run in runs)
            rows += [("  best", *best)] if any(best) else []
    if (more := len(names) - _MOST_METRICS) > 0:
        rows.append((f"{more} more metrics: see --picture", *("" for _ in runs)))
    return rows


def _time_trained(job: JobView, now: datetime) -> str:
    spent, start = job.status.state_seconds, job.status.start_time
    if spent.since is None:
        return ""
    if job.interrupted and start and job.elapsed is not None:
        now = start + job.elapsed  # as its record has it
    going_on = max(now - spent.since, timedelta(0)) if job.status.state == "Running" else timedelta(0)
    return short_duration(timedelta(seconds=spent.training) + going_on)


def _best(name: str, curve: dict[int, float]) -> str:
    sign, points = direction(name), [point for point in curve.items() if math.isfinite(point[1])]
    if not sign or not points:
        return ""
    step, value = max(points, key=lambda point: sign * point[1])
    return f"{_format(name, value)} at {step}"


def _format(name: str, value: float | None) -> str:
    return "" if value is None else format_metric(name, value).removeprefix(f"{name} ")


@command(
    "Compare runs: their requests and their metrics.",
    *ABOUT_A_JOB,
    Exit.NOBODY_READS,
    good="printed",
    failed="there is no curve to draw",
    usage="the command line is wrong, or FILE can't be written",
)
@click.argument("earlier")
@click.argument("later")
@click.argument("more", nargs=-1)
@click.option(
    "--picture",
    metavar="FILE.svg",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw a chart for each metric, with a line for each run, into this file.",
)
@cluster_options
def compare(
    earlier: str, later: str, more: tuple[str, ...], picture: Path | None, where: ClusterOptions
) -> None:
    """Print how the requests of LATER, and of each of MORE, differ from EARLIER's, and the metrics of all.

    Each is a run on this machine or, if there is none of that name, a job in the cluster. For each metric the
    table has the latest value, and the best one with its step. A pod with the job's image reads the curves of
    a job in a cluster, as for `trainjob cp`. Where that isn't possible, the table has the metrics of its
    status.
    """
    if picture is not None and picture.suffix != ".svg":
        raise click.UsageError(f"--picture draws SVG: name a file such as {picture.stem}.svg")
    names = (earlier, later, *more)

    async def read(name: str) -> Compared:
        async with find_handle(name, where, on_problem=_say) as handle:
            job = await handle.view()
            try:
                async with open_output(handle, job, _say) as output:
                    return Compared(job.name, job, await output.history(_say))
            except ClusterProblem as problem:
                return Compared(job.name, job, read_curves(job.status.curves), str(problem))

    async def work() -> list[Compared]:
        with like_ctrl_c():
            return [await read(name) for name in names]

    runs = asyncio.run(work())
    counts = Counter(run.name for run in runs)
    runs = [
        replace(run, name=name) if counts[run.name] > 1 else run
        for name, run in zip(names, runs, strict=True)
    ]
    print_lines(describe_comparison(runs, datetime.now(UTC)), err=False)
    if picture is not None:
        _draw(runs, picture)


def _draw(runs: Sequence[Compared], picture: Path) -> None:
    from trainjob.client.drawing import draw_charts  # noqa: PLC0415 - rich is slow to import

    labels = (": ".join(filter(None, (run.name, describe(run.job.request)))) for run in runs)
    drawn = draw_charts([(label, run.curves) for label, run in zip(labels, runs, strict=True)])
    if not drawn:
        raise ClusterProblem(f"{picture} was not written: none of these runs has a curve")
    try:
        picture.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise UnreadableFile(f"{picture}: can't be written: {error.strerror or error}") from error


def _say(text: str) -> None:
    print_lines([f"trainjob: {text}"], err=True)
