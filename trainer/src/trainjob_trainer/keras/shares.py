"""What the loss of each device counts for: a script written for one process trains as in one process.

Within a device, losses are those of one process: nothing is divided by the number of devices. Before an
optimizer gets the gradients, each device's are weighed by its share of the global batch's rows. Their sum is
then the gradient of one process, for each loss that is a mean over rows plus terms without data. What Keras
sums over rows (`reduction="sum"`, `add_loss` of a number for each row) is divided by the share, and so counts
once. What it divides by something else than rows (a mask's entries, weights) counts by that divisor.

A step that scales its loss by itself is known by what it does while it is traced: it reads
`num_replicas_in_sync`, or calls `tf.nn.compute_average_loss` or `tf.nn.scale_regularization_loss`. Then
TensorFlow's rule holds: a device's loss is its part of the loss, and gradients are summed. Losses and
gradients are then both scaled, so that Keras's losses count as before.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import GeneratorType, ModuleType
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from trainjob_trainer.distribution.strategy import is_mirrored
from trainjob_trainer.environment import is_without
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.session import assigned

VARIABLE = "TRAIN_GRADIENTS"
_AVERAGE, _SUM = "average", "sum"


class Part(NamedTuple):
    """The rows of a global batch that one device has, and the weight of their mean loss.

    A share is a float32 scalar; the shares of all devices add up to 1. Where several devices may have the
    same rows, `copies` is a float32 vector: how many have them, and 1 for the first of these, 0 for others.
    """

    rows: Any
    share: Any
    copies: Any = ()


def without_share(data: Any) -> Any:
    """Return the rows without their share."""
    return data.rows if isinstance(data, Part) else data


# The rule of a model, and what is told of it.


_LINES = {
    "averaged": (
        "gradients are averaged over the {replicas} replicas, weighted by their rows: training is as in "
        "one process if {names} is a mean over rows, but not if it is a sum or compares rows; "
        f"{VARIABLE}={_SUM} sums the gradients"
    ),
    "summed": (
        "{names}: gradients are summed over the {replicas} replicas, as TensorFlow does; "
        f"{VARIABLE}={_AVERAGE} averages them"
    ),
    "metric": (
        "{names}: each of {replicas} replicas computes a value of its own rows, and the mean of these "
        "values is shown; the value of the whole batch may differ"
    ),
    "state": (
        "{names}: its variables are assigned, not added to; those of {replicas} replicas are summed, "
        "which is right only for sums; an evaluator computes the values of one process"
    ),
    "apart": (
        "{names} is weighted by rows, not by mask entries or sample weights: {replicas} replicas can't "
        "exchange these counts within a tf.function or XLA (jit_compile)"
    ),
}


class Rule:
    """Whether the gradients of one model are averaged or summed; it outlives the traces of its steps."""

    def __init__(self, environment: Mapping[str, str], report: Callable[[str], None]) -> None:
        value = environment.get(VARIABLE, "")
        if value not in ("", _AVERAGE, _SUM):
            raise InvalidConfiguration(f"{VARIABLE}: must be {_AVERAGE} or {_SUM}, got {value!r}")
        self.sums, self._is_set = value == _SUM, bool(value)
        self._report, self._reported = report, set[str]()
        self._noted: dict[str, dict[str, None]] = {}

    @classmethod
    def of(cls, model: Any, environment: Mapping[str, str], report: Callable[[str], None]) -> Rule:
        """Return the rule of a model; raises InvalidConfiguration for a wrong TRAIN_GRADIENTS."""
        return _rules.get(model) or _rules.setdefault(model, cls(environment, report))

    def note(self, line: str, name: str) -> None:
        """Note whose numbers a line is about: code of the user's that computes one number of several rows."""
        if line == "averaged" and self.sums:
            line, name = "summed", f"{VARIABLE}={_SUM}" if self._is_set else ""
        if name:
            self._noted.setdefault(line, {})[name] = None

    def note_scaling(self, what: str) -> bool:
        """Note that a step scales its loss by itself; return whether this has changed the rule."""
        if self._is_set or self.sums:
            return False
        self.sums = True
        self._noted.pop("averaged", None)
        self.note("summed", what)
        return True

    def report(self, replicas: int) -> None:
        """Report what has been noted, each line once."""
        for line, names in self._noted.items():
            text = _LINES[line].format(names=", ".join(names), replicas=replicas)
            if text not in self._reported:
                self._reported.add(text)
                self._report(text)


