"""Whose turn it is: which parts of the training data a worker reads, one after the other.

Workers take equally many examples a step. Where one part is smaller than another, its examples would come
more often, and count for more. So then every worker goes on to the next part when it is through with one:
each reads every example once before any example comes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NEARLY_EQUAL = 0.01
"""Parts that differ by no more stay with their workers, who then never read another's."""


@dataclass(frozen=True)
class Place:
    """A place in parts that are read one after the other, over and over.

    Attributes:
        cycle: how often all have been read.
        turn: how many have been read since.
        offset: examples read of the next one.
    """

    cycle: int
    turn: int
    offset: int


def are_nearly_equal(sizes: Sequence[int]) -> bool:
    """Whether the largest part is at most `NEARLY_EQUAL` larger than the smallest."""
    return max(sizes) <= min(sizes) * (1 + NEARLY_EQUAL)


def turns(sizes: Sequence[int], worker: int) -> list[int]:
    """The parts that a worker reads, in order: its own alone, or all of them from its own on.

    Args:
        sizes: examples of each part; there is one for each worker.
        worker: its number, from 0.
    """
    if are_nearly_equal(sizes):
        return [worker]
    return [(worker + turn) % len(sizes) for turn in range(len(sizes))]


def place_of(sizes: Sequence[int], position: int) -> Place:
    """Where one stands after `position` examples of parts that are read in this order."""
    cycle, left = divmod(position, sum(sizes))
    for turn, size in enumerate(sizes):
        if left < size:
            return Place(cycle, turn, left)
        left -= size
    raise AssertionError("more was left than all parts hold")
