"""A queue of keys with the rules of client-go's workqueue.

A key waits at most once, however often it is added. Two workers never process the same key; a key that is
added while a worker processes it is handed out again afterwards. Failures of a key increase the wait of that
key only. In addition, namespaces take turns, and none has all the workers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from trainjob.cluster.fair_slots import FairQueue

Key = TypeVar("Key", bound=Hashable)

PUT_OFF_SECONDS = 1.0
FIRST_RETRY = 0.05
LONGEST_RETRY = 60.0
SUPERSEDED_KEPT = 100
"""Superseded due times kept beyond the number of valid ones; above that, all of them are removed."""


class WorkQueue(Generic[Key]):
    """A queue that never blocks: `take` returns None when no key can be taken.

    Args:
        time: returns seconds of a monotonic clock.
        wake: called whenever a key may be taken or a due time is set.
        group_of: returns the group of a key; groups take turns.
        share: how many keys of one group may be processed concurrently; None for no limit.
        on_taken: called when a key is taken, with the seconds since it became due.
    """

    def __init__(
        self,
        time: Callable[[], float],
        wake: Callable[[], None] = lambda: None,
        *,
        group_of: Callable[[Key], Hashable] = lambda _key: None,
        share: int | None = None,
        on_taken: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self._time = time
        self._wake = wake
        self._group_of = group_of
        self._on_taken = on_taken
        self._ready: FairQueue[Key] = FairQueue(share=share)
        self._waiting: dict[Key, float] = {}  # when each became due; the first one has waited longest
        self._working: set[Key] = set()
        self._again: set[Key] = set()
        self._later: list[tuple[float, int, Key]] = []
        self._due: dict[Key, float] = {}
        self._order = 0
        self._resting: dict[Key, float] = {}  # until when each isn't handed out
        self._failures: dict[Key, int] = {}

    def __len__(self) -> int:
        """Return how many keys are due now."""
        self._promote()
        return len(self._ready)

    def add(self, key: Key) -> None:
        """Make the key due, or as soon as it has rested."""
        if key in self._working:
            self._again.add(key)
        elif (rest := self._resting.get(key, 0.0) - self._time()) > 0:
            self.add_after(key, rest)
        elif key not in self._waiting:
            self._resting.pop(key, None)
            self._waiting[key] = self._time()
            self._ready.add(key, self._group_of(key))
            self._wake()

    def add_after(self, key: Key, seconds: float) -> None:
        """Make the key due after so many seconds, unless an earlier due time is set."""
        if seconds <= 0:
            self.add(key)
            return
        due = self._time() + seconds
        if self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        self._order += 1
        heapq.heappush(self._later, (due, self._order, key))
        if len(self._later) > 2 * len(self._due) + SUPERSEDED_KEPT:
            self._later = [entry for entry in self._later if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._later)
        self._wake()

    def put_off(self, key: Key) -> None:
        """Make a key that is being processed due again: at once if no other is, else a little later.

        What has changed meanwhile is seen then too: a pass over a new job changes it many times itself.
        """
        if len(self):
            self._again.discard(key)
            self.add_after(key, PUT_OFF_SECONDS)
        else:
            self.add(key)

    def retry(self, key: Key) -> float:
        """Make the key due after a wait that doubles with each consecutive failure, and return the wait."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        wait = min(FIRST_RETRY * 2.0 ** min(failures, 20), LONGEST_RETRY)
        self.add_after(key, wait)
        return wait

    def forget(self, key: Key) -> None:
        """Reset the key's failure count after a success."""
        self._failures.pop(key, None)

    def take(self) -> Key | None:
        """Return a due key, or None if none can be taken; the key is the caller's until `done`."""
        self._promote()
        key = self._ready.take()
        if key is None:
            return None
        self._on_taken(self._time() - self._waiting.pop(key))
        self._working.add(key)
        return key

    def done(self, key: Key, rest: float = 0.0) -> None:
        """End the processing of the key; it is due again if it was added in the meantime.

        Args:
            key: what `take` has returned.
            rest: seconds for which it isn't handed out again, whatever happens.
        """
        self._working.discard(key)
        if rest > 0:
            self._resting[key] = self._time() + rest
        self._ready.release(self._group_of(key))
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        elif self._ready.has_next:
            self._wake()  # its group may have room for another key now

    def next_due(self) -> float | None:
        """Return the seconds until a key can be taken; 0 for now, None if that needs `add` or `done`."""
        if self._ready.has_next:
            return 0.0
        self._drop_superseded()
        return max(0.0, self._later[0][0] - self._time()) if self._later else None

    def longest_wait(self) -> float:
        """Return for how many seconds the oldest waiting key has been due; 0 if none waits."""
        return self._time() - next(iter(self._waiting.values())) if self._waiting else 0.0

    def _promote(self) -> None:
        while True:
            self._drop_superseded()
            if not self._later or self._later[0][0] > self._time():
                return
            _, _, key = heapq.heappop(self._later)
            del self._due[key]
            self.add(key)

    def _drop_superseded(self) -> None:
        while self._later and self._due.get(self._later[0][2]) != self._later[0][0]:
            heapq.heappop(self._later)