_rules: weakref.WeakKeyDictionary[Any, Rule] = weakref.WeakKeyDictionary()


class ScalesByItself(Exception):
    """A step turned out to scale its loss after a loss of Keras's had been computed by the other rule."""


def retried(call: Callable[..., Any]) -> Callable[..., Any]:
    """Trace a call once more if it raises `ScalesByItself`; nothing of it has been executed."""

    @functools.wraps(call)
    def again(data: Any, *more: Any) -> Any:
        given = list(data) if isinstance(data, GeneratorType) else data
        try:
            return call(given, *more)
        except ScalesByItself:
            return call(given, *more)

    return again


@dataclass
class _Step:
    """The step that a thread traces or runs.

    `read` returns the device's share, how many devices have its rows, and 1 if it is the first of them; None
    if all devices have equally many rows. `rows` is the number of rows where it is known. `is_weighed`: an
    optimizer gets gradients as they are.
    """

    model: Any
    rule: Rule
    replicas: int
    graph: Any
    read: Callable[[], Any] | None = None
    rows: int | None = None
    has_copies: bool = False
    has_scaled: bool = False
    is_weighed: bool = False
    loss: Any = None

    @property
    def unit(self) -> float:
        """What one process's loss is multiplied by."""
        return 1 / self.replicas if self.rule.sums else 1.0

    @property
    def share(self) -> Any:
        return 1 / self.replicas if self.read is None else self.read()[0]

    @property
    def fraction(self) -> Any:
        """This device's rows as a part of the batch's, whoever else has them."""
        return 1 / self.replicas if self.read is None else self.read()[0] * self.read()[1]

    def scale(self, value: Any) -> Any:
        """Scale a mean over rows, or a term without data."""
        self.has_scaled = True
        return _times(value, self.unit)

    def of_sum(self, value: Any) -> Any:
        """Scale a sum over this device's rows."""
        self.has_scaled = True
        return _times(value, _divided(self.unit, self.fraction))

    def of_mean(self, value: Any, divisor: Any) -> Any:
        """Scale a scaled mean by its divisor instead of the rows; all devices call it.

        They can't meet within a `tf.function` of the user's, nor where XLA compiles.
        """
        if tf.compat.v1.get_default_graph() is not self.graph:
            self.rule.note("apart", f"the loss {self.loss.name}")
            return value
        own = tf.stop_gradient(tf.cast(divisor, tf.float32)) * _divided(self.share, self.fraction)
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, own)
        return _times(value, _divided(own, total * self.share))

    def note_scaling(self, what: str) -> None:
        if self.rule.note_scaling(what) and self.has_scaled:
            raise ScalesByItself


class _Current(threading.local):
    """The step of this thread; each device has its own."""

    step: _Step | None = None


_current = _Current()


def by_share(
    model: Any,
    step: Callable[[Any], Any],
    name: str,
    environment: Mapping[str, str],
    report: Callable[[str], None],
) -> Callable[[Any], Any]:
    """Return a device's step, whose losses and gradients count as in one process.

    It takes a `Part` as well as rows without a share. `name` is the method that the step is or stands for,
    such as `train_step`; `report` takes the lines about gradients. Raises InvalidConfiguration for a wrong
    TRAIN_GRADIENTS.
    """
    strategy = model.distribute_strategy
    replicas = strategy.num_replicas_in_sync
    if replicas == 1 or not is_mirrored(strategy):
        return step
    if is_without("losses", environment):
        return functools.wraps(step)(lambda data: step(without_share(data)))
    rule = Rule.of(model, environment, report)
    own = [one for one in (name, "compute_loss") if not _is_keras(model, one)]
    handles: dict[int, Any] = {}

    @functools.wraps(step)
    def weighed(data: Any) -> Any:
        current = _Step(
            model, rule, replicas, tf.compat.v1.get_default_graph(), rows=_rows(without_share(data))
        )
        if isinstance(data, Part):
            current.has_copies = not isinstance(data.copies, tuple)
            copies = tf.unstack(data.copies) if current.has_copies else (1.0, 1.0)
            values = tf.stack([data.share, *copies])
            current.read = _kept(values, handles) if own else lambda: values
        with assigned(_current, "step", current):
            try:
                result = step(without_share(data))
            except ScalesByItself:
                if not tf.executing_eagerly():
                    raise  # the trace is given up
                result = step(without_share(data))
        if name == "train_step":
            for one in own:
                rule.note("averaged", f"{type(model).__name__}.{one}")
            for layer in model._flatten_layers():
                if not (_is_keras(layer, "call") or all(one.shape.rank for one in layer._losses)):
                    rule.note("averaged", f"the loss of layer {layer.name}")
        rule.report(replicas)
        return result

    return weighed


