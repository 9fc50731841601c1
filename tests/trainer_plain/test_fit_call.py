from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob_trainer import CheckpointMismatch
from trainjob_trainer.identity import Identity
from trainjob_trainer.keras.fit_call import (
    FitState,
    PastCall,
    SaveTimes,
    choose_plan,
)
from trainjob_trainer.resume import ResumePlan

CALL = Identity("train.py:main", "ab", "Adam", 0, {"fold": "1"})
SECOND_FOLD = replace(CALL, particulars={"fold": "2"})
ELSEWHERE = replace(CALL, site="train.py:main:9")


def state(call: int = 1, *, complete: bool = False, of: Identity | None = CALL, **past: Any) -> FitState:
    """One whose first call is `of`; an earlier one than `call` has ended."""
    calls = [PastCall((0, 1), {}, 2, of, **past)] + [PastCall((2, 3), {}, 4, SECOND_FOLD)] * (call - 1)
    return FitState(call=call, epochs_done=2, epochs_asked=4, complete=complete, past=tuple(calls))


@pytest.mark.parametrize(
    ("saved", "call", "number", "epochs", "same_job", "plan"),
    [
        (None, CALL, 1, 4, True, ResumePlan.TRAIN),
        (state(), CALL, 1, 4, True, ResumePlan.RESUME),
        (state(), SECOND_FOLD, 2, 4, True, ResumePlan.TRAIN),
        (state(call=2), CALL, 1, 4, True, ResumePlan.SKIP),
        (state(complete=True), CALL, 1, 4, True, ResumePlan.SKIP),  # stopped early: not begun again
        (state(complete=True), CALL, 1, 5, True, ResumePlan.RESUME),
        # What is left may be trained with other data or settings; what has ended has another result.
        (state(), SECOND_FOLD, 1, 4, True, ResumePlan.RESUME),
        (state(complete=True), SECOND_FOLD, 1, 4, True, ResumePlan.ANEW),
        (state(complete=True), SECOND_FOLD, 1, 5, True, ResumePlan.ANEW),
        (state(complete=True), SECOND_FOLD, 1, 5, False, ResumePlan.RESUME),  # another job asks for more
        (state(call=2), SECOND_FOLD, 1, 4, True, ResumePlan.ANEW),
        # Another call is never gone on with.
        (state(), ELSEWHERE, 1, 4, True, ResumePlan.ANEW),
        (state(complete=True), ELSEWHERE, 1, 9, False, ResumePlan.ANEW),
        (state(), replace(CALL, variables="cd"), 1, 4, True, ResumePlan.ANEW),
        (state(), replace(CALL, optimizer="SGD"), 1, 4, True, ResumePlan.ANEW),
        (state(), replace(CALL, epochs_before=2), 1, 4, True, ResumePlan.ANEW),
        (state(call=2, failed=True), CALL, 1, 4, True, ResumePlan.ANEW),  # its error comes again
    ],
)
def test_what_a_call_has_to_do(
    saved: FitState | None, call: Identity, number: int, epochs: int, same_job: bool, plan: ResumePlan
) -> None:
    given = {"number": number, "epochs": epochs, "is_same_job": same_job}
    assert choose_plan(saved, call, **given, is_finished=False) is plan
    in_a_finished_folder = choose_plan(saved, call, **given, is_finished=True)
    is_newest = saved is not None and saved.call == number
    is_over = saved is None or plan is ResumePlan.ANEW or (plan is ResumePlan.SKIP and is_newest)
    assert in_a_finished_folder is (ResumePlan.FINISHED if is_over else plan)
    of_the_same_spec = choose_plan(saved, call, **given, is_finished=True, is_same_spec=True)
    is_done = plan is ResumePlan.SKIP and is_newest
    assert of_the_same_spec is (ResumePlan.ALREADY_FINISHED if is_done else in_a_finished_folder)
    assert choose_plan(saved, call, **given, is_finished=False, is_same_spec=True) is plan


@given(st.integers(1, 5), st.integers(0, 9), st.dictionaries(st.text(max_size=5), st.lists(st.floats())))
def test_a_state_survives_the_checkpoint(call: int, done: int, history: dict[str, list[float]]) -> None:
    saved = FitState(
        call,
        done,
        9,
        False,
        (PastCall((0, 1), history, identity=CALL),),
        ({"kind": "EarlyStopping", "wait": 1},),
        {"seed": 7},
        batches_done=done + 2,
    )
    read = FitState.from_groups({"fit": saved.to_arrays()})
    assert (read.call, read.epochs_done, read.settings) == (call, done, {"seed": 7})
    assert repr(read.past[0].history) == repr(history)
    assert read.past[0].identity == CALL
    assert list(read.callbacks) == list(saved.callbacks)
    assert read.batches_done == done + 2


def test_a_checkpoint_of_no_fit_is_refused_with_what_to_do() -> None:
    with pytest.raises(CheckpointMismatch, match="has written it; train in another output"):
        FitState.from_groups({"model": [], "last-epoch": []})


def test_a_history_may_hold_arrays() -> None:
    history = {"f1": [np.array([0.5, 0.25], "float32")], "loss": [np.float32(0.5)], "odd": [object]}
    saved = FitState(1, 1, 9, False, (PastCall((0,), history),))
    read = FitState.from_groups({"fit": saved.to_arrays()})
    assert read.past[0].history == {"f1": [[0.5, 0.25]], "loss": [0.5], "odd": [str(object)]}


@pytest.mark.parametrize(
    ("seconds", "took", "epoch_ends", "is_writing", "is_due"),
    [
        (0.0, 0.0, True, False, True),  # the first
        (9.9, 1.0, True, False, False),  # epochs are short
        (10.0, 1.0, True, False, True),
        (900.0, 1.0, True, True, False),  # the disk is slow
        (300.0, 3600.0, True, False, True),  # the machine slept within the last save
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
