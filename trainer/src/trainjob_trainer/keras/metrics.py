"""The metrics of the current epoch: reduced together, and in a form that a checkpoint can hold.

Each worker keeps metrics of its own examples. TensorFlow reduces their variables one by one at each read, and
also at a reset, since the assigned value is read back. Here all are reduced together, and a reset is local.

A checkpoint within an epoch holds them too. Reading them takes all workers, so all workers reduce them
together right before the checkpoint.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainjob_trainer.checkpoint.snapshot import (
    HostGroups,
    NamedArray,
    VariableGroups,
    local_components,
    read,
    variable_name,
)
from trainjob_trainer.distribution.strategy import is_mirrored

# Metrics as numbers for reports, results and TensorBoard.


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are single numbers; leave out others, such as an F1 score by class."""
    return {str(name): float(value) for name, value in metrics.items() if is_scalar(value)}


def is_scalar(value: Any) -> bool:
    """Return whether a value is one number, of any library."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return int(np.ndim(value)) == 0


_SUMMED, _AVERAGED = "sum", "mean"

METRICS = "metrics"
"""Group of a checkpoint: the metrics' variables within an epoch, reduced over the workers."""


class OverAll:
    """The metrics over all devices, and their reset: each is one TensorFlow call, traced on its first use."""

    def __init__(self, strategy: Any, model: Any) -> None:
        self._strategy = strategy
        self._model = model  # its metrics may not be built yet
        self.results = tf.function(self._results, autograph=False)
        """Return the metrics by name. All workers call it together."""
        self.reset = tf.function(self._reset_replicas, autograph=False)
        """Reset the metrics; all workers call it together. A metric's own `reset_state` may need Python."""
        self._reduced = tf.function(self._reduced_here, autograph=False)

    def state(self) -> list[NamedArray]:
        """Return the metrics' variables for a checkpoint. All workers call it together."""
        if not is_mirrored(self._strategy):
            return read({METRICS: metric_variables(self._model)})[METRICS]
        return MetricState(self._model).on_host([flat.numpy() for flat in self._reduced()])

    def _results(self) -> Any:
        return MetricState(self._model).results(self._reduced_here())

    def _reduced_here(self) -> list[Any]:
        reduced = self._strategy.run(MetricState(self._model).reduced)
        return [self._strategy.experimental_local_results(flat)[0] for flat in reduced]

    def _reset_replicas(self) -> None:
        def on_replica() -> None:
            for metric in self._model.metrics:
                metric.reset_state()

        self._strategy.run(on_replica)


@contextmanager
def read_over_all(model: Any) -> Iterator[None]:
    """Make a device's step read metrics over all devices while it is traced or run.

    This is for steps that compute results from metrics, such as twice one of them. A result of one device's
    own metrics differs from that of the metrics over all devices, and so does the mean of such results.
    """
    with ExitStack() as stack:
        for metric in model.metrics:
            if "result" not in vars(metric) and metric.variables:  # else another device has done it
                metric.result = _over_all(metric, tf.compat.v1.get_default_graph())
                stack.callback(delattr, metric, "result")
        yield


@contextmanager
def results_noted(model: Any) -> Iterator[list[Any]]:
    """Note the tensors that metrics return while a device's step is traced."""
    noted: list[Any] = []
    with ExitStack() as stack:
        for metric in model.metrics:
            if "result" not in vars(metric):  # else another device has done it, whose step is the same
                metric.result = _noting(metric.result, noted)
                stack.callback(delattr, metric, "result")
        yield noted


def _noting(result: Callable[[], Any], noted: list[Any]) -> Callable[[], Any]:
    @functools.wraps(result)
    def noting() -> Any:
        found = result()
        noted.extend(one for one in tf.nest.flatten(found) if hasattr(one, "graph"))
        return found

    return noting


def have_effects(tensors: Iterable[Any]) -> bool:
    """Return whether an operation that changes or shows something depends on one of a graph's tensors."""
    seen, left = set[str](), list(tensors)
    while left:
        for operation in left.pop().consumers():
            if operation.op_def.is_stateful:
                return True
            if operation.name not in seen:
                seen.add(operation.name)
                left += operation.outputs
    return False


def _over_all(metric: Any, graph: Any) -> Callable[[], Any]:
    result = metric.result

    @functools.wraps(result)
    def over_all() -> Any:
        inside = tf.executing_eagerly() or tf.compat.v1.get_default_graph() is graph
        if not inside or tf.distribute.in_cross_replica_context():
            return result()  # devices can't meet within a branch of the step
        state = MetricState(SimpleNamespace(metrics=[metric], get_metrics_result=result))
        return state.results(state.reduced())

    return over_all


def has_own_reset(model: Any) -> bool:
    """Return whether the user's code resets a metric: it may run Python that can't be traced."""
    inner = [one for metric in model.metrics for one in getattr(metric, "metrics", ())]
    resets = (type(metric).reset_state for metric in [*model.metrics, *inner])
    return not all(reset.__module__.startswith("keras.") for reset in resets)