def _is_keras(model: Any, name: str) -> bool:
    return str(getattr(type(model), name).__module__).startswith("keras.")


def _rows(data: Any) -> int | None:
    shapes = [tf.TensorShape(one.shape) for one in tf.nest.flatten(data) if hasattr(one, "shape")]
    return next((shape[0] for shape in shapes if shape.rank), None)


def _kept(values: Any, handles: dict[int, Any]) -> Callable[[], Any]:
    """Keep values outside the trace: a `tf.function` within a user's step outlives the trace.

    A `tf.Variable` would belong to the strategy, and all workers would have to create it together.
    """
    replica = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group) or 0)
    if replica not in handles:
        with tf.init_scope(), tf.device("/CPU:0"):
            name = f"trainjob-share-{id(handles)}-{len(handles)}"
            handles[replica] = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=values.shape, shared_name=name)
    handle = handles[replica]
    with tf.device(handle.device):
        tf.raw_ops.AssignVariableOp(resource=handle, value=values)

    def read() -> Any:
        with tf.device(handle.device):
            return tf.ensure_shape(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32), values.shape)

    return read


def _divided(one: Any, other: Any) -> Any:
    """Return the quotient; 0 for a device without rows."""
    known = isinstance(one, float) and isinstance(other, float)
    return one / other if known else tf.math.divide_no_nan(tf.cast(one, tf.float32), other)


def _times(value: Any, factor: Any) -> Any:
    if isinstance(factor, float) and factor == 1:
        return value
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(_times(value.values, factor), value.indices, value.dense_shape)
    return value * tf.cast(factor, value.dtype)


# Gradients, on their way to an optimizer.


def weighed(apply: Callable[..., Any]) -> Callable[..., None]:
    """Weigh the gradients that an optimizer's `apply` gets; one within another gets them as they are."""

    @functools.wraps(apply)
    def weighing(grads: Any, trainable_variables: Any = None) -> None:
        step = _current.step
        variables = None if trainable_variables is None else list(trainable_variables)
        if step is None or step.is_weighed:
            apply(list(grads), variables)
            return
        factor, of = step.share / step.unit, variables or itertools.repeat(None)
        gradients = [
            # float8: some "gradients" are the variables' next values
            one if one is None or getattr(to, "overwrite_with_gradient", False) else _times(one, factor)
            for one, to in zip(grads, of)
        ]
        with assigned(step, "is_weighed", value=True):
            apply(gradients, variables)

    return weighing


# The functions of Keras and TensorFlow that know of the step.


def count_as_in_one_process(trainer: ModuleType) -> None:
    """Replace functions of Keras and TensorFlow; outside a step of `by_share` they do what they did.

    `trainer` is `keras.src.backend.tensorflow.trainer`.
    """
    losses: Any = trainer.loss_module
    _replace(losses, "scale_loss_for_distribution", lambda step, _, value: step.scale(value))
    _replace(losses, "unscale_loss_for_distribution", lambda step, _, value: _times(value, 1 / step.unit))
    _replace(losses, "reduce_weighted_values", functools.partial(_reduced, losses))
    _replace(losses.Loss, "__call__", _called)
    metrics, backend, optimizers = (  # `keras` itself is being imported
        importlib.import_module(f"keras.src.{name}") for name in ("metrics", "backend", "optimizers")
    )
    _replace(metrics.Mean, "update_state", _tracked)
    _replace(backend.Variable, "assign", _assigned)
    for optimizer in (optimizers.Optimizer, optimizers.LossScaleOptimizer):
        _replace(optimizer, "apply", _applied)
        _replace(optimizer, "scale_loss", _weighed_loss)
    _replace(tf.nn, "compute_average_loss", _averaged)
    strategies = importlib.import_module("tensorflow.python.distribute.distribute_lib")
    strategies.StrategyBase.num_replicas_in_sync = property(_noting(strategies.StrategyBase))


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def replaced(*arguments: Any, **named: Any) -> Any:
        step = _current.step
        return (
            original(*arguments, **named) if step is None else function(step, original, *arguments, **named)
        )

    setattr(owner, name, replaced)


def _called(step: _Step, original: Any, loss: Any, *arguments: Any, **named: Any) -> Any:
    with assigned(step, "loss", loss):
        return original(loss, *arguments, **named)


