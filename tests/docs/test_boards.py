"""The pictures of the dashboards are drawn from the dashboards' files and the answers to their queries."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from boards import CHOSEN, asked, draw_board, fill, read_board, tick_size, write


def answer(value: float, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "values": [[60, "0"], [62, "NaN"], [64, str(value)]]}


def text(page: str) -> list[str]:
    """The texts of a page, without its style."""
    body = page.partition("</style>")[2]
    return [unescape(each).strip() for each in re.findall(r">([^<]+)<", body) if each.strip()]


@pytest.mark.parametrize("name", CHOSEN)
def test_every_panel_is_there_with_or_without_data(name: str) -> None:
    board = read_board(name)
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    labels = {"namespace": "research", "name": "<digits>", "state": "Running"}
    answers = {asked(t, CHOSEN[name]): [answer(1.5, **labels)] for panel in panels for t in panel["targets"]}
    empty, full = text(draw_board(board, {}, CHOSEN[name])), text(draw_board(board, answers, CHOSEN[name]))
    for panel in board["panels"]:
        assert panel["title"] in empty
        assert panel["title"] in full
    assert empty.count("no data") == len(panels)
    assert "no data" not in full


def test_a_panel_shows_its_answer() -> None:
    board = read_board("jobs")
    queries = {
        panel["title"]: [asked(t, {"namespace": "ml"}) for t in panel["targets"]]
        for panel in board["panels"]
        if panel["type"] != "row"
    }
    (state, step, *_), (speed,) = queries["Unfinished jobs"], queries["Speed"]
    assert 'namespace=~"ml", name=~".*"' in speed
    answers = {
        state: [answer(90, namespace="ml", name="digits", state="Running")],
        step: [answer(4321, namespace="ml", name="digits")],
        speed: [answer(900 - number, namespace="ml", name=f"job-{number}") for number in range(9)],
    }
    page = draw_board(board, answers, {"namespace": "ml"})
    shown = text(page)
    assert shown[:3] == ["TrainJob / Jobs", "Namespace: ml", "Job: All"]
    start = shown.index("Namespace")
    assert shown[start + 10 : start + 15] == ["ml", "digits", "Running", "1.5 min", "4.32 K"]
    assert "ml/job-4" in shown
    assert "ml/job-5" not in shown  # only the highest lines are named
    assert "and 4 more" in shown
    assert page.count("<path ") == 9
    assert "h0M" in page  # no line leads across what has no value


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [(0, "s", "0 s"), (0.0042, "s", "4.2 ms"), (90, "s", "1.5 min"), (3 << 20, "bytes", "3 MiB"),
     (0.25, "reqps", "0.25 req/s"), (12_345, "short", "12.3 K")],
)  # fmt: skip
def test_numbers_have_their_units(value: float, unit: str, written: str) -> None:
    assert write(value, unit) == written


@pytest.mark.parametrize(
    ("most", "unit", "tick"),
    [(7, "short", 2), (0.3, "s", 0.1), (170, "s", 60), (90 << 20, "bytes", 32 << 20)],
)
def test_ticks_are_round(most: float, unit: str, tick: float) -> None:
    assert tick_size(most, unit) == pytest.approx(tick)


def test_variables_are_filled_in() -> None:
    query = 'rate(a{job=~"$job", name=~"$name"}[$__rate_interval])'
    assert fill(query, "8s", {"name": "digits"}) == 'rate(a{job=~".*", name=~"digits"}[8s])'
