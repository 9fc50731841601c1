"""Slots that namespaces, and the jobs in each, take in turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from trainjob.core.queueing import FairQueue


class FairSlots:
    """Slots of a `FairQueue` that tasks wait for.

    Args:
        slots: the number of slots.
        share: the most slots that one group may hold.
    """

    def __init__(self, slots: int, share: int) -> None:
        self._queue: FairQueue[tuple[asyncio.Future[None], Hashable]] = FairQueue(slots, share)

    @asynccontextmanager
    async def slot(self, group: Hashable, member: Hashable = None) -> AsyncIterator[None]:
        """Wait for a slot and hold it.

        Args:
            group: a namespace, whose jobs share.
            member: a job, which takes turns with the others of its group.
        """
        waiter = asyncio.get_running_loop().create_future()
        self._queue.add((waiter, group), group, member)
        self._hand_out()
        try:
            await waiter
            yield
        finally:
            if not waiter.cancelled():  # `_hand_out` skips a task that was cancelled while it waited
                self._queue.release(group)
                self._hand_out()

    def _hand_out(self) -> None:
        while (taken := self._queue.take()) is not None:
            waiter, group = taken
            if waiter.cancelled():
                self._queue.release(group)
            else:
                waiter.set_result(None)
