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
    assert Request.parse({"id": "x", **raw}, done=40) == Request("x", first, last)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"first": 1, "last": 2},
        {"id": 7, "count": 1},
        {"id": "x"},
        {"id": "x", "count": 0},
        {"id": "x", "count": True},
        {"id": "x", "count": "3"},
        {"id": "x", "first": 3},
        {"id": "x", "first": 3, "last": 2},
        {"id": "x", "first": 0, "last": 2},
    ],
)
def test_anything_else_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - its words are not for people
        Request.parse(raw, done=0)


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
    request.write_text('{"id": "one"}')
    assert (files.has_changed(), files.read()) == (True, {"id": "one"})
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
    request.write_text('{"id": "one"}')
    assert files.has_changed()
    request.write_text('{"id": "another"}')
    files.remove()
    assert (files.has_changed(), files.read()) == (True, {"id": "another"})


@pytest.mark.parametrize("text", ["", "[]", "7", "{"])
def test_what_is_no_object_is_an_empty_request(text: str, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "worker-0.json").write_text(text)
    assert RequestFiles(tmp_path, "worker-0").read() == {}


def test_what_can_not_be_written_is_passed_over(tmp_path: Path) -> None:
    files = RequestFiles(tmp_path / "missing", "worker-0")
    files.answer(id="x")
    files.remove()
    assert files.read() is None
