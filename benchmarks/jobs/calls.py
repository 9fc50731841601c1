"""Hears of each call of many steps that Keras's `fit` makes in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def after_each_call(do: Callable[[int], object]) -> None:
    """From now on call `do` with the steps done, after each call and before it is reported."""
    from trainjob_trainer.reporting.step_times import StepClock  # noqa: PLC0415 - when it is imported is the script's to say

    look = StepClock.look

    def look_after(self: Any, step: int, *rest: Any) -> Any:
        do(step)
        return look(self, step, *rest)

    StepClock.look = look_after  # type: ignore[method-assign]
