"""Delays after failures, and a fair queue."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Hashable
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

# Delays before a new try of what keeps failing.


LONGEST = timedelta(seconds=60)
MOST_SKEW = timedelta(seconds=10)
FIRST_RETRY_REFUSED = timedelta(seconds=5)
RECHECK = timedelta(seconds=15)
"""Time until the next look at an obstacle whose end no event reports."""


def restart_delay(failures: int) -> timedelta:
    """Return 0, 1, 2, 4, … 60 s for the 1st, 2nd, … failure in a row without progress."""
    if failures < 2:
        return timedelta(0)
    return min(timedelta(seconds=2 ** min(failures - 2, 10)), LONGEST)


def refusal_delay(refusals: int) -> timedelta:
    """Return 5, 10, 20, 40, 60, 60, … s for the 1st, 2nd, … refusal in a row: a quota may have room later."""
    return min(FIRST_RETRY_REFUSED * 2.0 ** min(refusals - 1, 10), LONGEST)


def time_left(since: datetime, length: timedelta, now: datetime) -> timedelta:
    """Return what is left of a short wait, 0 or less once it is over.

    `since` may come from the clock of a node or of another controller. A time far ahead of our clock ends the
    wait: otherwise a job would hang for as long as clocks differ.
    """
    left = since + length - now
    return left if left <= length + MOST_SKEW else timedelta(0)


def soonest(*waits: timedelta | None) -> timedelta | None:
    """Return the shortest of several waits, where None is no wait; None if there is none."""
    return min((wait for wait in waits if wait is not None), default=None)


# A fair queue for few slots: namespaces take turns, and so do the jobs of each.
#
# Polls, writes to the API server and passes over jobs have a limited number of slots. In order of arrival,
# a thousand items of one job would delay all other jobs.


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
        self._groups: OrderedDict[Hashable, OrderedDict[Hashable, deque[Item]]] = OrderedDict()
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
        members = self._groups.setdefault(group, OrderedDict())
        members.setdefault(member, deque()).append(item)
        self._waiting += 1

    def take(self) -> Item | None:
        """Return the next item, with a slot until `release`; None if no item may have a slot now."""
        found = self._next_group()
        if found is None:
            return None
        (group,) = found
        members = self._groups[group]
        member, items = next(iter(members.items()))
        item = items.popleft()
        _move_on(members, member, is_over=not items)
        _move_on(self._groups, group, is_over=not members)
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


def _move_on(ring: OrderedDict[Hashable, Any], key: Hashable, *, is_over: bool) -> None:
    """Move a key to the end of its ring, or remove it if it has no items left."""
    if is_over:
        del ring[key]
    else:
        ring.move_to_end(key)