def _reduced(
    losses: Any,
    step: _Step,
    original: Any,
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: Any = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    """Return a loss object's result, from its `values`."""
    result = original(values, sample_weight, mask, reduction, dtype)
    is_number = not len(getattr(values, "shape", ()))
    function = getattr(step.loss, "fn", type(step.loss))
    if is_number or not str(getattr(function, "__module__", "")).startswith("keras."):
        step.rule.note("averaged", f"the loss {step.loss.name}")
    if reduction == "sum":
        return step.of_sum(result)
    if reduction in (None, "none") or is_number:
        return result
    by_weights = reduction == "mean_with_sample_weight"
    if mask is not None or (by_weights and sample_weight is not None):
        weights = losses.apply_mask(sample_weight if by_weights else None, mask, result.dtype, "sum")
        return step.of_mean(result, tf.reduce_sum(tf.cast(weights, result.dtype)))
    return result


def _tracked(step: _Step, original: Any, metric: Any, values: Any, sample_weight: Any = None) -> None:
    """Count a number that a Mean tracks by the rows that it is of."""
    values = keras.ops.convert_to_tensor(values)
    is_number = not len(values.shape)
    if is_number and isinstance(metric, keras.metrics.MeanMetricWrapper):
        step.rule.note("metric", f"the metric {metric.name}")
    if is_number and sample_weight is None and step.read is not None:
        sample_weight = step.fraction * step.replicas
        values = tf.where(sample_weight > 0, values, tf.zeros_like(values))  # the mean of no rows is NaN
    original(metric, values, sample_weight)


def _assigned(step: _Step, original: Any, variable: Any, value: Any) -> Any:
    """Leave rows that an earlier device has out of a metric, and note a metric that doesn't add."""
    adds = sys._getframe(2).f_code.co_name in ("assign_add", "assign_sub")
    if variable.aggregation != "sum":
        return original(variable, value)
    metrics = [one for metric in step.model.metrics for one in (metric, *getattr(metric, "metrics", ()))]
    for metric in [one for one in metrics if any(each is variable for each in one.variables)][-1:]:
        if step.has_copies and step.read is not None:
            value = keras.ops.convert_to_tensor(value, variable.dtype)
            value = tf.where(step.read()[2] > 0, value, variable.value)
        if not (adds or _is_keras(metric, "update_state")):
            step.rule.note("state", f"the metric {metric.name}")
    return original(variable, value)


def added(loss: Any, total: Any) -> Any:
    """Return the `total` that a layer's `loss` adds; Keras sums what has a number for each row."""
    step = _current.step
    if step is None:
        return total
    is_of_rows = loss.shape.rank and loss.shape[0] in (None, step.rows)
    return _times(total, _divided(1.0, step.fraction)) if is_of_rows else total


def _applied(_: _Step, original: Any, optimizer: Any, *gradients: Any, **variables: Any) -> None:
    weighed(functools.partial(original, optimizer))(*gradients, **variables)


def _weighed_loss(step: _Step, original: Any, optimizer: Any, loss: Any) -> Any:
    """Weigh the loss in place of its gradients in Keras's own step, which are many."""
    scaled = original(optimizer, loss)
    if not _is_keras(step.model, "train_step"):
        return scaled
    step.is_weighed = step.has_scaled = True
    return _times(scaled, step.share / step.unit)


def _averaged(
    step: _Step,
    original: Any,
    per_example_loss: Any,
    sample_weight: Any = None,
    global_batch_size: Any = None,
) -> Any:
    step.note_scaling("tf.nn.compute_average_loss is called")
    loss = original(per_example_loss, sample_weight, global_batch_size)
    return loss if global_batch_size is None else step.of_sum(loss)


def _noting(strategies: Any) -> Callable[[Any], int]:
    read = strategies.num_replicas_in_sync.fget

    @functools.wraps(read)
    def num_replicas_in_sync(strategy: Any) -> int:
        step = _current.step
        if step is not None:
            reader = sys._getframe(1)
            while reader.f_code.co_name == read.__name__ and reader.f_back is not None:  # a replica context
                reader = reader.f_back
            module, name = str(reader.f_globals.get("__name__")), reader.f_code.co_name
            if module.endswith("nn_impl_distribute"):
                step.note_scaling(f"tf.nn.{name} is called")
            elif module.partition(".")[0] not in ("tensorflow", "keras", "trainjob_trainer"):
                step.note_scaling(f"{name} reads {read.__name__}")
        return int(read(strategy))

    return num_replicas_in_sync
