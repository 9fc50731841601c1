"""Hears of each call of many steps that the library makes in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def after_each_call(do: Callable[[int], object]) -> None:
    """From now on call `do` with the steps done, after each call and before it is recorded."""
    from trainjob_trainer import recorder  # noqa: PLC0415 - when it is imported is the script's to say

    record = recorder.Recorder.record_call

    def record_after(self: Any, step: int, *rest: Any) -> None:
        do(step)
        record(self, step, *rest)

    recorder.Recorder.record_call = record_after  # type: ignore[method-assign]
