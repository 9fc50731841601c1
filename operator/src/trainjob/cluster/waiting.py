"""Waiting for something to happen, for a limited time."""

from __future__ import annotations

import asyncio


async def happens_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Tell whether the event is set within so many seconds; None waits without end.

    Not `asyncio.wait_for`: up to Python 3.11 it goes on when it is cancelled at the moment of the event.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
