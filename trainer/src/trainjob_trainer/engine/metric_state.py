"""The metrics of the epoch under way: reduced at once, and in a form that a checkpoint can hold.

Each worker keeps metrics of its own examples, in variables that TensorFlow reduces whenever they are read,
one by one; also when they are reset, since what is assigned is read back. Here all go over the network
together, and a reset stays where it is.

A checkpoint within an epoch holds them too. Reading them takes all workers, so all reduce them together right
before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainjob_trainer.checkpoint.snapshot import NamedArray, local_components, variable_name

# Metrics as the numbers that reports, results and TensorBoard take.


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those that are single numbers; others, such as an F1 score by class, are left out."""
    return {str(name): float(value) for name, value in metrics.items() if is_scalar(value)}


def is_scalar(value: Any) -> bool:
    """Whether it is one number, of whichever library."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return int(np.ndim(value)) == 0


_SUMMED, _AVERAGED = "sum", "mean"

METRICS = "metrics"
"""Group of a checkpoint: the metrics' variables in the midst of an epoch, summed over the workers."""
LAST_EPOCH = "last-epoch"
"""Group of a checkpoint: the results of the last whole epoch by name."""


def saved_results(results: Mapping[str, float]) -> list[NamedArray]:
    """Results by name, as a group of a checkpoint."""
    return [NamedArray(name, np.array(value, "float64")) for name, value in results.items()]


def read_results(group: Sequence[NamedArray]) -> dict[str, float]:
    """What `saved_results` was given."""
    return {array.name: float(array.value) for array in group}


class OverAll:
    """The metrics over all replicas, and their reset: each one call of TensorFlow, traced when first made."""

    def __init__(self, strategy: Any, model: Any) -> None:
        self._strategy = strategy
        self._model = model  # whose metrics may not be built yet
        self.results = tf.function(self._results, autograph=False)
        """By name. All workers call it together."""
        self._reset_here = tf.function(self._reset_replicas, autograph=False)
        self._reduced = tf.function(self._reduced_here, autograph=False)

    def names(self) -> list[str]:
        """Of the metrics that are single numbers, without computing them."""
        outputs = self.results.get_concrete_function().structured_outputs
        return [str(name) for name, value in outputs.items() if value.shape.rank == 0]

    def state(self) -> list[NamedArray]:
        """The metrics' variables for a checkpoint. All workers call it together."""
        return MetricState(self._model).on_host([flat.numpy() for flat in self._reduced()])

    def reset(self) -> None:
        """Begin anew; all workers call it together."""
        if has_own_reset(self._model):
            self._model.reset_metrics()
        else:
            self._reset_here()

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
    """While a replica's step is traced, or run: what it reads of the model's metrics is over all replicas.

    For steps whose results are more than the metrics, such as twice one of them: what each replica makes of
    its own metrics is not what it makes of all, and their mean is neither.
    """
    with ExitStack() as stack:
        for metric in model.metrics:
            if "result" not in vars(metric) and metric.variables:  # else another replica has done it
                metric.result = _over_all(metric, tf.compat.v1.get_default_graph())
                stack.callback(delattr, metric, "result")
        yield


def _over_all(metric: Any, graph: Any) -> Callable[[], Any]:
    result = metric.result

    @functools.wraps(result)
    def over_all() -> Any:
        inside = tf.executing_eagerly() or tf.compat.v1.get_default_graph() is graph
        if not inside or tf.distribute.in_cross_replica_context():
            return result()  # within a branch of the step replicas can't meet
        state = MetricState(_Alone([metric], result))
        return state.results(state.reduced())

    return over_all


@dataclass(frozen=True)
class _Alone:
    """One metric, in the place of a model that has only this one."""

    metrics: Sequence[Any]
    get_metrics_result: Callable[[], Any]


def has_own_reset(model: Any) -> bool:
    """Whether a metric is reset by code of the user's, which may do in Python what can't be traced."""
    inner = [one for metric in model.metrics for one in getattr(metric, "metrics", ())]
    resets = (type(metric).reset_state for metric in [*model.metrics, *inner])
    return not all(reset.__module__.startswith("keras.") for reset in resets)


def metric_variables(model: Any) -> list[Any]:
    """The variables of a compiled model's metrics, each once."""
    found = [variable for metric in model.metrics for variable in metric.variables]
    return list({id(variable): variable for variable in found}.values())


class MetricState:
    """The variables of a compiled model's metrics, which are built."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._variables = metric_variables(model)
        self._dtypes = sorted({self._dtype(variable) for variable in self._variables})

    def reduced(self) -> Any:
        """Their values over all workers, a flat tensor for each dtype; to be called by all replicas."""
        context = tf.distribute.get_replica_context()
        is_first = tf.equal(context.replica_id_in_sync_group, 0)
        replicas = context.num_replicas_in_sync
        shares = [
            tf.concat([_share(variable, is_first, replicas) for variable in self._of(dtype)], axis=0)
            for dtype in self._dtypes
        ]
        return context.all_reduce(tf.distribute.ReduceOp.SUM, shares) if shares else []

    def results(self, reduced: Sequence[Any]) -> Any:
        """The model's metrics by name, of what `reduced` returned; their variables are left alone."""
        values = [(one, tf.reshape(part, tuple(one.shape))) for one, part in self._parts(reduced)]
        with keras.StatelessScope(state_mapping=values):
            return self._model.get_metrics_result()

    def on_host(self, reduced: Sequence[Any]) -> list[NamedArray]:
        """What `reduced` returned, an array for each variable."""
        values = {
            id(one): NamedArray(variable_name(one), np.asarray(part).reshape(tuple(one.shape)))
            for one, part in self._parts(reduced)
        }
        return [values[id(variable)] for variable in self._variables]

    def put_back(self, arrays: Sequence[NamedArray], *, is_writer: bool) -> bool:
        """Go on from these values, summed ones on the writer only; return false instead if they don't fit."""
        kinds = [(tuple(variable.shape), self._dtype(variable)) for variable in self._variables]
        if kinds != [(array.value.shape, array.value.dtype.name) for array in arrays]:
            return False
        for variable, array in zip(self._variables, arrays):
            for number, component in enumerate(local_components(variable)):
                has_all = (is_writer and number == 0) or variable.aggregation != _SUMMED
                component.assign(array.value if has_all else np.zeros_like(array.value))
        return True

    def _parts(self, reduced: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Each variable with its own piece, still flat, of what `reduced` returned."""
        for dtype, flat in zip(self._dtypes, reduced):
            begin = 0
            for variable in self._of(dtype):
                end = begin + int(np.prod(variable.shape))
                yield variable, flat[begin:end]
                begin = end

    def _of(self, dtype: str) -> list[Any]:
        return [variable for variable in self._variables if self._dtype(variable) == dtype]

    @staticmethod
    def _dtype(variable: Any) -> str:
        return str(tf.as_dtype(variable.dtype).name)


def _share(variable: Any, is_first: Any, replicas: int) -> Any:
    value = tf.reshape(tf.convert_to_tensor(variable.value), [-1])
    if variable.aggregation == _AVERAGED:
        return value / replicas
    return value if variable.aggregation == _SUMMED else tf.where(is_first, value, tf.zeros_like(value))
