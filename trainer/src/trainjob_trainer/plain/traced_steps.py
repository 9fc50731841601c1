"""Calls of a model's training or test step, for Keras's own `fit` and `evaluate`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from trainjob_trainer.engine.gradient_path import GradientPath
from trainjob_trainer.engine.metric_state import (
    MetricState,
    OverAll,
    Result,
    Told,
    have_effects,
    read_over_all,
    results_noted,
)
from trainjob_trainer.engine.not_finite import OnNan
from trainjob_trainer.engine.replica_share import retried
from trainjob_trainer.engine.stepping import ManySteps, announce_first_step
from trainjob_trainer.plain.calls import Batches, is_left_to_keras, metrics_may_wait, shared
from trainjob_trainer.plain.process import assigned, current_process


class TracedSteps:
    """Takes many batches of a compiled model in one TensorFlow call."""

    def __init__(self, model: Any, step: Callable[..., Any]) -> None:
        self._model = model
        self._strategy = model.distribute_strategy
        self._trains = step.__name__ == "train_step"
        path, call = None, current_process().call
        step = shared(model, step, step.__name__)
        if self._trains and call is not None:
            path = GradientPath.of(model, self._strategy, call.watch.on_nan if call.watch else OnNan.IGNORE)
        with_optionals = getattr(model, "_autoconvert_optionals", None)  # only in newer versions of Keras
        step = with_optionals(step) if with_optionals else step
        self._local = ManySteps(self._strategy, step, model.get_metrics_result, path)
        self._seen = ManySteps(self._strategy, step, self._results_over_all, path)
        self.over_all = OverAll(self._strategy, model)
        self._is_announced = not (self._trains and current_process().is_writer)

    def take(self, batches: Batches) -> dict[str, Any]:
        """Take the batches; return metrics of this worker, or of all workers if a callback looks at them.

        Raises NotFinite if a loss or a gradient is not finite, and that ends the training.
        """
        process = current_process()
        call = process.call
        steps = self._seen if batches.is_seen else self._local
        if not self._is_announced:
            self._is_announced = True
            announce_first_step(self._model)
        began = time.perf_counter()
        for data, count in batches.in_calls():
            results = steps.take(data, count)
        logs = {name: self._strategy.experimental_local_results(one)[0] for name, one in results.items()}
        if call is not None and self._trains:
            if call.executions is not None:
                call.executions.record(batches.count, time.perf_counter() - began)
            call.gathers = any(getattr(one, "is_gathered", False) for one in self._model.trainable_variables)
            call.own_time = steps.own_time
            if call.watch is not None:
                call.watch.look(steps.found, process.step)
        return logs

    def _results_over_all(self) -> Any:
        state = MetricState(self._model)
        return state.results(state.reduced())


class _MetricsAreNeeded(Exception):
    """The step of a model that is left to Keras needs its metrics over all workers at each batch."""


class KerasSteps:
    """Keras's own calls of a model's step.

    Under several workers each metric is reduced where the step reads it, and each value that the step returns
    once more: that may be half of a short step's time. Often nobody looks at them before the end of an epoch,
    where Keras takes the last batch's. Then, if a step returns only results of metrics, and doesn't use them
    otherwise, each worker reads its own metrics in the step, and they are reduced at the end.
    """

    def __init__(self, model: Any, step: Callable[..., Any], make: Callable[[Any, Any], Any]) -> None:
        """`make` is Keras's maker of functions: it takes the model and the step."""
        self._model = model
        self._step = step
        self.call = retried(make(model, self._reading if is_left_to_keras(model) else step))
        self._waiting_call = retried(make(model, self._waiting)) if metrics_may_wait(model) else None
        self._tracing = ExitStack()
        self._noted: dict[int, Result] | None = None
        self._told: Any = None
        self.over_all: OverAll | None = None
        """Set once what the step returns is known to be the metrics' results."""

    def take(self, batches: Batches) -> Any:
        """Take the batches; return metrics of this worker, or of all workers if they are needed."""
        most = self._model.steps_per_execution
        for data, count in batches.in_calls(most):
            # Keras's own loop over several batches of an iterator fails under this strategy.
            given = data if most == 1 or isinstance(data, list) else list(itertools.islice(data, count))
            logs = self._take(given, is_seen=batches.is_seen)
        return logs

    def _take(self, iterator: Any, *, is_seen: bool) -> Any:
        call = current_process().call
        if is_seen or call is None or self._waiting_call is None:
            return self.call(iterator)
        if self.over_all is None:  # the first call is traced, and may have to be made anew
            iterator = list(itertools.islice(iterator, self._model.steps_per_execution))
        try:
            with assigned(call, "reduces", False), self._tracing:
                logs = self._waiting_call(iterator)
        except _MetricsAreNeeded:
            self._waiting_call = self.over_all = None
            return self.call(iterator)
        if self.over_all is None:
            told = Told(self._model.metrics, self._results)
            self.over_all = OverAll(self._model.distribute_strategy, told)
        return logs

    def _reading(self, data: Any) -> Any:
        with read_over_all(self._model):
            return self._step(data)

    def _waiting(self, data: Any) -> Any:
        if self._noted is None:  # the first device of this process: all are traced in turns
            self._noted = self._tracing.enter_context(results_noted(self._model))
            self._tracing.callback(setattr, self, "_noted", None)
        noted, logs = self._noted, self._step(data)
        found = [noted.get(id(one)) for one in tf.nest.flatten(logs)]
        if not isinstance(logs, dict) or None in found or have_effects(one.tensor for one in noted.values()):
            raise _MetricsAreNeeded
        self._told = tf.nest.pack_sequence_as(logs, found)
        return logs

    def _results(self) -> Any:
        """Return the metrics in the form of Keras's logs: its own names, or else the step's."""
        results = self._model.get_metrics_result()
        if set(results) == set(self._told):
            return results
        return tf.nest.map_structure(Result.again, self._told)
