"""Many training steps in one call: Python and TensorFlow meet a few times a second, not at every step."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer.checkpoint.snapshot import NamedArray
from trainjob_trainer.engine.gradient_path import GradientPath
from trainjob_trainer.engine.metric_state import MetricState, OverAll, scalars
from trainjob_trainer.engine.not_finite import Found, OnNan
from trainjob_trainer.engine.stepping import ManySteps, build_step
from trainjob_trainer.engine.work_time import OwnTime
from trainjob_trainer.errors import InvalidConfiguration, first_line


class Engine:
    """A compiled Keras model under a strategy.

    Attributes:
        model: the one.
    """

    def __init__(
        self, strategy: Any, model: Any, on_nan: OnNan = OnNan.STOP, *, is_writer: bool = True
    ) -> None:
        """Trace nothing yet.

        Args:
            strategy: that the model was built under.
            model: from `build_model`.
            on_nan: what to do when a loss or a gradient is not finite.
            is_writer: whether what concerns all workers is this one's to say.
        """
        self.model = model
        self._strategy = strategy
        self._metrics = MetricState(model)
        self._metric_state: list[NamedArray] = []
        self._steps = ManySteps(
            strategy,
            build_step(model, compiled=model.jit_compile, is_writer=is_writer),
            lambda: (model.get_metrics_result(), self._metrics.reduced()),
            GradientPath.of(model, strategy, on_nan),
        )
        self._over_all = OverAll(strategy, model)

    def run(self, iterator: Any, count: int) -> dict[str, float]:
        """Take `count` steps; the same count on every worker.

        Returns:
            The metrics since the last `reset`, of this worker's own examples.
        """
        logs, reduced = self._steps.take(iterator, count)
        local = self._strategy.experimental_local_results
        self._metric_state = self._metrics.on_host([local(value)[0].numpy() for value in reduced])
        return scalars({name: local(value)[0] for name, value in logs.items()})

    @property
    def own_time(self) -> OwnTime:
        """What a step of the last call took this worker itself, its waiting for the others left out."""
        return self._steps.own_time

    @property
    def found(self) -> Found:
        """What the last call came across that was not finite; the same on every worker."""
        return self._steps.found

    @property
    def metric_state(self) -> list[NamedArray]:
        """The metrics' variables after the last call, over all workers; nothing right after a `reset`."""
        return self._metric_state

    def resume_metrics(self, state: Sequence[NamedArray], *, is_writer: bool) -> None:
        """Go on with the metrics of an epoch that an earlier run has begun.

        Those of another model, or of none, begin anew: they decide about nothing.
        """
        if self._metrics.put_back(state, is_writer=is_writer):
            self._metric_state = list(state)

    def reduced_metrics(self) -> dict[str, float]:
        """The metrics since the last `reset`, over all workers' examples. All workers call it together."""
        return scalars(self._over_all.results())

    def metric_names(self) -> list[str]:
        """Those of `reduced_metrics`, without computing them."""
        outputs = self._over_all.results.get_concrete_function().structured_outputs
        return [str(name) for name, value in outputs.items() if value.shape.rank == 0]

    def reset(self) -> None:
        """Begin a new epoch of metrics."""
        self._over_all.reset()
        self._metric_state = []


def build_model(strategy: Any, build: Callable[[], Any], spec: Any, seed: int) -> Any:
    """Call the user's function, seeded, and create every variable that training will need.

    Args:
        strategy: the model is built in its scope.
        build: the user's function.
        spec: `element_spec` of one batch.
        seed: of initial weights and random layers.

    Raises:
        InvalidConfiguration: it returns no compiled Keras model, or one that doesn't fit the data.
    """
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = build()
        if not isinstance(model, keras.Model):
            raise InvalidConfiguration(f"model() must return a Keras model, got {type(model).__name__}")
        if not model.compiled:
            raise InvalidConfiguration("model() must return a compiled model: call model.compile(...) in it")
        _create_variables(model, spec)
    return model


def _create_variables(model: Any, spec: Any) -> None:
    """They can't be created inside the traced steps. Keras does the same at the start of `fit`."""
    try:
        model._symbolic_build(data_batch=spec)
    except (ValueError, TypeError, RuntimeError) as error:
        traceback.print_exc()
        # Some of Keras's versions wrap all that happens there in advice to build the model by hand.
        wrapped = error.__context__ if isinstance(error, RuntimeError) else None
        why = first_line(wrapped or error)
        shapes = ", ".join(str(tuple(part.shape)[1:]) for part in tf.nest.flatten(spec))
        raise InvalidConfiguration(
            f"the model can't be trained on examples of the shapes {shapes}: {why}"
        ) from error
    model.optimizer.build(model.trainable_variables)
