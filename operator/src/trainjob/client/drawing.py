"""A job's page as rich draws it, on a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainjob.client.page import Page

_LONGEST_BAR = 20
_SHOWN_STRAGGLERS = 3
_WIDE = 64
"""From this width on, the table has the loss."""

_STYLES = {"busy": "green", "good": "bold green", "bad": "bold red", "warning": "yellow"}


def draw_page(page: Page, below: Iterable[RenderableType] = (), width: int = 80) -> RenderableType:
    """Return header, figures, replicas, warnings and last events for so many columns; `below` comes last."""
    header = Text.assemble((page.name, "bold"), "  ", (page.state, _STYLES.get(page.tone, "")))
    parts: list[RenderableType] = [header.append("  " + "  ".join(page.about), style="dim")]
    parts += [Text(page.message)] if page.message else []
    parts += _figures(page, width)
    if page.replicas:
        parts.append(_table(page, width))
    warnings = (*page.texts("straggler")[:_SHOWN_STRAGGLERS], *page.texts("input"), *page.events)
    return Group(*parts, *(Text(text, style="yellow") for text in warnings), *below)


def _figures(page: Page, width: int) -> Iterator[RenderableType]:
    if page.training:
        line = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(total=1.0, completed=page.share or 0.0, width=min(width // 5, _LONGEST_BAR))
        line.add_row(*([bar] if page.share is not None else []), _phrases(page.training))
        yield line
    if page.metrics:
        yield _phrases(page.metrics)
    yield from (Text(f"evaluation at {text}") for text in page.texts("evaluation"))
    yield from (Text(f"best:  {text}") for text in page.texts("best"))


def _phrases(phrases: Iterable[str]) -> Text:
    """Return the phrases as one text that breaks only between them."""
    return Text("  ".join(phrase.replace(" ", "\N{NO-BREAK SPACE}") for phrase in phrases))


def _table(page: Page, width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    titles = ("replica", "state", "step", "loss")[: 4 if width >= _WIDE else 3]
    for title in titles:
        right = title in ("step", "loss")
        table.add_column(title, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    for row in page.replicas:
        style = _STYLES.get(row.tone, "")
        table.add_row(*(Text(row.cells[title], style if title == "state" else "") for title in titles))
    return table


def draw_html(page: Page, below: Iterable[str], width: int = 100) -> str:
    """Return the same as HTML; every text is only text."""
    console = Console(
        record=True, width=width, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(draw_page(page, map(Text, below), width))
    style = "margin:0;line-height:normal;white-space:pre;overflow-x:auto"
    return console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')
