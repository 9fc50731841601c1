"""The loss of the user's own step, adjusted to its value in one process.

Gradients are summed over the devices. Keras's losses allow for that: each device's loss is its share, which
is its mean divided by the number of devices. A step that takes a mean by itself (`tf.reduce_mean`) doesn't,
and would train with that many times the gradient. A share that a step tracks as its loss is only a part of
the loss. The graph shows which of the two a loss is. If it doesn't, the step stays as written, and one log
line reports it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from types import CodeType
from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer.engine.replica_share import weight_of_mean

SCALES_BY_ITSELF = frozenset({"num_replicas_in_sync", "compute_average_loss", "scale_loss_for_distribution"})
"""Names that mark a step written for several devices; such a step is not changed."""


class Kind(Enum):
    """What a scalar is to the rows of one device."""

    SHARE = "share"
    """Keras's mean, divided by the number of devices."""
    MEAN = "mean"
    """A mean that is not divided."""
    CONSTANT = "constant"
    UNKNOWN = "unknown"


_PASS = {"Identity", "Cast", "Neg", "StopGradient", "Reshape", "Squeeze", "EnsureShape"}
_CURVES = {"Relu", "Sqrt", "Square", "Exp", "Log", "Softplus", "Abs", "Tanh", "Sigmoid", "Maximum", "Minimum"}
_SUMS = {"Add", "AddV2", "Sub", "AddN", "Pack"}
_PRODUCTS = {"Mul", "RealDiv", "DivNoNan"}


def kind_of(tensor: Any, shares: Iterable[str], replicas: int) -> Kind:
    """Return the kind of a graph's scalar or a part of it; `shares` names tensors that Keras has divided."""
    if tensor.name in shares:
        return Kind.SHARE
    op = tensor.op
    if op.type == "Const":
        return Kind.CONSTANT
    if op.type == "Mean" and op.inputs[0].op.type != "Pack":
        return Kind.UNKNOWN if _has_factor(op.inputs[0].op, replicas) else Kind.MEAN
    if op.type in _PASS or (op.type == "Sum" and op.inputs[0].op.type == "Pack"):
        return kind_of(op.inputs[0], shares, replicas)
    parts = {kind_of(one, shares, replicas) for one in op.inputs} if op.type in _KNOWN else {Kind.UNKNOWN}
    kinds = parts - {Kind.CONSTANT}
    if len(kinds) != 1:
        return Kind.UNKNOWN if kinds else Kind.CONSTANT
    [kind] = kinds
    is_divided = op.type in _PRODUCTS and (Kind.CONSTANT not in parts or _has_factor(op, replicas))
    is_bent = op.type in _CURVES and kind is Kind.SHARE
    return Kind.UNKNOWN if is_divided or is_bent else kind


_KNOWN = _CURVES | _SUMS | _PRODUCTS


def _has_factor(op: Any, replicas: int) -> bool:
    """Return whether a factor is the number of devices or its inverse: it may scale the loss for them."""
    if op.type not in _PRODUCTS:
        return False
    values = [tf.get_static_value(one) for one in op.inputs]
    return any(one is not None and one.size == 1 and one in (replicas, 1 / replicas) for one in values)


def scales_by_itself(code: CodeType) -> bool:
    """Return whether a step's code contains a name of `SCALES_BY_ITSELF`."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return not SCALES_BY_ITSELF.isdisjoint(code.co_names) or any(map(scales_by_itself, inner))


def explain(name: str, kind: Kind, replicas: int) -> str | None:
    """Return the log line about the gradients of a step; None if they are like Keras's own."""
    if kind is Kind.SHARE:
        return None
    if kind is Kind.MEAN:
        return (
            f"{name} averages its own loss: its gradients are averaged over the {replicas} replicas, not "
            "summed, so that it trains as in one process"
        )
    return (
        f"{name}: whether its loss is an average is not known, and its gradients are summed over the "
        f"{replicas} replicas. If it averages over rows, they are {replicas} times as large as in one "
        "process: use compute_loss, or divide the loss by strategy.num_replicas_in_sync"
    )