def metric_variables(model: Any) -> list[Any]:
    """Return the variables of a compiled model's metrics, each once."""
    found = [variable for metric in model.metrics for variable in metric.variables]
    return list({id(variable): variable for variable in found}.values())


class MetricState:
    """The variables of a compiled model's metrics; the metrics must be built."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.variables = metric_variables(model)
        self._dtypes = sorted({self._dtype(variable) for variable in self.variables})

    def reduced(self) -> Any:
        """Return their values over all workers, a flat tensor for each dtype; all devices call it."""
        context = tf.distribute.get_replica_context()
        is_first = tf.equal(context.replica_id_in_sync_group, 0)
        replicas = context.num_replicas_in_sync
        shares = [
            tf.concat([_share(variable, is_first, replicas) for variable in self._of(dtype)], axis=0)
            for dtype in self._dtypes
        ]
        # One collective for each dtype: TensorFlow packs what one call gets into one tensor.
        return [context.all_reduce(tf.distribute.ReduceOp.SUM, share) for share in shares]

    def results(self, reduced: Sequence[Any]) -> Any:
        """Return the model's metrics by name from what `reduced` returned; their variables don't change."""
        values = [(one, tf.reshape(part, tuple(one.shape))) for one, part in self._parts(reduced)]
        with keras.StatelessScope(state_mapping=values):
            return self._model.get_metrics_result()

    def on_host(self, reduced: Sequence[Any]) -> list[NamedArray]:
        """Return what `reduced` returned as one array for each variable."""
        values = {
            id(one): NamedArray(variable_name(one), np.asarray(part).reshape(tuple(one.shape)))
            for one, part in self._parts(reduced)
        }
        return [values[id(variable)] for variable in self.variables]

    def put_back(self, arrays: Sequence[NamedArray], *, is_writer: bool) -> bool:
        """Assign these values, summed ones on the writer only; return false if they don't fit."""
        kinds = [(tuple(variable.shape), self._dtype(variable)) for variable in self.variables]
        if kinds != [(array.value.shape, array.value.dtype.name) for array in arrays]:
            return False
        for variable, array in zip(self.variables, arrays):
            for number, component in enumerate(local_components(variable)):
                has_all = (is_writer and number == 0) or variable.aggregation != _SUMMED
                component.assign(array.value if has_all else np.zeros_like(array.value))
        return True

    def _parts(self, reduced: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each variable with its part, still flat, of what `reduced` returned."""
        for dtype, flat in zip(self._dtypes, reduced):
            begin = 0
            for variable in self._of(dtype):
                end = begin + int(np.prod(variable.shape))
                yield variable, flat[begin:end]
                begin = end

    def _of(self, dtype: str) -> list[Any]:
        return [variable for variable in self.variables if self._dtype(variable) == dtype]

    @staticmethod
    def _dtype(variable: Any) -> str:
        return str(tf.as_dtype(variable.dtype).name)


class TrackedMetrics:
    """Metrics of a loop of the user's own, whose checkpoints hold them over all devices."""

    def __init__(self, strategy: Any, metrics: Sequence[Any]) -> None:
        self._devices = strategy.num_replicas_in_sync
        model = SimpleNamespace(metrics=list(metrics) if is_mirrored(strategy) else [])
        self._state = MetricState(model)
        self._over_all = OverAll(strategy, model)
        self._reduced: Sequence[NamedArray] = ()

    @property
    def variables(self) -> list[Any]:
        """Return their variables, each once."""
        return self._state.variables

    def reduce(self) -> None:
        """Read them over all devices for the next checkpoint; all workers call it together."""
        if self.variables:
            self._reduced = self._over_all.state()

    def keep_on_first(self, values: Sequence[NamedArray], *, is_writer: bool) -> None:
        """After the same values were restored everywhere, leave sums on the writer's first device only."""
        self._state.put_back(values, is_writer=is_writer)

    def saved(self, groups: VariableGroups, *, is_reduced: bool) -> HostGroups:
        """Return the values of all variables for a checkpoint.

        Without `is_reduced` the others can't take part: sums are this device's, times the number of devices.
        """
        values = {id(one): array for one, array in zip(self.variables, self._reduced)} if is_reduced else {}
        return {
            name: [
                values.get(id(one)) or self._estimated(one, array) for one, array in zip(groups[name], arrays)
            ]
            for name, arrays in read(groups).items()
        }

    def _estimated(self, variable: Any, array: NamedArray) -> NamedArray:
        is_sum = any(one is variable for one in self.variables) and variable.aggregation == _SUMMED
        return NamedArray(array.name, array.value * self._devices) if is_sum else array


def _share(variable: Any, is_first: Any, replicas: int) -> Any:
    value = tf.reshape(tf.convert_to_tensor(variable.value), [-1])
    if variable.aggregation == _AVERAGED:
        return value / replicas
    return value if variable.aggregation == _SUMMED else tf.where(is_first, value, tf.zeros_like(value))
