"""Calls of a model's training or test step, for Keras's own `fit` and `evaluate`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trainjob_trainer.keras.data import Batches
from trainjob_trainer.keras.gradients import GradientPath
from trainjob_trainer.keras.metrics import (
    MetricState,
    OverAll,
    have_effects,
    read_over_all,
    results_noted,
)
from trainjob_trainer.keras.steps import ManySteps, announce_first_step
from trainjob_trainer.keras.trainer import has_keras_steps, shared
from trainjob_trainer.session import current_process


class _ResultsAreUsed(Exception):
    """A step of the user's uses a metric's result, which then must be that of all workers."""


class TracedSteps:
    """Takes many batches of a compiled model in one TensorFlow call.

    For a step of the user's, `reduce` is Keras's reduction of what it returns: that of the last batch counts.
    A metric that such a step reads is one of all workers. That takes a meeting, and so is done in the last
    batch alone, unless the step does more with the result than return it.
    """

    def __init__(self, model: Any, step: Callable[..., Any], reduce: Callable[[Any], Any]) -> None:
        self._model = model
        self._strategy = model.distribute_strategy
        self._trains = step.__name__ == "train_step"
        path, call = None, current_process().call
        step = shared(model, step, step.__name__)
        if self._trains and call is not None:
            path = GradientPath.of(model, self._strategy, call.watch.on_nan)
        with_optionals = getattr(model, "_autoconvert_optionals", None)  # only in newer versions of Keras
        self._step = step = with_optionals(step) if with_optionals else step
        self._is_own, self._uses_results, self._done = not has_keras_steps(model), False, 0
        if self._is_own:
            self._local = ManySteps(self._strategy, self._unread, path=path)
            self._seen = ManySteps(self._strategy, self._reading, path=path, reduce=reduce)
        else:
            self._local = ManySteps(self._strategy, step, model.get_metrics_result, path)
            self._seen = ManySteps(self._strategy, step, self._results_over_all, path)
        self.over_all = OverAll(self._strategy, model)
        self._is_announced = not (self._trains and current_process().is_writer)

    def take(self, batches: Batches) -> Any:
        """Take the batches; return what a step of the user's returns, or else the metrics.

        Those are this worker's, or of all workers if a callback looks at them. Raises NotFinite if a loss or
        a gradient is not finite, and that ends the training.
        """
        if not self._is_announced:
            self._is_announced = True
            announce_first_step(self._model)
        call, began = current_process().call, time.perf_counter()
        self._done = 0
        for data, count in batches.in_calls():
            if self._is_own:
                is_last = self._done + count == batches.count or batches.is_open
                results = self._take_own(data, count, is_last=is_last)
            else:
                results = self._run(self._seen if batches.is_seen else self._local, data, count)
        if call is not None and self._trains:
            if call.executions is not None:
                call.executions.record(batches.count, time.perf_counter() - began)
            call.gathers = any(getattr(one, "is_gathered", False) for one in self._model.trainable_variables)
        if self._is_own:
            return results
        return {name: self._strategy.experimental_local_results(one)[0] for name, one in results.items()}

    def _take_own(self, data: Any, count: int, *, is_last: bool) -> Any:
        unread = count - is_last
        if unread and not self._uses_results:
            try:
                results = self._run(self._local, data, unread)
                count -= unread
            except _ResultsAreUsed:
                self._uses_results = True
        for _ in range(count):
            results = self._run(self._seen, data, 1)
        return results

    def _run(self, steps: ManySteps, data: Any, count: int) -> Any:
        process = current_process()
        results, call = steps.take(data, count), process.call
        if call is not None and self._trains:
            call.own_time = steps.own_time
            call.watch.look(steps.found, process.step + self._done)
        self._done += count
        return results

    def _results_over_all(self) -> Any:
        state = MetricState(self._model)
        return state.results(state.reduced())

    def _reading(self, data: Any) -> Any:
        with read_over_all(self._model):
            return self._step(data)

    def _unread(self, data: Any) -> None:
        with results_noted(self._model) as noted:
            self._step(data)
        if have_effects(noted):
            raise _ResultsAreUsed
