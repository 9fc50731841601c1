"""Delays before a new try of what keeps failing, and how much of a wait is left."""

from __future__ import annotations

from datetime import datetime, timedelta

LONGEST = timedelta(seconds=60)
MOST_SKEW = timedelta(seconds=10)
FIRST_RETRY_START = timedelta(seconds=10)
LONGEST_START = timedelta(minutes=6)
FIRST_RETRY_REFUSED = timedelta(seconds=5)
RECHECK = timedelta(seconds=15)
"""Time until the next look at an obstacle whose end no event reports."""


def start_delay(failures: int) -> timedelta:
    """Return 10, 20, 40, … s, at most six minutes, as batch/v1 waits: what a start needs may come back."""
    return min(FIRST_RETRY_START * 2.0 ** min(failures - 1, 10), LONGEST_START)


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
