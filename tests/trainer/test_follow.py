from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from support.trainer.disk import STALE, FaultyFiles
from trainjob_trainer.checkpoint.snapshot import NamedArray
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore, FinalMarker
from trainjob_trainer.evaluation import follow

GROUPS = {"model": [NamedArray("a", np.zeros(2, "float32"))]}


def following(
    store: CheckpointStore,
    *happenings: Callable[[], object],
    job_uid: str | None = None,
) -> Iterator[tuple[Checkpoint, bool]]:
    """Each time nothing is new, the next thing happens."""
    script = iter(happenings)
    return follow(
        store,
        1.0,
        job_uid=job_uid,
        sleep=lambda _: next(script)() and None,
    )


def save(store: CheckpointStore, *steps: int) -> Callable[[], None]:
    return lambda: [store.save(step, 0, GROUPS, "uid") for step in steps] and None


def test_it_waits_for_the_first_skips_to_the_newest_and_ends_with_the_final_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    seen = following(
        store,
        lambda: None,
        save(store, 1),
        save(store, 2, 3),
        lambda: None,
        lambda: (store.save(4, 0, GROUPS, "uid"), store.mark_final(FinalMarker(4, "uid"))),
    )

    assert [(checkpoint.step, final) for checkpoint, final in seen] == [(1, False), (3, False), (4, True)]


def test_what_cannot_be_read_is_looked_at_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    is_out = [False]
    files = FaultyFiles(lambda *_: STALE if is_out[0] else None)
    writer = CheckpointStore(tmp_path)
    events = iter(
        [
            save(writer, 1),
            lambda: is_out.__setitem__(0, True),
            *[lambda: None] * 4,  # the store waits
            save(writer, 2),
            lambda: is_out.__setitem__(0, False),
            lambda: (tmp_path / "final.json").write_text("{"),
            lambda: writer.mark_final(FinalMarker(2, "uid")),
        ]
    )

    def sleep(_: float) -> None:
        next(events)()

    seen = follow(CheckpointStore(tmp_path, files=files, sleep=sleep), 5.0, sleep=sleep)

    assert [(checkpoint.step, final) for checkpoint, final in seen] == [(1, False), (2, False), (2, True)]
    said = capsys.readouterr().err
    assert f"waiting for storage: cannot read {tmp_path / 'final.json'}" in said
    assert "no longer waiting for storage" in said


def test_one_that_turns_out_to_be_the_final_one_comes_again(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    seen = following(store, save(store, 1), lambda: store.mark_final(FinalMarker(1, "uid")))

    assert [(checkpoint.step, final) for checkpoint, final in seen] == [(1, False), (1, True)]


def test_an_earlier_trainings_end_is_not_this_ones(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, 0, GROUPS, "old")
    store.mark_final(FinalMarker(1, "old"))

    by_job = following(store, lambda: store.mark_final(FinalMarker(1, "new")), job_uid="new")
    assert [(checkpoint.step, final) for checkpoint, final in by_job] == [(1, True)]


def test_an_earlier_trainings_end_is_scored_once_training_goes_on_from_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, 0, GROUPS, "old")
    store.mark_final(FinalMarker(1, "old"))
    ended = lambda: (store.save(2, 0, GROUPS, "new"), store.mark_final(FinalMarker(2, "new")))  # noqa: E731

    seen = following(store, lambda: None, store.clear_final, ended, job_uid="new")

    assert [(checkpoint.step, final) for checkpoint, final in seen] == [(1, False), (2, True)]


def test_the_step_that_a_marker_names_is_the_final_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    end = lambda: store.mark_final(FinalMarker(1, "", 2, 9))  # noqa: E731

    seen = following(store, save(store, 1, 2), end)

    assert [(checkpoint.step, final) for checkpoint, final in seen] == [(2, False), (1, True)]


def test_what_lies_between_an_earlier_trainings_result_and_its_end_is_no_news(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, 2)()
    store.mark_final(FinalMarker(1, "old", 2, 9))
    ended = lambda: (store.save(3, 0, GROUPS, "new"), store.mark_final(FinalMarker(3, "new")))  # noqa: E731

    seen = following(store, lambda: None, ended, job_uid="new")

    assert [(checkpoint.step, final) for checkpoint, final in seen] == [(3, True)]
