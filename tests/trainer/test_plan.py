from __future__ import annotations

import pytest

from trainjob_trainer import InvalidConfiguration
from trainjob_trainer.recipe import batch_of_a_device, build_plan


@pytest.mark.parametrize(
    ("examples", "epochs", "steps", "expected"),
    [
        (100, 3, None, (36, 12, 12)),
        (100, None, 30, (30, 12, 12)),
        (5, 3, None, (3, 1, 1)),
        (None, None, 50, (50, None, 5)),
    ],
)
def test_a_training_in_steps(
    examples: int | None, epochs: int | None, steps: int | None, expected: tuple[int, int | None, int]
) -> None:
    plan = build_plan(examples=examples, epochs=epochs, steps=steps, global_batch=8, checkpoint_every=None)

    assert (plan.total_steps, plan.epoch_steps, plan.checkpoint_every) == expected


def test_epochs_of_endless_data_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="train\\(\\) is endless"):
        build_plan(examples=None, epochs=1, steps=None, global_batch=8, checkpoint_every=None)


def test_the_epoch_under_way() -> None:
    plan = build_plan(examples=100, epochs=3, steps=None, global_batch=8, checkpoint_every=None)

    assert [plan.epoch_at(step) for step in (0, 11, 12, 35, 36)] == [1, 1, 2, 3, 3]
    assert [plan.epochs_done(step) for step in (0, 11, 12, 36)] == [0, 0, 1, 3]


def test_a_batch_that_the_workers_do_not_divide_is_refused_with_what_fits() -> None:
    assert batch_of_a_device(64, 4) == 16
    with pytest.raises(InvalidConfiguration, match=r"global_batch: 64 .* by 3 .*; use 63 or 66"):
        batch_of_a_device(64, 3)
    with pytest.raises(InvalidConfiguration, match=r"use 4$"):
        batch_of_a_device(3, 4)
