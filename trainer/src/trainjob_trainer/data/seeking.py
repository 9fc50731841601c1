"""Coming to the examples of a step: for free where the user's function can, else by reading up to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from trainjob_trainer.reporting.lines import announce

_SECONDS_WORTH_TELLING = 1.0


def reorders_itself(dataset: Any) -> bool:
    """Whether a pipeline shuffles anew each time it is read, so that an epoch follows from those before it.

    Only what TensorFlow lets one see: not a pipeline within a `flat_map` or `interleave`.
    """
    ahead = [dataset]
    while ahead:
        one = ahead.pop()
        if getattr(one, "_reshuffle_each_iteration", False):
            return True
        ahead.extend(one._inputs() if hasattr(one, "_inputs") else ())
    return False


class ReadOver:
    """Tells what it took to read a stream up to a step, when it took long."""

    def __init__(
        self,
        step: int,
        examples: int,
        tell: Callable[[str], None] = announce,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read over `examples`, to go on at `step`."""
        self._step = step
        self._examples = examples
        self._tell = tell
        self._clock = clock
        self._began: float | None = None

    def begin(self, stream: Any) -> Any:
        """The same stream; the clock starts when it is first asked for an example."""
        start = tf.data.Dataset.from_tensors(np.int64(0)).map(lambda _: _called(self._start))
        return start.flat_map(lambda _: stream)

    def end(self, batches: Any) -> Any:
        """The same batches; the clock stops when the first one is there."""

        def pass_on(number: Any, batch: Any) -> Any:
            stop = tf.cond(tf.equal(number, 0), lambda: _called(self._stop), lambda: tf.constant(0, tf.int64))
            with tf.control_dependencies([stop]):
                return tf.nest.map_structure(tf.identity, batch)

        return batches.enumerate().map(pass_on)

    def _start(self) -> None:
        self._began = self._clock()

    def _stop(self) -> None:
        seconds = self._clock() - self._began if self._began is not None else 0.0
        if seconds > _SECONDS_WORTH_TELLING:
            self._tell(
                f"it took {seconds:.1f} s to read train() up to step {self._step} ({self._examples:,} "
                "examples); a train(step) that begins there saves that"
            )


def _called(function: Callable[[], None]) -> Any:
    def call() -> Any:
        function()
        return np.int64(0)

    number = tf.numpy_function(call, [], tf.int64)
    number.set_shape([])
    return number
