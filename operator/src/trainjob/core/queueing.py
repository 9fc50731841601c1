"""How long to wait after failures, and whose turn it is."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Hashable
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

# How long to wait before starting again what keeps failing.


LONGEST = timedelta(seconds=60)
MOST_SKEW = timedelta(seconds=10)
FIRST_RETRY_REFUSED = timedelta(seconds=5)
LOOK_AGAIN = timedelta(seconds=15)
"""How long to wait before seeing whether what is in the way has gone: nobody tells."""


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

    `since` may have been written by a node's clock, or by a controller elsewhere: a time far ahead of ours is
    no time to wait for, or a job would hang for as long as clocks differ.
    """
    left = since + length - now
    return left if left <= length + MOST_SKEW else timedelta(0)


def soonest(*waits: timedelta | None) -> timedelta | None:
    """Return the shortest of several waits, None among them meaning none."""
    return min((wait for wait in waits if wait is not None), default=None)


# Whose turn it is among many who wait for few places: first each namespace's, then each job's in it.
#
# Polls, writes to the API server and passes over jobs all have a number of places. In the order of their
# coming a thousand waiting for one job would hold up everybody.


Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Who waits, and who has a place; nothing here takes time.

    Groups (namespaces) take turns, within a group its members (jobs) do, and what waits for one member comes
    in its own order.

    Args:
        places: how many there are; None for as many as are asked for.
        share: the most of them that one group may have; None for all.
    """

    def __init__(self, places: int | None = None, share: int | None = None) -> None:
        self._places = places
        self._share = share
        self._groups: OrderedDict[Hashable, OrderedDict[Hashable, deque[Item]]] = OrderedDict()
        self._held: Counter[Hashable] = Counter()
        self._waiting = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return self._waiting

    @property
    def has_next(self) -> bool:
        """Tell whether somebody could have a place now."""
        return self._next_group() is not None

    def add(self, item: Item, group: Hashable, member: Hashable = None) -> None:
        """Let something wait for a place, behind what waits for the same member."""
        members = self._groups.setdefault(group, OrderedDict())
        members.setdefault(member, deque()).append(item)
        self._waiting += 1

    def take(self) -> Item | None:
        """Give the next one a place, until `release`; None while there is none, or nobody may have one."""
        found = self._next_group()
        if found is None:
            return None
        (group,) = found
        members = self._groups[group]
        member, items = next(iter(members.items()))
        item = items.popleft()
        _turn(members, member, is_over=not items)
        _turn(self._groups, group, is_over=not members)
        self._held[group] += 1
        self._waiting -= 1
        return item

    def release(self, group: Hashable) -> None:
        """Take back a place that this group has had."""
        self._held[group] -= 1
        if not self._held[group]:
            del self._held[group]

    def _next_group(self) -> tuple[Hashable] | None:
        """Return whose turn it is, in a tuple, since a group may be anything; few are passed over."""
        if self._places is not None and self._held.total() >= self._places:
            return None
        share = self._share
        return next(((group,) for group in self._groups if share is None or self._held[group] < share), None)


def _turn(ring: OrderedDict[Hashable, Any], key: Hashable, *, is_over: bool) -> None:
    """Let the next one have its turn before this one has another."""
    if is_over:
        del ring[key]
    else:
        ring.move_to_end(key)
