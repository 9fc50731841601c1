"""Waits for a condition, with a deadline, and says what it waited for when that passes."""

import time
from collections.abc import Callable
from typing import TypeVar

from testbed.errors import TestbedError

Found = TypeVar("Found")


def until(look: Callable[[], Found | None], *, what: str, seconds: float, every: float = 0.05) -> Found:
    """Calls `look` until it returns something true, and returns that.

    Raises:
        TestbedError: Nothing came within `seconds`; names `what`.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TestbedError(f"{what}: not within {seconds:.0f} s")
        time.sleep(every)
