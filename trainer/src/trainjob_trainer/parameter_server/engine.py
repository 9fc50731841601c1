"""Steps of a compiled Keras model, taken by workers on variables that lie on the parameter servers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainjob_trainer.checkpoint.snapshot import NamedArray, read
from trainjob_trainer.engine.gradient_path import GradientPath, any_of
from trainjob_trainer.engine.metric_state import METRICS, MetricState, metric_variables, scalars
from trainjob_trainer.engine.model_state import optimizers_of
from trainjob_trainer.engine.not_finite import OnNan
from trainjob_trainer.engine.work_time import moment_after

# Sums that several workers add to at once.
#
# Keras adds to a variable by reading it, adding, and writing the sum back. Where two workers do so at the
# same time one of them is forgotten: a third of all steps, with two workers. The server itself adds without
# that.


def add_on_server(model: Any) -> None:
    """From now on a built model's metrics and its optimizer's count of steps are added to where they lie."""
    for variable in summed_variables(model):
        _add_in_place(variable)


def summed_variables(model: Any) -> Iterable[Any]:
    """Those that Keras adds to by itself; weights and their moments are updated in place anyway."""
    iterations = getattr(model.optimizer, "iterations", None)
    return [*metric_variables(model), *([iterations] if iterations is not None else [])]


def _add_in_place(variable: Any) -> None:
    def assign_add(value: Any) -> Any:
        variable.value.assign_add(tf.cast(value, variable.value.dtype))
        return variable.value

    def assign_sub(value: Any) -> Any:
        variable.value.assign_sub(tf.cast(value, variable.value.dtype))
        return variable.value

    variable.assign_add, variable.assign_sub = assign_add, assign_sub


@dataclass(frozen=True)
class Block:
    """Steps that one worker has taken.

    Attributes:
        seconds: that so many take, by the mean of what has been taken since the block before.
        faults: by worker, the first step of a block, from 1, whose loss or gradients were not finite; 0
            without one. The weights were left as they were before it.
    """

    steps: int
    seconds: float
    faults: Sequence[int] = ()


class CoordinatedEngine:
    """Hands out blocks of steps, and counts each when it has been taken.

    A block whose worker has died is handed to another one. Some of its steps may have been taken: they are
    taken again, and counted once. The strategy is connected to all workers; the model is built by
    `engine.build_model` with it. With `watched`, updates that are not finite are left out, and reported.
    """

    def __init__(self, strategy: Any, model: Any, workers: int, *, watched: bool = True) -> None:
        add_on_server(model)
        self._coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
        self.model = model
        self._metrics = MetricState(model)
        self._outstanding: deque[tuple[int, Any]] = deque()
        self._tally = Tally(strategy, workers)
        on_nan = OnNan.SKIP if watched else OnNan.IGNORE
        path = GradientPath(strategy, optimizers_of(model), on_nan)
        self._steps = many_steps(strategy, model.train_step, path, self._tally)

    @property
    def outstanding(self) -> int:
        """Blocks that have been handed out and not been taken back."""
        return len(self._outstanding)

    def hand_out(self, iterators: Any, steps: int) -> None:
        """Let whichever worker has time take so many steps, at least 1, with its `reading.worker_iterators`.

        Raises tf.errors.OpError if an earlier block failed for another reason than its worker's end.
        """
        block = self._coordinator.schedule(self._steps, args=(iterators, tf.constant(steps, tf.int32)))
        self._outstanding.append((steps, block))

    def take_back(self) -> Block:
        """Wait for the block that was handed out first of those that are left; raises as `hand_out`."""
        steps, block = self._outstanding.popleft()
        block.fetch()
        seconds_a_step, faults = self._tally.look()
        return Block(steps, steps * seconds_a_step, faults)

    def metrics(self) -> dict[str, float]:
        """The metrics since the last `reset`, of all steps that have been taken by now."""
        return scalars(self.model.get_metrics_result())

    def reset(self) -> None:
        """Begin a new epoch of metrics. No block may be outstanding."""
        self.model.reset_metrics()

    @property
    def metric_state(self) -> list[NamedArray]:
        """The metrics' variables. No block may be outstanding."""
        return read({METRICS: metric_variables(self.model)})[METRICS]

    def resume_metrics(self, state: Sequence[NamedArray]) -> None:
        """Go on with the metrics of an epoch that an earlier run has begun, if they are this model's."""
        self._metrics.put_back(state, is_writer=True)


class Tally:
    """What workers tell of their blocks, on a parameter server.

    What a block returned would stay with its worker until the chief fetches it, and be lost with that worker.
    """

    def __init__(self, strategy: Any, workers: int) -> None:
        """Create the variable: seconds and steps so far, and a number for each worker."""
        with strategy.scope():
            self._sums = tf.Variable(tf.zeros([2 + workers], tf.float64), trainable=False, name="tally")
        self._workers = workers
        self._seen = np.zeros(2)
        self._seconds_a_step = 0.0

    def add(self, seconds: Any, steps: Any, worker: Any, fault: Any) -> Any:
        """In a worker's trace, at a block's end: it took so long, and this was its first bad step, or 0."""
        done = tf.stack([seconds, tf.cast(steps, tf.float64)])
        faults = tf.one_hot(worker, self._workers, dtype=tf.float64) * tf.cast(fault, tf.float64)
        return self._sums.assign_add(tf.concat([done, faults], axis=0), read_value=False)

    def look(self) -> tuple[float, list[int]]:
        """Seconds a step since the last look, and the workers' numbers."""
        sums = self._sums.numpy()
        seconds, steps = sums[:2] - self._seen
        if steps:  # else another block, looked at before, ended with this one
            self._seconds_a_step = seconds / steps
            self._seen = sums[:2]
        return self._seconds_a_step, [int(number) for number in sums[2:]]


def many_steps(strategy: Any, step: Any, path: GradientPath, tally: Tally) -> Any:
    """Return a function of a worker's iterator and of how many steps to take, which adds to the tally."""

    @tf.function(autograph=False)  # type: ignore[untyped-decorator,unused-ignore]
    def call(iterator: Any, count: Any) -> None:
        def body(done: Any, _: Any, first_fault: Any) -> Any:
            with tf.control_dependencies([done]):
                worker, data = next(iterator)
            one = strategy.run(lambda: vars(path.trace(lambda: step(data))))
            has_fault = any_of(strategy.experimental_local_results(one["fault"]))
            is_first = has_fault & (first_fault == 0)
            return done + 1, worker, tf.where(is_first, done + 1, first_fault)

        began = moment_after([count])
        begin = tf.constant(0), tf.constant(0, tf.int64), tf.constant(0)
        with tf.control_dependencies([began]):
            done, worker, first_fault = tf.while_loop(lambda done, *_: done < count, body, begin)
        tally.add(moment_after([done]) - began, done, worker, first_fault)

    return call
