"""Places that namespaces, and the jobs in each, take in turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from trainjob.core.queueing import FairQueue


class FairSlots:
    """Places of a `FairQueue` that tasks wait for.

    Args:
        places: how many there are.
        share: the most of them that one group may have.
    """

    def __init__(self, places: int, share: int) -> None:
        self._queue: FairQueue[tuple[asyncio.Future[None], Hashable]] = FairQueue(places, share)

    @asynccontextmanager
    async def place(self, group: Hashable, member: Hashable = None) -> AsyncIterator[None]:
        """Have a place, once it is one's turn.

        Args:
            group: who shares: a namespace.
            member: whose turn it is within the group: a job.
        """
        turn = asyncio.get_running_loop().create_future()
        self._queue.add((turn, group), group, member)
        self._hand_out()
        try:
            await turn
            yield
        finally:
            if not turn.cancelled():  # who is cancelled while waiting is passed over
                self._queue.release(group)
                self._hand_out()

    def _hand_out(self) -> None:
        while (taken := self._queue.take()) is not None:
            turn, group = taken
            if turn.cancelled():
                self._queue.release(group)
            else:
                turn.set_result(None)
