"""Traced calls of a model's training or test step, for Keras's own `fit` and `evaluate`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trainjob_trainer.engine.gradient_path import GradientPath
from trainjob_trainer.engine.metric_state import MetricState, OverAll
from trainjob_trainer.engine.not_finite import OnNan
from trainjob_trainer.engine.replica_share import by_share
from trainjob_trainer.engine.stepping import ManySteps, announce_first_step, compiled_step
from trainjob_trainer.plain.calls import Batches, with_own_loss
from trainjob_trainer.plain.process import current_process


class TracedSteps:
    """Takes many batches of a compiled model in one TensorFlow call."""

    def __init__(self, model: Any, step: Callable[..., Any]) -> None:
        self._model = model
        self._strategy = model.distribute_strategy
        self._trains = step.__name__ == "train_step"
        path, call = None, current_process().call
        step = with_own_loss(model, step)
        if self._trains and call is not None:
            step = by_share(model, compiled_step(model) if call.compiles else step)
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
        executions = call.executions if call is not None and self._trains else None
        steps = self._seen if batches.is_seen else self._local
        if not self._is_announced:
            self._is_announced = True
            announce_first_step(self._model)
        began = time.perf_counter()
        results = steps.take(batches.iterator, batches.count)
        logs = {name: self._strategy.experimental_local_results(one)[0] for name, one in results.items()}
        if call is not None and executions is not None:
            executions.record(batches.count, time.perf_counter() - began)
            call.gathers = any(getattr(one, "is_gathered", False) for one in self._model.trainable_variables)
            call.own_time = steps.own_time
            if call.watch is not None:
                call.watch.look(steps.found, process.step)
        return logs

    def _results_over_all(self) -> Any:
        state = MetricState(self._model)
        return state.results(state.reduced())
