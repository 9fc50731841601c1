"""Steps of a compiled Keras model, taken by workers on variables that lie on the parameter servers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainjob_trainer.checkpoint.snapshot import NamedArray, read
from trainjob_trainer.engine.metric_state import METRICS, MetricState
from trainjob_trainer.engine.metrics import scalars
from trainjob_trainer.engine.work_time import moment_after
from trainjob_trainer.parameter_server.counting import add_on_server, metric_variables


@dataclass(frozen=True)
class Block:
    """Steps that one worker has taken.

    Attributes:
        steps: how many.
        seconds: that they took it.
    """

    steps: int
    seconds: float


class CoordinatedEngine:
    """Hands out blocks of steps, and counts each when it has been taken.

    A block whose worker has died is handed to another one. Some of its steps may have been taken: they are
    taken again, and counted once.

    Attributes:
        model: the compiled one.
    """

    def __init__(self, strategy: Any, model: Any) -> None:
        """Trace nothing yet; the model comes from `engine.build_model` with the same strategy."""
        add_on_server(model)
        self._coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
        self.model = model
        self._metrics = MetricState(model)
        self._outstanding: deque[tuple[int, Any]] = deque()
        self._steps = _many_steps(strategy, model.train_step)

    @property
    def outstanding(self) -> int:
        """Blocks that have been handed out and not been taken back."""
        return len(self._outstanding)

    def hand_out(self, iterators: Any, steps: int) -> None:
        """Let whichever worker has time take so many steps.

        Args:
            iterators: from `shares.worker_iterators`.
            steps: at least 1.

        Raises:
            tf.errors.OpError: an earlier block failed for another reason than its worker's end.
        """
        block = self._coordinator.schedule(self._steps, args=(iterators, tf.constant(steps, tf.int32)))
        self._outstanding.append((steps, block))

    def take_back(self) -> Block:
        """Wait for the block that was handed out first of those that are left.

        Raises:
            tf.errors.OpError: as `hand_out`.
        """
        steps, block = self._outstanding.popleft()
        return Block(steps, float(block.fetch()))

    def metrics(self) -> dict[str, float]:
        """The metrics since the last `reset`, of all steps that have been taken by now."""
        return scalars(self.model.get_metrics_result())

    def metric_names(self) -> list[str]:
        """Those of `metrics`."""
        return list(self.metrics())

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


def _many_steps(strategy: Any, step: Any) -> Any:
    """Return a function of a worker's iterator and of how many steps to take, which returns their seconds."""

    @tf.function(autograph=False)  # type: ignore[untyped-decorator,unused-ignore]
    def call(iterator: Any, count: Any) -> Any:
        def body(done: Any) -> Any:
            with tf.control_dependencies([done]):
                data = next(iterator)
            strategy.run(lambda: step(data))
            return done + 1

        began = moment_after([count])
        with tf.control_dependencies([began]):
            done = tf.while_loop(lambda done: done < count, body, [tf.constant(0)])
        return moment_after(tf.nest.flatten(done)) - began

    return call
