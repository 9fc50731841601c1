"""What is asked of a replica, in its two files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainjob_trainer.reporting.profiler import FOLDER, Request, RequestFiles


@pytest.mark.parametrize(
    ("raw", "first", "last"),
    [({"first": 7, "last": 9}, 7, 9), ({"first": 7, "last": 7}, 7, 7), ({"count": 3}, 41, 43)],
)
def test_steps_are_read(raw: dict[str, Any], first: int, last: int) -> None:
    assert Request.parse(json.dumps({"id": "x", **raw}), done=40) == Request("x", first, last)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"first": 1, "last": 2}',
        '{"id": 7, "count": 1}',
        *(
            json.dumps({"id": "x", **raw})
            for raw in (
                {},
                {"count": 0},
                {"count": True},
                {"count": "3"},
                {"first": 3},
                {"first": 3, "last": 2},
                {"first": 0, "last": 2},
            )
        ),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - its words are not for people
        Request.parse(text, done=0)


@pytest.mark.parametrize(
    ("done", "ahead", "begins"),
    [(0, 10, False), (0, 99, False), (0, 100, True), (99, 1, True), (105, 1, True)],
)
def test_recording_begins_with_the_call_that_has_the_first_step(done: int, ahead: int, begins: bool) -> None:
    assert Request("x", 100, 120).begins(done, ahead) is begins


@pytest.mark.parametrize(
    ("done", "total", "words"),
    [
        (0, None, None),
        (119, None, None),
        (120, None, "steps 100-120 are over: 120 steps are done"),
        (0, 100, None),
        (0, 99, "training ends with step 99"),
    ],
)
def test_steps_that_can_not_be_had(done: int, total: int | None, words: str | None) -> None:
    assert Request("x", 100, 120).refusal(done, total) == words


def test_a_request_is_seen_once_and_removed_once(tmp_path: Path) -> None:
    files, request = RequestFiles(tmp_path, "worker-1"), tmp_path / FOLDER / "worker-1.json"
    assert not files.has_changed()
    request.parent.mkdir()
    request.write_text("one")
    assert (files.has_changed(), files.read()) == (True, "one")
    assert not files.has_changed()
    files.answer(id="x", state="waiting")
    assert json.loads((tmp_path / FOLDER / "worker-1.answer.json").read_text()) == {
        "id": "x",
        "state": "waiting",
    }
    files.remove()
    assert not request.exists()
    assert not files.has_changed()


def test_a_request_that_came_meanwhile_is_not_removed(tmp_path: Path) -> None:
    files, request = RequestFiles(tmp_path, "worker-0"), tmp_path / FOLDER / "worker-0.json"
    request.parent.mkdir()
    request.write_text("one")
    assert files.has_changed()
    request.write_text("another")
    files.remove()
    assert (files.has_changed(), files.read()) == (True, "another")


def test_what_can_not_be_written_is_passed_over(tmp_path: Path) -> None:
    files = RequestFiles(tmp_path / "missing", "worker-0")
    files.answer(id="x")
    files.remove()
    assert files.read() is None