class OwnLoss:
    """Adjusts the loss of a model's own `train_step` or `test_step` while the step is traced or run.

    `report` takes the log line about the gradients.
    """

    def __init__(self, model: Any, step: Callable[..., Any], report: Callable[[str], None]) -> None:
        self._model = model
        self._name = f"{type(model).__name__}.{step.__name__}"
        self._replicas = model.distribute_strategy.num_replicas_in_sync
        code = getattr(inspect.unwrap(step), "__code__", None)
        self._is_left_alone = code is not None and scales_by_itself(code)
        self._report = report
        self._said: set[str] = set()
        self._shares: dict[str, Any] = {}
        self._devices = 0
        self._replaced = ExitStack()

    def take(self, step: Callable[[Any], Any], data: Any) -> Any:
        """Run the step; turn shares in its result and metrics into means, and average gradients of a mean."""
        if self._is_left_alone:
            return step(data)
        with self._standing_between():
            return tf.nest.map_structure(self._whole, step(data))

    @contextmanager
    def _standing_between(self) -> Iterator[None]:
        """Replace functions for all devices of this process: one may end while others are being traced."""
        if not self._devices:
            self._replace(self._replaced)
        self._devices += 1
        try:
            yield
        finally:
            self._devices -= 1
            if not self._devices:
                self._replaced.close()

    def _replace(self, stack: ExitStack) -> None:
        loss: Any = importlib.import_module("keras.src.losses.loss")
        self._shares = {}
        stack.callback(self._shares.clear)
        scale = loss.scale_loss_for_distribution
        stack.callback(setattr, loss, "scale_loss_for_distribution", scale)
        loss.scale_loss_for_distribution = self._noting(scale)
        gradient = tf.GradientTape.gradient
        stack.callback(setattr, tf.GradientTape, "gradient", gradient)
        tf.GradientTape.gradient = self._averaging(gradient)
        for metric in self._model.metrics:
            update = metric.update_state
            stack.callback(delattr, metric, "update_state")
            metric.update_state = self._tracking(update, is_mean=_is_mean(metric))

    def _noting(self, scale: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noting(value: Any) -> Any:
            scaled = scale(value)
            self._shares[_key(scaled)] = scaled
            return scaled

        return noting

    def _tracking(self, update: Callable[..., Any], *, is_mean: bool) -> Callable[..., Any]:
        @functools.wraps(update)
        def update_state(*values: Any, **words: Any) -> Any:
            weight = weight_of_mean() if is_mean and len(values) == 1 and not words else None
            if weight is not None and tf.convert_to_tensor(values[0]).shape.rank == 0:
                words = {"sample_weight": weight}
            return update(*[self._whole(one) for one in values], **words)

        return update_state

    def _averaging(self, gradient: Callable[..., Any]) -> Callable[..., Any]:
        def averaging(
            tape: Any, target: Any, sources: Any, output_gradients: Any = None, *args: Any, **words: Any
        ) -> Any:
            if any(isinstance(one, (tf.Variable, keras.Variable)) for one in tf.nest.flatten(sources)):
                kind = self._kind(target)
                line = explain(self._name, kind, self._replicas)
                if line is not None and line not in self._said:
                    self._said.add(line)
                    self._report(line)
                if kind is Kind.MEAN and output_gradients is None:
                    output_gradients = tf.constant(1 / self._replicas, target.dtype)
            return gradient(tape, target, sources, output_gradients, *args, **words)

        return averaging

    def _kind(self, value: Any) -> Kind:
        if not tf.is_tensor(value) or value.shape.rank != 0:
            return Kind.UNKNOWN
        if isinstance(value, tf.__internal__.EagerTensor):
            return Kind.SHARE if _key(value) in self._shares else Kind.UNKNOWN
        return kind_of(value, self._shares, self._replicas)

    def _whole(self, value: Any) -> Any:
        if self._kind(value) is not Kind.SHARE:
            return value
        loss: Any = importlib.import_module("keras.src.losses.loss")
        return loss.unscale_loss_for_distribution(value)


def _is_mean(metric: Any) -> bool:
    return getattr(type(metric), "update_state", None) is keras.metrics.Mean.update_state


def _key(tensor: Any) -> str:
    """Return a name that identifies a tensor while it exists."""
    return str(id(tensor)) if isinstance(tensor, tf.__internal__.EagerTensor) else str(tensor.name)
