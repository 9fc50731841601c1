"""Many training steps in one call of TensorFlow: Python has its say twice a second, not at each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainjob_trainer.work_time import moment_after, own_seconds, with_gradients_moment


def many_steps(
    strategy: Any, step: Callable[[Any], Any], results: Callable[[], Any], optimizer: Any = None
) -> Any:
    """Trace nothing yet; return a function of an iterator and of how many steps to take.

    What a step returns is dropped, so that nothing is reduced over the workers but the gradients.

    Args:
        strategy: whose replicas take the steps.
        step: one step of a replica, such as a model's `train_step`.
        results: of a replica after the last step.
        optimizer: that `step` hands its gradients to.

    Returns:
        A function that returns `results` of the replicas, and the seconds that the steps took this process
        itself as `own_seconds` tells them.
    """

    def one_step(data: Any) -> Any:
        _, ready = with_gradients_moment(optimizer, lambda: step(data))
        return ready

    @tf.function(autograph=False, reduce_retracing=True)  # type: ignore[untyped-decorator,unused-ignore]
    def call(iterator: Any, count: Any) -> Any:
        def body(done: Any, worked: Any) -> Any:
            began = moment_after([done])
            with tf.control_dependencies([began]):
                data = next(iterator)
            ready = strategy.run(one_step, args=(data,))
            return done + 1, worked + own_seconds(strategy, began, ready)

        begin = (tf.constant(0), tf.constant(0.0, tf.float64))
        _, worked = tf.while_loop(lambda done, _: done < count, body, begin)
        return strategy.run(results), worked

    return call
