"""The learning rate of a larger batch: scaled linearly, and approached from zero.

The rule is that of Goyal et al., "Accurate, Large Minibatch SGD" (2017): k times the examples a step take k
times the rate; a warm-up keeps the first steps, in which the weights change most, from diverging.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.recipe import Recipe


class ScaledRate(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc,unused-ignore]
    """A rate or schedule, times a factor, with a warm-up."""

    def __init__(self, rate: Any, factor: float, warmup_steps: int) -> None:
        """Put it before a rate.

        Args:
            rate: a number, or a schedule, which goes on from step 0 as without this.
            factor: of the rate.
            warmup_steps: step s of them, counted from 0, takes (s + 1) / `warmup_steps` of it; 0 is none.
        """
        self._rate = rate
        self._factor = factor
        self._warmup_steps = warmup_steps

    def __call__(self, step: Any) -> Any:
        """Return the rate of a step, a float32 scalar."""
        rate = tf.cast(self._rate(step) if callable(self._rate) else self._rate, tf.float32)
        share = (tf.cast(step, tf.float32) + 1.0) / max(self._warmup_steps, 1)
        return rate * self._factor * tf.minimum(share, 1.0)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, for Keras."""
        return {"rate": self._rate, "factor": self._factor, "warmup_steps": self._warmup_steps}


def scale_learning_rate(model: Any, recipe: Recipe) -> None:
    """Have the optimizer of a compiled model take the recipe's rate; without such settings change nothing.

    Raises:
        InvalidConfiguration: the optimizer's rate is a function, which can't be looked into.
    """
    factor = (recipe.global_batch or 0) / recipe.base_batch if recipe.base_batch else 1.0
    if factor == 1.0 and not recipe.warmup_steps:
        return
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    rate = optimizer._learning_rate  # the property returns a schedule's value of the moment
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        if callable(rate) and not hasattr(rate, "numpy"):
            raise InvalidConfiguration(
                "base_batch, warmup_steps: the optimizer's learning rate is a function; give a number or a "
                "keras.optimizers.schedules.LearningRateSchedule"
            )
        rate = float(rate)
    optimizer.learning_rate = ScaledRate(rate, factor, recipe.warmup_steps)
