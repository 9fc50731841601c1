"""Many training steps in one call of TensorFlow: Python has its say twice a second, not at each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainjob_trainer.engine.gradient_path import GradientPath, any_of
from trainjob_trainer.engine.not_finite import Found, OnNan
from trainjob_trainer.engine.work_time import OwnTime, data_moment, moment_after, own_seconds


class ManySteps:
    """A step, taken as often as wanted in one call.

    What a step returns is dropped, so that nothing is reduced over the workers but the gradients.

    Attributes:
        own_time: what a step of the last call took this process itself.
        found: what it came across that was not finite.
    """

    def __init__(
        self,
        strategy: Any,
        step: Callable[[Any], Any],
        results: Callable[[], Any],
        path: GradientPath | None = None,
    ) -> None:
        """Trace nothing yet.

        Args:
            strategy: whose replicas take the steps.
            step: one step of a replica, such as a model's `train_step`.
            results: of a replica after the last step.
            path: of the gradients that `step` hands to an optimizer.
        """
        self._strategy = strategy
        self._step = step
        self._results = results
        self._path = path or GradientPath(strategy)
        self._call = tf.function(self._traced, autograph=False, reduce_retracing=True)
        self.own_time = OwnTime()
        self.found = Found()

    def take(self, iterator: Any, count: int) -> Any:
        """Take `count` steps, the same count on every worker; return `results` of the replicas."""
        results, spent, *found = self._call(iterator, tf.constant(count, tf.int32))
        self.own_time = OwnTime.of(spent, count)  # waits for the call's end
        if found:
            first = self._strategy.experimental_local_results(found[0])[0]
            self.found = Found([round(float(one)) for one in first.numpy()], int(found[1]))
        return results

    def _traced(self, iterator: Any, count: Any) -> Any:
        watched = self._path.on_nan is not OnNan.IGNORE

        def body(done: Any, spent: Any, *found: Any) -> Any:
            began = moment_after([done])
            with tf.control_dependencies([began]):
                data = next(iterator)
            had = data_moment(data)
            one = self._strategy.run(self._one_step, args=(data,))
            later = self._noted(done, found, one) if watched else ()
            own = own_seconds(self._strategy, began, had, one["ready"])
            return (done + 1, spent + own, *later)

        none = (tf.constant(0), tf.constant(0)) if watched else ()
        begin = (tf.constant(0), tf.zeros([2], tf.float64), *none)
        _, spent, *found = tf.while_loop(lambda done, *_: done < count, body, begin)
        if not watched:
            return self._strategy.run(self._told)[0], spent
        results, first = self._strategy.run(self._told, args=(found[0],))
        return results, spent, first, found[1]

    def _one_step(self, data: Any) -> dict[str, Any]:
        return vars(self._path.trace(lambda: self._step(data)))

    def _noted(self, done: Any, found: Any, one: dict[str, Any]) -> tuple[Any, Any]:
        first, skipped = found
        local = self._strategy.experimental_local_results
        is_first = any_of(local(one["fault"])) & (first == 0)
        is_skipped = any_of(local(one["skipped"]))
        return tf.where(is_first, done + 1, first), skipped + tf.cast(is_skipped, tf.int32)

    def _told(self, first: Any = None) -> tuple[Any, Any]:
        """The results, and the replicas' first such steps: all replicas exchange them."""
        results = self._results()
        if first is None:
            return results, None
        # As float32, like the metrics; a call is never so long that it couldn't count its steps.
        context = tf.distribute.get_replica_context()
        mine = tf.one_hot(context.replica_id_in_sync_group, self._strategy.num_replicas_in_sync)
        return results, context.all_reduce(tf.distribute.ReduceOp.SUM, mine * tf.cast(first, tf.float32))
