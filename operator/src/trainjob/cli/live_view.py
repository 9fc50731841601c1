"""A job's view as a picture for the terminal."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainjob.cli.changes import describe_evaluation, resumed_from
from trainjob.cli.figures import format_rate
from trainjob.cli.view import JobView, ReplicaView
from trainjob.core.input_bound import describe_input
from trainjob.core.stragglers import describe
from trainjob.core.wording import short_duration

_BAR_WIDTH = 10
_STEPPING = ("training", "saving")
"""Others have taken their last step some time ago."""
_SHOWN_STRAGGLERS = 3

_STYLES = {
    "training": "green",
    "evaluating": "green",
    "saving": "green",
    "preparing": "green",
    "finished": "bold green",
    "Running": "green",
    "Complete": "bold green",
    "Failed": "bold red",
    "Restarting": "yellow",
    "stopping": "yellow",
}


def draw(view: JobView, lines: Iterable[tuple[str, str]] = ()) -> RenderableType:
    """Return the picture: header, replicas, latest evaluation, and the given last lines of their logs."""
    parts: list[RenderableType] = [_header(view)]
    if view.message:
        parts.append(Text(view.message, overflow="ellipsis"))
    parts.append(_table(view))
    parts += [Text(describe(each), style="yellow") for each in view.status.stragglers[:_SHOWN_STRAGGLERS]]
    if (told := _input(view.replicas)) is not None:
        parts.append(Text(told, style="yellow"))
    if view.evaluation is not None:
        final = " (final)" if view.evaluation.final else ""
        parts.append(Text(f"evaluation at {describe_evaluation(view.evaluation)}{final}"))
    for replica, line in lines:
        text = Text(no_wrap=True, overflow="ellipsis")
        parts.append(text.append(f"{replica} | ", style="dim").append(line))
    return Group(*parts)


def _header(view: JobView) -> Text:
    text = Text.assemble((view.name, "bold"), "  ", (view.state, _STYLES.get(view.state, "")))
    facts = [f"attempt {view.status.attempt or 1}", short_duration(view.elapsed)]
    if view.restarts:
        facts.insert(1, f"{view.restarts} restart{'' if view.restarts == 1 else 's'}")
    step = resumed_from(view)
    if step:
        facts.append(f"resumed from step {step}")
    return text.append("  " + "  ".join(facts), style="dim")


def _input(replicas: Iterable[ReplicaView]) -> str | None:
    reports = {each.name: each.report for each in replicas if each.state in _STEPPING}
    return describe_input(
        {name: report.step_seconds for name, report in reports.items()},
        {name: report.input_seconds for name, report in reports.items()},
    )


def _table(view: JobView) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("replica", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("", width=_BAR_WIDTH)
    for name in ("epoch", "loss", "examples/s", "saved at"):
        table.add_column(name, justify="right", no_wrap=True)
    for replica in view.replicas:
        table.add_row(*_row(replica))
    return table


def _row(replica: ReplicaView) -> list[RenderableType]:
    report = replica.report
    style = "bold red" if replica.has_failed else _STYLES.get(replica.state, "")
    return [
        Text(replica.name),
        Text(replica.state, style=style),
        Text(_of(report.step, report.total_steps)),
        _bar(report.step, report.total_steps),
        Text(_of(report.epoch, report.total_epochs)),
        Text("" if report.loss is None else f"{report.loss:.4f}"),
        Text("" if report.examples_per_second is None else format_rate(report.examples_per_second)),
        Text("" if report.checkpoint_step is None else str(report.checkpoint_step)),
    ]


def _of(done: int | None, total: int | None) -> str:
    if done is None:
        return ""
    return f"{done}" if total is None else f"{done}/{total}"


def _bar(done: int | None, total: int | None) -> RenderableType:
    if done is None or not total:
        return Text("")
    return ProgressBar(total=total, completed=min(done, total), width=_BAR_WIDTH)
