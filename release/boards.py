"""Pictures of the Grafana dashboards: their files, with a Prometheus's answers to their panels' queries.

Grafana isn't there to make them. This draws rows, panels, titles, units and positions as the files have them;
`benchmarks/dashboard_data.py` has the answers, of a controller with a fleet of played jobs.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
from PIL import Image
from testbed.browser import open_page

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path(__file__).with_name("board.html.j2")
CHOSEN: Mapping[str, Mapping[str, str]] = {"controller": {}, "jobs": {"namespace": "research"}}
"""By dashboard, the variables of which one value is shown, and not all."""

EVERY_SECONDS = 2
"""Between two scrapes, and between two points of a line."""

COLUMN, ROW, GAP, HEADER = 50, 26, 8, 48
"""Pixels of a cell of Grafana's grid, between panels, and above them."""

LEFT, RIGHT, ABOVE, BELOW = 66, 16, 30, 56
"""Pixels around the lines of a panel."""

COLOURS = (
    *("#6fbf73", "#f2c94c", "#5b8ff9", "#ff9f43", "#eb5757"),
    *("#c77dff", "#4fd1c5", "#f78fb3", "#a3a86b", "#e0e0e6"),
)
MOST_NAMES = 5
"""In a legend; the others are counted."""

Board = Mapping[str, Any]
Answers = Mapping[str, Sequence[Mapping[str, Any]]]
"""By query, its series, as Prometheus' API has them."""


def read_board(name: str) -> Board:
    """Return a dashboard's file."""
    board: Board = json.loads((ROOT / f"charts/trainjob/files/dashboard-{name}.json").read_text())
    return board


# Queries and numbers.


def fill(query: str, rate_interval: str = "1m", chosen: Mapping[str, str] | None = None) -> str:
    """Return a query with values in place of Grafana's variables; those that aren't chosen stand for all."""
    values = {"__rate_interval": rate_interval, **(chosen or {})}
    return re.sub(r"\$(\w+)", lambda found: values.get(found[1], ".*"), query)


def asked(target: Mapping[str, Any], chosen: Mapping[str, str]) -> str:
    """Return the query of a panel; Grafana's rates are over four scrapes at least."""
    return fill(target["expr"], f"{4 * EVERY_SECONDS}s", chosen)


