from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob_trainer.checkpoint.store import Checkpoint
from trainjob_trainer.plain.fit_call import (
    FitState,
    PastCall,
    ResumePlan,
    SaveTimes,
    choose_plan,
)

CHECKPOINT = Checkpoint(step=40, epoch=4, job_uid="u", path=Path("c"), written=0.0)


def state(call: int = 1, done: int = 2, asked: int = 4, complete: bool = False) -> FitState:
    return FitState(call=call, epochs_done=done, epochs_asked=asked, complete=complete)


@pytest.mark.parametrize(
    ("saved", "number", "epochs", "finished", "plan"),
    [
        (None, 1, 4, False, ResumePlan.TRAIN),
        (state(), 1, 4, False, ResumePlan.RESUME),
        (state(), 2, 4, False, ResumePlan.TRAIN),
        (state(call=2), 1, 4, False, ResumePlan.SKIP),
        (state(complete=True), 1, 4, False, ResumePlan.SKIP),  # stopped early: not begun again
        (state(complete=True), 1, 5, False, ResumePlan.RESUME),
        (state(done=4, complete=True), 1, 4, True, ResumePlan.FINISHED),
        (state(done=4, complete=True), 1, 9, True, ResumePlan.RESUME),
        (state(call=3, done=4, complete=True), 2, 4, True, ResumePlan.SKIP),
        (state(call=3, done=4, complete=True), 3, 4, True, ResumePlan.FINISHED),
    ],
)
def test_what_a_call_has_to_do(
    saved: FitState | None, number: int, epochs: int, finished: bool, plan: ResumePlan
) -> None:
    assert choose_plan(saved, number=number, epochs=epochs, script_finished=finished) is plan


@given(st.integers(1, 5), st.integers(0, 9), st.dictionaries(st.text(max_size=5), st.lists(st.floats())))
def test_a_state_survives_the_checkpoint(call: int, done: int, history: dict[str, list[float]]) -> None:
    saved = FitState(
        call,
        done,
        9,
        False,
        (PastCall((0, 1), history),),
        ({"kind": "EarlyStopping", "wait": 1},),
        {"seed": 7},
        batches_done=done + 2,
    )
    read = FitState.from_groups({"fit": saved.to_arrays()}, CHECKPOINT, finished=False)
    assert (read.call, read.epochs_done, read.settings) == (call, done, {"seed": 7})
    assert repr(read.past[0].history) == repr(history)
    assert list(read.callbacks) == list(saved.callbacks)
    assert read.batches_done == done + 2


def test_a_checkpoint_of_the_librarys_own_loop_counts_as_one_call() -> None:
    read = FitState.from_groups({"model": []}, CHECKPOINT, finished=True)
    assert (read.call, read.epochs_done, read.complete) == (1, 4, True)


def test_a_history_may_hold_arrays() -> None:
    history = {"f1": [np.array([0.5, 0.25], "float32")], "loss": [np.float32(0.5)], "odd": [object]}
    saved = FitState(1, 1, 9, False, (PastCall((0,), history),))
    read = FitState.from_groups({"fit": saved.to_arrays()}, CHECKPOINT, finished=False)
    assert read.past[0].history == {"f1": [[0.5, 0.25]], "loss": [0.5], "odd": [str(object)]}


@pytest.mark.parametrize(
    ("seconds", "took", "epoch_ends", "is_writing", "is_due"),
    [
        (0.0, 0.0, True, False, True),  # the first
        (9.9, 1.0, True, False, False),  # epochs are short
        (10.0, 1.0, True, False, True),
        (900.0, 1.0, True, True, False),  # the disk is slow
        (299.0, 1.0, False, False, False),
        (300.0, 1.0, False, False, True),  # a long epoch
        (300.0, 1.0, False, True, False),
    ],
)
def test_checkpoints_take_little_time_and_a_long_epoch_has_several(
    seconds: float, took: float, epoch_ends: bool, is_writing: bool, is_due: bool
) -> None:
    now = 0.0
    times = SaveTimes(None, clock=lambda: now)
    with times.saving(5):
        now += took
    now += seconds
    assert times.is_due(9, epoch_ends=epoch_ends, is_writing=is_writing) is is_due


@pytest.mark.parametrize(
    ("resumed_at", "step", "is_due"),
    [(0, 4, False), (0, 5, True), (0, 7, True), (5, 9, False), (7, 9, False), (7, 10, True), (12, 14, False)],
)
def test_steps_between_checkpoints_are_the_users_to_say(resumed_at: int, step: int, is_due: bool) -> None:
    times = SaveTimes(5)
    times.step = resumed_at
    for epoch_ends in (False, True):
        for is_writing in (False, True):
            assert times.is_due(step, epoch_ends=epoch_ends, is_writing=is_writing) is is_due
    with times.saving(step):
        pass
    assert not times.has_come(step)
