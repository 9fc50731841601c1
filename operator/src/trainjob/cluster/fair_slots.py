"""Slots that namespaces, and the jobs in each, take in turn.

Polls, writes to the API server and passes over jobs have a limited number of slots. In order of arrival, a
thousand items of one job would delay all other jobs.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """The items that wait for a slot, and the slots in use; no method blocks.

    Groups (namespaces) take turns, and so do the members (jobs) of a group. Items of one member keep their
    order.

    Args:
        slots: the number of slots; None for no limit.
        share: the most slots that one group may have; None for all.
    """

    def __init__(self, slots: int | None = None, share: int | None = None) -> None:
        self._slots = slots
        self._share = share
        self._groups: dict[Hashable, dict[Hashable, deque[Item]]] = {}  # the next ones first
        self._held: Counter[Hashable] = Counter()
        self._waiting = 0

    def __len__(self) -> int:
        """Return the number of waiting items."""
        return self._waiting

    @property
    def has_next(self) -> bool:
        """Return whether an item could have a slot now."""
        return self._next_group() is not None

    def add(self, item: Item, group: Hashable, member: Hashable = None) -> None:
        """Add an item that waits for a slot, behind the other items of its member."""
        self._groups.setdefault(group, {}).setdefault(member, deque()).append(item)
        self._waiting += 1

    def take(self) -> Item | None:
        """Return the next item, with a slot until `release`; None if no item may have a slot now."""
        following = self._next_group()
        if following is None:
            return None
        (group,) = following
        members = self._groups.pop(group)
        member = next(iter(members))
        items = members.pop(member)
        item = items.popleft()
        if items:
            members[member] = items  # behind the others of its group
        if members:
            self._groups[group] = members
        self._held[group] += 1
        self._waiting -= 1
        return item

    def release(self, group: Hashable) -> None:
        """Free a slot of this group."""
        self._held[group] -= 1
        if not self._held[group]:
            del self._held[group]

    def _next_group(self) -> tuple[Hashable] | None:
        """Return the next group in a tuple, since a group may be any value; few groups are skipped."""
        if self._slots is not None and self._held.total() >= self._slots:
            return None
        share = self._share
        return next(((group,) for group in self._groups if share is None or self._held[group] < share), None)


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
        while (entry := self._queue.take()) is not None:
            waiter, group = entry
            if waiter.cancelled():
                self._queue.release(group)
            else:
                waiter.set_result(None)