_UNITS: Mapping[str, Sequence[tuple[float, str]]] = {
    "short": ((1e6, " Mil"), (1e3, " K"), (1, "")),
    "s": ((60, " min"), (1, " s"), (1e-3, " ms")),
    "bytes": ((2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"), (1, " B")),
    "ops": ((1, " ops/s"),),
    "reqps": ((1, " req/s"),),
}


def write(value: float, unit: str) -> str:
    """Return a number with its unit, by Grafana's names of units."""
    sizes = _UNITS[unit]
    size, name = next((each for each in sizes if abs(value or 1) >= each[0]), sizes[-1])
    return f"{float(f'{value / size:.3g}'):g}{name}"


def tick_size(most: float, unit: str) -> float:
    """Return the distance of ticks on an axis that needs at most four of them up to this value."""
    if unit == "bytes":
        return float(2 ** math.ceil(math.log2(most / 4)))
    if unit == "s" and 40 < most <= 2400:
        return next(each for each in (15, 30, 60, 120, 300, 600) if 4 * each >= most)
    power = 10.0 ** math.floor(math.log10(most / 4))
    return next(factor * power for factor in (1, 2, 5, 10) if 4 * factor * power >= most)


# Panels.


@dataclass(frozen=True)
class Line:
    """One series of a panel: its name in the legend, and its values at moments."""

    name: str
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]

    @property
    def most(self) -> float:
        """Return its largest value."""
        return max(value for _, value in self.points)


def read_lines(panel: Board, answers: Answers, chosen: Mapping[str, str]) -> Iterator[Line]:
    """Yield a panel's series that have points."""
    for target in panel.get("targets", ()):
        for series in answers.get(asked(target, chosen), ()):
            name = target.get("legendFormat", f"Value #{target['refId']}")
            for label, value in series["metric"].items():
                name = name.replace(f"{{{{{label}}}}}", value)
            values = [(moment, float(text)) for moment, text in series["values"]]
            if points := [each for each in values if math.isfinite(each[1])]:
                yield Line(name, series["metric"], points)


def draw_chart(panel: Board, lines: Sequence[Line], begin: float, end: float) -> dict[str, Any]:
    """Return what the template needs of a panel with lines, in pixels."""
    unit, grid = panel["fieldConfig"]["defaults"]["unit"], panel["gridPos"]
    width, height = grid["w"] * COLUMN - GAP - LEFT - RIGHT, grid["h"] * ROW - GAP - ABOVE - BELOW
    most = max(line.most for line in lines) or 1.0
    tick = tick_size(most, unit)
    count = math.ceil(most / tick)

    def place(point: tuple[float, float]) -> str:
        x, y = (point[0] - begin) / (end - begin) * width, height - point[1] / (tick * count) * height
        return f"{x:.1f} {y:.1f}"

    def path(points: Sequence[tuple[float, float]]) -> str:
        """Return a path with a gap where values are missing, and a dot for a single one."""
        rest = (
            f"{'L' if to[0] - of[0] < 2 * EVERY_SECONDS else 'M'}{place(to)}" for of, to in pairwise(points)
        )
        return f"M{place(points[0])}h0{''.join(rest)}"

    minutes = range(math.ceil(begin / 60) * 60, math.floor(end) + 1, 60)
    named = sorted(lines, key=lambda line: -line.most)[:MOST_NAMES]
    if len(lines) > len(COLOURS):  # those with a name have colours of their own
        lines = named + [line for line in lines if line not in named]
    coloured = [(COLOURS[number % len(COLOURS)], line) for number, line in enumerate(lines)]
    return {
        "width": width,
        "height": height,
        "ticks": [(height - n * height / count, write(n * tick, unit)) for n in range(count + 1)],
        "times": [
            ((moment - begin) / (end - begin) * width, f"{datetime.fromtimestamp(moment, UTC):%H:%M}")
            for moment in minutes
        ],
        "paths": [(colour, path(line.points)) for colour, line in coloured],
        "legend": [(colour, line.name) for colour, line in coloured if line in named],
        "more": len(lines) - len(named),
    }


def read_table(panel: Board, lines: Sequence[Line], end: float) -> list[list[str]]:
    """Return titles and rows; what has the same values of the labels that all have is one row."""
    options = next(each["options"] for each in panel["transformations"] if each["id"] == "organize")
    titles, order = options["renameByName"], options["indexByName"]
    overrides = panel["fieldConfig"]["overrides"]
    units = {each["matcher"]["options"]: each["properties"][0]["value"] for each in overrides}
    latest = [line for line in lines if line.points[-1][0] == end]
    shared = set.intersection(*(set(line.labels) for line in latest)) if latest else set()
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for line in latest:
        row = rows.setdefault(tuple(line.labels[label] for label in sorted(shared)), {})
        row |= {**line.labels, line.name: write(line.points[-1][1], units.get(titles[line.name], "short"))}
    columns = sorted(order, key=order.__getitem__)
    return [
        [titles[each] for each in columns],
        *([row.get(each, "") for each in columns] for row in rows.values()),
    ]


# Dashboards.


def draw_board(board: Board, answers: Answers, chosen: Mapping[str, str]) -> str:
    """Return a dashboard as a page.

    Args:
        board: its file.
        answers: to the queries of its panels.
        chosen: its variables of which one value is shown.
    """
    moments = [moment for found in answers.values() for each in found for moment, _ in each["values"]] or [0]
    begin, end = min(moments), max(*moments, min(moments) + 1)
    panels = []
    for panel in board["panels"]:
        lines = list(read_lines(panel, answers, chosen))
        drawn: dict[str, Any] = {}
        match panel["type"]:
            case "timeseries" if lines:
                drawn["chart"] = draw_chart(panel, lines, begin, end)
            case "table" if lines:
                drawn["table"] = read_table(panel, lines, end)
            case "stat":
                unit = panel["fieldConfig"]["defaults"]["unit"]
                drawn["numbers"] = [(line.name, write(line.points[-1][1], unit)) for line in lines]
        panels.append((panel, drawn))
    template = jinja2.Template(PAGE.read_text(), autoescape=True)
    variables = [each for each in board["templating"]["list"] if each["type"] == "query"]
    chosen = {each["label"]: chosen.get(each["name"], "All") for each in variables}
    sizes = {"column": COLUMN, "row": ROW, "gap": GAP, "header": HEADER, "left": LEFT, "above": ABOVE}
    page: str = template.render(title=board["title"], chosen=chosen, panels=panels, **sizes)
    return page


async def make(seconds: int = 180) -> dict[str, bytes]:
    """Play a fleet for so long, and return the pictures by name."""
    boards = {name: read_board(name) for name in CHOSEN}
    queries = [
        asked(target, CHOSEN[name])
        for name, board in boards.items()
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]
    words = ("benchmarks/dashboard_data.py", "--seconds", str(seconds), "--every", str(EVERY_SECONDS))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *words, cwd=ROOT, stdin=pipe, stdout=pipe)
    output, _ = await process.communicate(json.dumps(queries).encode())
    if process.returncode:
        raise SystemExit(f"{words[0]} has failed")
    return await photograph(boards, json.loads(output))


async def photograph(boards: Mapping[str, Board], answers: Answers) -> dict[str, bytes]:
    """Return the pictures of these dashboards."""
    pictures = {}
    with tempfile.TemporaryDirectory() as folder:
        async with open_page() as page:
            for name, board in boards.items():
                file = Path(folder) / f"{name}.html"
                file.write_text(draw_board(board, answers, CHOSEN[name]))
                rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
                await page.look(24 * COLUMN + GAP, HEADER + rows * ROW)
                await page.open(file.as_uri())
                await page.until(f"document.title === {json.dumps(board['title'])}")
                pictures[f"dashboard-{name}.png"] = _with_palette(await page.picture())
    return pictures


def _with_palette(picture: bytes) -> bytes:
    """Return the picture as a PNG of 256 colours, which has a third of the size."""
    image, made = Image.open(io.BytesIO(picture)).convert("RGB"), io.BytesIO()
    image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2).save(made, "PNG", optimize=True)
    return made.getvalue()
