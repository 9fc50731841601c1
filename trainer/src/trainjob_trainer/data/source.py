"""The user's function of the training data: what it is called with, and what that says about its examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from trainjob_trainer.data.batches import (
    TrainingData,
    check_examples,
    count,
    refuse_empty,
    shuffle_buffer,
    stream_in_turn,
)
from trainjob_trainer.data.cache import Cache
from trainjob_trainer.data.part import Part
from trainjob_trainer.data.policy import Policy
from trainjob_trainer.data.seeking import ReadOver, reorders_itself
from trainjob_trainer.data.turns import Place, place_of, turns
from trainjob_trainer.errors import InvalidConfiguration

STEP, PART = "step", "part"
"""Names of parameters: a function that has them is called with the steps done, and with the worker's part."""
_ENDLESS = -1


class TrainingSource:
    """Training data from `train()`, `train(step)`, `train(part)` or `train(step, part)`."""

    def __init__(
        self,
        load: Callable[..., Any],
        part: Part = Part(),  # noqa: B008 - it is frozen
        gather: Callable[[int], Sequence[int]] = lambda number: [number],
        cache: Cache | None = None,
    ) -> None:
        """Call it, unless it wants to know the step.

        Args:
            load: returns all examples. If it takes `part`, those of that part alone. If it takes `step`,
                examples without end, the first ones being those of that step.
            part: this worker's; all where one process reads for all workers.
            gather: what each worker gives it, by worker; all call it together.
            cache: keeps the examples once they have been read.

        Raises:
            InvalidConfiguration: as `measure`; or a part is empty, or endless while another one isn't.
        """
        self._load = load
        self._part = part
        self.takes_part, self.takes_step = takes(load, PART), takes(load, STEP)
        self._from_step: dict[int, TrainingData] = {}
        self.sizes: list[int] | None = None
        """Examples of each part, or of all as one; None where they are endless."""
        self._turns: list[TrainingData] = []
        if not self.takes_step:
            self._open(gather)
        if cache is not None:
            self._turns = self._kept(cache)

    @property
    def examples(self) -> int | None:
        """How many examples there are in all, or None when they are endless."""
        return None if self.sizes is None else sum(self.sizes)

    def share_of(self, worker: Part) -> Part:
        """What a worker has still to take of its stream: every n-th example, or all where it has its part."""
        return Part() if self.takes_part else worker

    def policy(self, workers: int, *, shuffle: bool, cache: str | None) -> Policy:
        """How so many workers share it."""
        limited = [
            shuffle_buffer(data) for data in self._turns if shuffle_buffer(data) < (data.examples or 0)
        ]
        window = min(limited, default=None)
        return Policy(workers, self.sizes, self.takes_part, shuffle and not self.takes_step, window, cache)

    def at(self, step: int) -> TrainingData:
        """What the function returns when so many steps are done.

        Raises:
            InvalidConfiguration: as `check_examples`; or what begins at a step ends.
        """
        if not self.takes_step:
            return self._turns[0]
        if step not in self._from_step:
            self._from_step[step] = self._open_step(step)
        return self._from_step[step]

    def stream(self, *, step: int, global_batch: int, seed: int, shuffle: bool) -> Any:
        """Examples from a step on, for ever."""
        if self.takes_step:
            return self.at(step).dataset
        place, part = self._place(step, global_batch), self._part if self.takes_part else Part()
        return stream_in_turn(self._turns, place, part=part, seed=seed, shuffle=shuffle)

    def read_over(self, step: int, global_batch: int) -> ReadOver | None:
        """Who tells what coming to that step takes; None where it takes nothing."""
        if self.takes_step or step == 0:
            return None
        return ReadOver(step, self._place(step, global_batch).offset)

    def _place(self, step: int, global_batch: int) -> Place:
        """Of the step, unless earlier passes decide on the order."""
        workers = self._part.count if self.takes_part else 1
        position = step * (global_batch // workers)
        if self.sizes is None or any(reorders_itself(data.dataset) for data in self._turns):
            return Place(0, 0, position)
        return place_of([data.examples or 0 for data in self._turns], position)

    def _open(self, gather: Callable[[int], Sequence[int]]) -> None:
        own = count(self._load(**({PART: self._part} if self.takes_part else {})), "train")
        self._turns = [own]
        if not self.takes_part:
            refuse_empty(own, "train")
            self.sizes = None if own.examples is None else [own.examples]
            return
        sizes = list(gather(_ENDLESS if own.examples is None else own.examples))
        check_parts(sizes)
        if _ENDLESS not in sizes:
            self.sizes = sizes
            order = turns(sizes, self._part.index)
            self._turns += [self._open_part(number, sizes[number]) for number in order[1:]]

    def _open_part(self, number: int, size: int) -> TrainingData:
        dataset = self._load(part=Part(number, self._part.count))
        check_examples(dataset, "train")
        return TrainingData(dataset, size)

    def _kept(self, cache: Cache) -> list[TrainingData]:
        if self.sizes is None:
            raise InvalidConfiguration(
                "cache: train() has no end, so no example would be read twice; leave the setting out"
            )
        return [cache.keep(data, number) for number, data in enumerate(self._turns)]

    def _open_step(self, step: int) -> TrainingData:
        dataset = self._load(step=step, **({PART: self._part} if self.takes_part else {}))
        check_examples(dataset, "train")
        if int(dataset.cardinality()) not in (tf.data.INFINITE_CARDINALITY, tf.data.UNKNOWN_CARDINALITY):
            raise InvalidConfiguration(
                "train(step) must return examples without end, as .repeat() does: how many epochs they are "
                "is yours to say, by steps=..."
            )
        return TrainingData(dataset, None)


def takes(load: Callable[..., Any], name: str) -> bool:
    """Whether the user's function has a parameter of this name."""
    try:
        return name in inspect.signature(load).parameters
    except (TypeError, ValueError):  # built in
        return False


def check_parts(sizes: Sequence[int]) -> None:
    """Refuse parts that can't be trained on together; all workers see the same sizes, and refuse together.

    Args:
        sizes: examples of each part, -1 for an endless one.

    Raises:
        InvalidConfiguration: one is empty, or endless while another one isn't.
    """
    empty = [number for number, size in enumerate(sizes) if size == 0]
    if empty:
        raise InvalidConfiguration(
            f"train(part) has no examples for part {empty[0]} of {len(sizes)} (numbered from 0), which is "
            f"worker {empty[0]}'s: where there are fewer files than workers, share their records, as "
            "`interleaved(files, parse, part=part)` does"
        )
    if _ENDLESS in sizes and set(sizes) != {_ENDLESS}:
        ends = next(number for number, size in enumerate(sizes) if size != _ENDLESS)
        raise InvalidConfiguration(
            f"train(part) is endless for some parts, and ends for part {ends}: repeat all of them or none"
        )
