from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainjob_trainer import CheckpointUnreadable, OutputFinished
from trainjob_trainer.checkpoint.final import FinalMarker
from trainjob_trainer.checkpoint.snapshot import NamedArray
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.resume import (
    Start,
    Verdict,
    choose_start,
    find_start,
    finished_before,
    read_agreed,
    refuse_finished,
)

GROUPS = {"model": [NamedArray("a", np.zeros(2, "float32"))]}


EARLY = (10, "old", 20, 40, "loss has not improved for 2 epochs; best 0.5 at step 10")


def store_with(folder: Path, *steps: int, final: tuple[Any, ...] | None = None) -> CheckpointStore:
    store = CheckpointStore(folder / "checkpoints")
    for step in steps:
        store.save(step, 0, GROUPS, "old")
    if final:
        store.mark_final(FinalMarker(*final))
    return store


@pytest.mark.parametrize(
    ("steps", "final", "total", "expected"),
    [
        ((), None, 10, Start(Verdict.TRAIN, 0)),
        ((2, 4), None, 10, Start(Verdict.TRAIN, 4)),
        ((4, 10), (10, "old"), 20, Start(Verdict.TRAIN, 10)),
        ((10,), (10, "old"), 10, Start(Verdict.FINISHED_BY_ANOTHER, 10)),
        ((10,), (10, "old"), 5, Start(Verdict.FINISHED_BY_ANOTHER, 10)),
        ((10,), (10, "mine"), 10, Start(Verdict.FINISHED_BY_THIS_JOB, 10)),
        ((10, 20), EARLY, 40, Start(Verdict.FINISHED_BY_ANOTHER, 20)),
        ((10, 20), EARLY, 41, Start(Verdict.TRAIN, 20)),
    ],
)
def test_where_to_start(
    tmp_path: Path, steps: tuple[int, ...], final: tuple[Any, ...] | None, total: int, expected: Start
) -> None:
    assert find_start(store_with(tmp_path, *steps, final=final), total, "mine") == expected


def test_without_a_job_a_finished_output_is_always_another_trainings(tmp_path: Path) -> None:
    assert find_start(store_with(tmp_path, 3, final=(3, "")), 3, "").verdict is Verdict.FINISHED_BY_ANOTHER


def test_only_the_same_job_has_finished_before(tmp_path: Path) -> None:
    store = store_with(tmp_path, 3, final=(3, "mine"))

    assert finished_before(store, "mine") == Start(Verdict.FINISHED_BY_THIS_JOB, 3)
    assert finished_before(store, "other") is None


def test_a_finished_output_is_refused_with_what_to_do(tmp_path: Path) -> None:
    store = store_with(tmp_path, 3, final=(3, "old"))

    with pytest.raises(OutputFinished, match=f"{tmp_path} holds .* finished at step 3.*--fresh"):
        refuse_finished(find_start(store, 3, "mine"), store, 3)
    with pytest.raises(SystemExit) as ended:
        refuse_finished(Start(Verdict.FINISHED_BY_THIS_JOB, 3), store, 3)
    assert ended.value.code == 0
    refuse_finished(Start(Verdict.TRAIN, 3), store, 9)


def test_one_that_stopped_early_is_not_trained_on_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_with(tmp_path, 10, 20, final=EARLY)
    why = "stopped early at step 20 of 40: loss has not improved for 2 epochs; best 0.5 at step 10"

    with pytest.raises(OutputFinished, match=f"a training that {why}, and 40 steps are asked for"):
        refuse_finished(find_start(store, 40, "mine"), store, 40)
    with pytest.raises(SystemExit):
        refuse_finished(find_start(store, 40, "old"), store, 40)
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damaged", "chosen", "told"),
    [
        ((), 6, ""),
        ((6,), 4, "the checkpoint of step 6 is damaged and set aside: training goes on from step 4"),
        ((4, 6), 2, "step 4, 6 is damaged and set aside: training goes on from step 2"),
        ((2, 4, 6), 0, "set aside: training goes on from the beginning, for lack of another"),
    ],
)
@pytest.mark.filterwarnings("ignore:damaged checkpoint")
def test_a_damaged_checkpoint_is_chosen_by_nobody(
    tmp_path: Path, damaged: tuple[int, ...], chosen: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_with(tmp_path, 2, 4, 6)
    for step in damaged:
        (store.at(step).path / "variables.data-00000-of-00001").write_bytes(b"torn")

    assert choose_start(store, 10, "old") == Start(Verdict.TRAIN, chosen)

    assert store.steps() == [step for step in (2, 4, 6) if step not in damaged]
    assert told in capsys.readouterr().err
    store.save(8, 0, GROUPS, "old")
    assert not list(store.directory.glob("damaged-*"))


def test_a_worker_waits_for_what_the_writer_sees(tmp_path: Path) -> None:
    store, naps = CheckpointStore(tmp_path), []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            store.save(4, 0, GROUPS, "uid")

    checkpoint, host = read_agreed(store, 4, 30.0, sleep)

    assert (checkpoint.step, len(naps)) == (4, 3)
    assert set(host) == {"model"}
    with pytest.raises(CheckpointUnreadable):
        read_agreed(store, 5, 1.0, naps.append)
