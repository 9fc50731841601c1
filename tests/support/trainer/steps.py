"""Steps of a compiled model, taken without Keras's `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from trainjob_trainer.keras.gradients import GradientPath
from trainjob_trainer.keras.metrics import scalars
from trainjob_trainer.keras.not_finite import Found, OnNan
from trainjob_trainer.keras.steps import ManySteps, in_parts


def build_model(build: Callable[[], Any], spec: Any, seed: int) -> Any:
    """A compiled model with all variables that training on batches of `spec` needs."""
    keras.utils.set_random_seed(seed)
    model = build()
    model._symbolic_build(data_batch=spec)
    model.optimizer.build(model.trainable_variables)
    return model


class Steps:
    """Many in a call."""

    def __init__(self, strategy: Any, model: Any, on_nan: OnNan = OnNan.STOP) -> None:
        self._strategy = strategy
        self._steps = ManySteps(
            strategy,
            in_parts(model, model.train_step, is_writer=True),
            model.get_metrics_result,
            GradientPath.of(model, strategy, on_nan),
        )

    def run(self, iterator: Any, count: int) -> dict[str, float]:
        """The metrics of this worker after so many steps."""
        results = self._steps.take(iterator, count)
        local = self._strategy.experimental_local_results
        return scalars({name: local(value)[0] for name, value in results.items()})

    @property
    def found(self) -> Found:
        """What was not finite in the last call."""
        return self._steps.found
