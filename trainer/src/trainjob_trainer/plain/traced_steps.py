"""The traced calls of one model's training or test step, for Keras's own `fit` and `evaluate`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainjob_trainer.plain.calls import Stretch
from trainjob_trainer.plain.process import current_process
from trainjob_trainer.stepping import many_steps
from trainjob_trainer.work_time import seconds_a_step


class TracedSteps:
    """Takes many batches in one call of TensorFlow."""

    def __init__(self, model: Any, step: Callable[..., Any]) -> None:
        """Trace nothing yet.

        Args:
            model: compiled, under a strategy of several workers.
            step: the model's `train_step` or `test_step`.
        """
        self._model = model
        self._strategy = model.distribute_strategy
        self._trains = step.__name__ == "train_step"
        optimizer = model.optimizer if self._trains else None
        step = model._autoconvert_optionals(step)
        self._local = many_steps(self._strategy, step, model.get_metrics_result, optimizer)
        self._averaged = many_steps(self._strategy, step, self._average, optimizer)
        self.results = tf.function(model.get_metrics_result, autograph=False)
        """The metrics over all workers, who call it together."""

    def take(self, stretch: Stretch) -> dict[str, Any]:
        """Take the batches; return figures of this worker, or of all where somebody sees each batch."""
        call = current_process().call
        pace = call.pace if call is not None and self._trains else None
        steps = self._averaged if pace is not None and pace.is_fixed else self._local
        began = time.perf_counter()
        results, worked = steps(stretch.iterator, tf.constant(stretch.count, tf.int32))
        logs = {name: self._strategy.experimental_local_results(one)[0] for name, one in results.items()}
        own = seconds_a_step(worked, stretch.count)  # waits for the call's end
        if call is not None and pace is not None:
            pace.record(stretch.count, time.perf_counter() - began)
            call.work_seconds = own
        return logs

    def _average(self) -> dict[str, Any]:
        """The metrics' mean over all replicas, as Keras shows it, in one collective."""
        results = self._model.get_metrics_result()
        context = tf.distribute.get_replica_context()
        return dict(zip(results, context.all_reduce(tf.distribute.ReduceOp.MEAN, list(results.values()))))
