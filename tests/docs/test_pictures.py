"""The pictures of the docs: what makes them works, and pages show them with a text for the blind."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pictures import LARGEST, PICTURES, ROOT, draw_display

from support.cli.program import build_replica, build_run
from trainjob.client.log_lines import EqualLines
from trainjob.client.page import JobHistory
from trainjob.cluster.protocol import PostedEvent
from trainjob.core.agent_reports import EvaluationResult

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = [
    (page, text, target)
    for page in PAGES
    for text, target in re.findall(r"!\[([^]]*)\]\(([^)\s]+)\)", page.read_text())
]


def test_the_display_is_drawn_as_svg() -> None:
    job = build_run(
        [
            build_replica(step=110, total_steps=440, loss=0.5),
            build_replica("worker-1", "importing TensorFlow"),
        ],
        message="training on 2 <workers>",
        evaluation=EvaluationResult(step=88, metrics={"accuracy": 0.875}),
        events=(
            PostedEvent(datetime(2026, 1, 2, tzinfo=UTC), "Warning", "Restarted", "worker 1 was killed"),
        ),
    )
    history, lines = JobHistory(), EqualLines()
    history.observe(job)
    lines.add("worker-0", "step 110/440", 0.0)
    drawn = draw_display(job, history, lines, "trainjob run digits.yaml")
    svg = ElementTree.fromstring(drawn)  # noqa: S314 - our own
    shown = "".join(svg.itertext()).replace("\N{NO-BREAK SPACE}", " ")
    for part in (
        "trainjob run digits.yaml",
        "training on 2 <workers>",
        "step 110/440",
        "evaluation at step 88: accuracy 87.5 %",
        "importing TensorFlow",
        "worker 1 was killed",
        "worker-0 | step 110/440",
    ):
        assert part in shown
    assert loaded_by(drawn) == []


def loaded_by(svg: str) -> list[str]:
    """What a picture would load; the names of XML's own name spaces are not loaded."""
    named = re.findall(r"""(?:href=|url\(|@import|src[:=])\s*["']?([^"')\s]*)""", svg)
    return [each for each in named if not each.startswith("#")]


def test_pictures_are_shown_with_their_text() -> None:
    assert {(page.parent / target).resolve() for page, _, target in SHOWN} == set(PICTURES.iterdir())
    for page, text, _ in SHOWN:
        assert len(text.split()) > 5, f"{page.name}: {text!r} doesn't say what the picture shows"


@pytest.mark.parametrize("picture", sorted(PICTURES.iterdir()), ids=lambda path: path.name)
def test_a_picture_is_small_and_loads_nothing(picture: Path) -> None:
    content = picture.read_bytes()
    assert len(content) <= LARGEST
    if picture.suffix == ".svg":
        assert loaded_by(content.decode()) == []
    else:
        assert content.startswith(b"\x89PNG")
