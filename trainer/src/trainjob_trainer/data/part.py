"""Which part of the training data a worker reads, where it reads no more than that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from trainjob_trainer.task import Task

Item = TypeVar("Item")


@dataclass(frozen=True)
class Part:
    """One of as many parts of the training data as there are workers.

    Attributes:
        index: its number, from 0.
        count: how many parts there are.
    """

    index: int = 0
    count: int = 1

    def of(self, items: Sequence[Item]) -> list[Item]:
        """Every `count`-th of the items from the `index`-th on: no other part has them.

        Args:
            items: in the same order on every worker, such as sorted names of files.
        """
        return list(items)[self.index :: self.count]


def part_of(task: Task) -> Part:
    """The part that a process reads: all, where it trains by itself, hands out the steps or evaluates."""
    if task.is_coordinator or task.is_evaluator:
        return Part()
    return Part(task.rank, task.num_workers)
