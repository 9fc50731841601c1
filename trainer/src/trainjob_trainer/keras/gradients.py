"""The path of gradients from a traced step to its optimizer: timed, checked, and summed if necessary.

The step, Keras's own or the user's, calls `optimizer.apply` as usual. This module replaces methods of the
optimizer while the step is traced, and restores them afterwards.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer.distribution.strategy import is_mirrored
from trainjob_trainer.keras.model import optimizers_of
from trainjob_trainer.keras.not_finite import OnNan
from trainjob_trainer.keras.shares import weighed
from trainjob_trainer.keras.work_time import gradients_moment

# Gradient rows of tables whose lookups don't depend on the batch, such as position embeddings.
#
# Keras's optimizers square each row of a gradient by itself, even if several rows have the same index in
# the table. One process has one row for each lookup of a position, summed over the batch; workers would
# have one each. So these rows are summed over the devices before the optimizer gets them, like the gradient
# of any weight.


_OF_SHAPES = ("Shape", "ShapeN", "Size", "Rank")


def has_fixed_rows(gradient: Any) -> bool:
    """Return whether a gradient has table rows that are the same for any batch of this shape.

    This is known only if the gradient was traced into the graph of the step; otherwise return false.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return False
    if hasattr(gradient, "has_fixed_rows"):
        return bool(gradient.has_fixed_rows)
    if not hasattr(gradient.indices, "graph"):
        return False
    seen, left = set(), [gradient.indices.op]
    while left:
        one = left.pop()
        if one.name in seen or one.type == "Const" or one.type in _OF_SHAPES:
            continue
        if not one.inputs or one.op_def.is_stateful:
            return False
        seen.add(one.name)
        left += [tensor.op for tensor in one.inputs]
    return True


def sum_fixed_rows(gradients: Sequence[Any]) -> list[Any]:
    """Sum such rows over all devices: the first gets the sum, the others zeros. All devices call it."""
    context = tf.distribute.get_replica_context()
    fixed = [position for position, one in enumerate(gradients) if has_fixed_rows(one)]
    found = list(gradients)
    if not fixed or context.num_replicas_in_sync == 1:
        return found
    sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [gradients[position].values for position in fixed])
    is_first = tf.equal(context.replica_id_in_sync_group, 0)
    for position, values in zip(fixed, sums, strict=True):
        one = gradients[position]
        kept = tf.where(is_first, values, tf.zeros_like(values))
        found[position] = tf.IndexedSlices(kept, one.indices, one.dense_shape)
    return found


# Gradients summed over all devices before the optimizer gets them.
#
# Keras's `apply` clips, accumulates and checks the gradients of each device, and sums over the devices
# last. So `clipnorm` would bound each worker's own gradient, an overflow on one worker would make only that
# worker skip the step, and the branch for `gradient_accumulation_steps` can't reduce at all. Here gradients
# are summed first, in one collective as before. `apply` then runs once for all devices of this process, in
# the cross-replica context: there Keras reduces nothing, and branches may update variables. Every worker
# computes the same result from the same sums.


_LOOKS_AT_GRADIENTS = (
    "clipnorm",
    "global_clipnorm",
    "clipvalue",
    "gradient_accumulation_steps",
    "ema_overwrite_frequency",
)
"""Settings that make an optimizer read gradients, or update variables in a branch."""

Apply = Callable[..., Any]
"""An optimizer's own `apply`: it takes gradients, and the variables or None."""


def are_needed(optimizer: Any, strategy: Any) -> bool:
    """Return whether this optimizer has a setting that Keras handles wrongly under such a strategy."""
    settings = inner_of(optimizer)
    looks = scales_loss(optimizer) or any(getattr(settings, name, None) for name in _LOOKS_AT_GRADIENTS)
    return looks and is_mirrored(strategy)


def scales_loss(optimizer: Any) -> bool:
    """Return whether an optimizer scales the loss, as under `mixed_float16`."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def inner_of(optimizer: Any) -> Any:
    """Return the optimizer that has the settings."""
    return optimizer.inner_optimizer if scales_loss(optimizer) else optimizer


def apply_globally(
    optimizer: Any,
    apply: Apply,
    gradients: Sequence[Any],
    variables: Sequence[Any] | None,
    *,
    shares: Sequence[Any] = (),
    condition: Callable[[Sequence[Any], Sequence[Any]], Any] | None = None,
) -> None:
    """Sum the gradients over all devices and apply them; all devices call it.

    A gradient is None if a variable has none. `shares` are float32 scalars, summed in the same collective;
    `condition` takes the summed gradients and shares, and returns whether the update takes place.
    """
    if variables is not None and any(getattr(one, "overwrite_with_gradient", False) for one in variables):
        apply(gradients, variables)  # float8: some "gradients" are scales, which can't be summed
        return
    context = tf.distribute.get_replica_context()
    present = [one for one in gradients if one is not None]
    summed = [*present, *shares]
    if context.num_replicas_in_sync > 1:
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, summed)

    def update(strategy: Any, *everywhere: Any) -> None:
        here = [strategy.experimental_local_results(one)[0] for one in everywhere]
        found, totals = here[: len(present)], here[len(present) :]
        rest = iter(found)
        aligned = [None if one is None else next(rest) for one in gradients]
        with _outside_replicas(strategy, optimizer):
            if condition is None:
                apply(aligned, variables)
            else:
                tf.cond(condition(found, totals), lambda: _done(apply(aligned, variables)), lambda: True)

    context.merge_call(update, args=tuple(summed))


def _done(_: Any) -> bool:
    return True


@contextmanager
def _outside_replicas(strategy: Any, optimizer: Any) -> Iterator[None]:
    """Let `apply` update variables in the cross-replica context, without another merge call.

    `_use_merge_call` is TensorFlow's own setting for that, and false under XLA on GPUs. The loss scale's
    `_tf_apply` only chooses between a merge call and `_common_apply`.
    """
    with ExitStack() as stack:
        _replace(stack, strategy.extended, "_use_merge_call", lambda: False)
        if scales_loss(optimizer):
            _replace(stack, optimizer, "_tf_apply", optimizer._common_apply)
        yield


_UPDATE = "_distributed_tf_update_step"
"""Keras's method that updates all variables, given their summed gradients."""
_LOCAL = (None, "none", "sum")
"""Kinds of aggregation with which each device assigns to its own copy."""


@dataclass(frozen=True)
class Traced:
    """Tensors that describe one traced step of a device.

    `ready` is when the gradients were computed, as `work_time.moment_after`; 0 if that can't be known.
    `fault`: the loss or a gradient is not finite. `skipped`: all devices have skipped the update.
    """

    ready: Any
    fault: Any
    skipped: Any


@dataclass
class _Notes:
    """Notes on one step of all devices of this process: each is traced up to the merge, then the next.

    Without a `graph` nothing is noted.
    """

    graph: Any
    losses: dict[int, Any] = field(default_factory=dict)
    """Loss by the thread that traces a device."""
    moments: list[Any] = field(default_factory=list)
    faults: list[Any] = field(default_factory=list)
    skipped: list[Any] = field(default_factory=list)

    def here(self, tensors: Sequence[Any], otherwise: Any) -> list[Any]:
        """Return the tensors of the step itself: those of a branch can't be used outside the branch."""
        return [one for one in tensors if one.graph is self.graph] or [otherwise]


class GradientPath:
    """The path from the steps of one model to its optimizers; there are none if nothing is trained.

    The main optimizer comes first. `kept` are the variables that the forward pass changes; they keep their
    values if an update is skipped.
    """

    def __init__(
        self,
        strategy: Any,
        optimizers: Sequence[Any] = (),
        on_nan: OnNan = OnNan.IGNORE,
        kept: Sequence[Any] = (),
    ) -> None:
        self._strategy = strategy
        self._optimizers = list(optimizers)
        self.on_nan = on_nan if optimizers else OnNan.IGNORE
        self._kept = list(kept) if self.on_nan is OnNan.SKIP else []
        self._notes: _Notes | None = None

    @classmethod
    def of(cls, model: Any, strategy: Any, on_nan: OnNan) -> GradientPath:
        """Build the path of a compiled model. A skipped batch changes no metrics and no moving averages."""
        changed = [*model.non_trainable_variables, *model.metrics_variables]
        kept = [one for one in changed if tf.as_dtype(one.dtype).is_floating and one.aggregation in _LOCAL]
        return cls(strategy, optimizers_of(model), on_nan, kept)

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Only sum gradients where necessary, while other code traces or runs a step."""
        if self._notes is not None:
            yield
            return
        with self._standing_between(_Notes(None)):
            yield

    def trace(self, step: Callable[[], Any]) -> Traced:
        """Call the step of a device within its trace."""
        unknown, no = tf.constant(0.0, tf.float64), tf.constant(False)
        notes = self._notes
        if notes is not None:  # another device of this process is being traced, and its notes hold both
            self._keeping(step, notes)
            return Traced(unknown, no, no)
        notes = _Notes(unknown.graph)
        with self._standing_between(notes):
            self._keeping(step, notes)
        return Traced(
            tf.reduce_max(tf.stack(notes.here(notes.moments, unknown))),
            any_of(notes.here(notes.faults, no)),
            any_of(notes.here(notes.skipped, no)),
        )

    @contextmanager
    def _standing_between(self, notes: _Notes) -> Iterator[None]:
        self._notes = notes
        with ExitStack() as stack:
            stack.callback(setattr, self, "_notes", None)
            for optimizer in self._optimizers:
                _replace(stack, optimizer, "apply", weighed(self._passing(optimizer, notes)))
                inner = inner_of(optimizer)
                update = getattr(inner, _UPDATE, None)
                if notes.graph is not None and update is not None:
                    _replace(stack, inner, _UPDATE, shared_update(inner, update, inner._get_variable_index))
            for optimizer in self._optimizers[:1] if notes.graph is not None else ():
                _replace(stack, optimizer, "scale_loss", _noting_loss(optimizer, notes))
            yield

    def _passing(self, optimizer: Any, notes: _Notes) -> Callable[..., None]:
        apply = optimizer.apply
        is_main = optimizer is self._optimizers[0]
        globally = are_needed(optimizer, self._strategy)

        def passing(gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
            _note_gathered(gradients, variables)
            loss = _loss_share(notes) if is_main else tf.constant(0.0)
            if is_main and notes.graph is not None:
                notes.moments.append(gradients_moment(gradients))
            if self.on_nan is not OnNan.IGNORE:
                notes.faults.append(~_are_finite(gradients, loss, optimizer))
            gradients = sum_fixed_rows(gradients)
            if self.on_nan is OnNan.SKIP:

                def condition(summed: Sequence[Any], losses: Sequence[Any]) -> Any:
                    finite = _are_finite(summed, losses[0], optimizer)
                    notes.skipped.append(~finite)
                    return finite

                apply_globally(optimizer, apply, gradients, variables, shares=[loss], condition=condition)
            elif globally:
                apply_globally(optimizer, apply, gradients, variables)
            else:
                apply(gradients, variables)

        return passing

    def _keeping(self, step: Callable[[], Any], notes: _Notes) -> None:
        before = [tf.identity(one) for one in self._kept]
        step()
        if before:
            skipped = any_of(notes.here(notes.skipped, tf.constant(False)))
            tf.cond(skipped, lambda: _put_back(self._kept, before), lambda: True)


def any_of(flags: Sequence[Any]) -> Any:
    """Return whether one of the flags is true; usually there is only one."""
    return functools.reduce(tf.logical_or, flags)


def _replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)
    stack.callback(delattr, owner, name)


def _note_gathered(gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
    """Mark tables whose gradients are rows: these are gathered from all devices, not summed."""
    for gradient, variable in zip(gradients, variables or ()):
        if isinstance(gradient, tf.IndexedSlices):
            variable.is_gathered = True


def _noting_loss(optimizer: Any, notes: _Notes) -> Callable[[Any], Any]:
    """Note the loss, which Keras's step passes to the optimizer before the backward pass."""
    scale_loss = optimizer.scale_loss

    def noting(loss: Any) -> Any:
        notes.losses[threading.get_ident()] = loss
        return scale_loss(loss)

    return noting


def _loss_share(notes: _Notes) -> Any:
    """Return this device's share of the loss, a float32 scalar; 0 if it is not known."""
    loss = notes.losses.get(threading.get_ident())
    if loss is None or getattr(loss, "graph", None) is not notes.graph:
        return tf.constant(0.0)
    return tf.cast(loss if loss.shape.rank == 0 else tf.reduce_sum(loss), tf.float32)


def _are_finite(gradients: Sequence[Any], loss: Any, optimizer: Any) -> Any:
    """Return whether the gradients and the loss are finite, by their sum.

    A loss scale makes gradients overflow at times, and is halved each time until it fits. At 1 or less an
    overflow is a fault. Finite values overflow the sum only if some are 1e30.
    """
    values = [getattr(one, "values", one) for one in gradients if one is not None]
    wide = [tf.cast(one, tf.float32) if one.dtype.size < 4 else one for one in values]
    sums = [tf.cast(tf.reduce_sum(one), tf.float32) for one in wide]
    total = tf.add_n(sums) if sums else tf.constant(0.0)
    if not scales_loss(optimizer):
        return tf.math.is_finite(total + loss)
    is_scaling = tf.convert_to_tensor(optimizer.dynamic_scale) > 1.0
    return (tf.math.is_finite(total) | is_scaling) & tf.math.is_finite(loss)


def _put_back(variables: Sequence[Any], values: Sequence[Any]) -> bool:
    for variable, value in zip(variables, values):
        variable.assign(value)
    return True


# An optimizer's update, traced once for all variables of one shape.
#
# Tracing runs in Python, and three quarters of a step's trace are Adam's forty operations per variable. The
# update of one variable is a function of its gradient, the variable and the optimizer's variables for it.
# It is traced for the first variable of a shape, and called for the others. TensorFlow inlines the calls
# into the step's graph, which is the same as before.


Update = Callable[[Any, Sequence[tuple[Any, Any]], Any], None]
"""Keras's `_distributed_tf_update_step`: strategy, gradients with their variables, and learning rate."""

_KNOWN = (
    keras.optimizers.SGD,
    keras.optimizers.RMSprop,
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
    keras.optimizers.Adadelta,
    keras.optimizers.Adagrad,
    keras.optimizers.Adamax,
    keras.optimizers.Nadam,
    keras.optimizers.Ftrl,
    keras.optimizers.Lion,
    keras.optimizers.Lamb,
)
"""Optimizers whose update needs nothing else of a variable. Muon needs its name, Adafactor its rank."""


def shared_update(optimizer: Any, update: Update, index: Callable[[Any], int]) -> Update:
    """Return the replacement of a built optimizer's own `update` while a step is traced.

    Optimizers of classes that are not in `_KNOWN`, derived classes included, keep their own. `index` returns
    a variable's position among those that the optimizer was built for.
    """
    if type(optimizer) not in _KNOWN:
        return update
    slots = find_slots(optimizer)

    def shared(strategy: Any, gradients: Sequence[tuple[Any, Any]], learning_rate: Any) -> None:
        local = strategy.experimental_local_results
        are_dense = all(isinstance(gradient, tf.Tensor) for gradient, _ in gradients)
        if not are_dense or any(len(local(variable)) > 1 for _, variable in gradients):
            update(strategy, gradients, learning_rate)
            return
        is_number = isinstance(learning_rate, (int, float))
        rate = learning_rate if is_number else tf.convert_to_tensor(learning_rate)
        steps = tf.convert_to_tensor(optimizer._iterations)  # not `iterations`, which accumulation divides
        one = tf.function(_update_of_one(optimizer, slots), autograph=False)

        def call(variable: Any, gradient: Any, position: int) -> None:
            own = [local(vars(optimizer)[name][position].value)[0] for name in slots]
            one(gradient, variable, own, rate, steps)

        for gradient, variable in gradients:
            arguments = (gradient, index(variable))
            strategy.extended.update(variable, call, args=arguments, group=False)

    return shared


def find_slots(optimizer: Any) -> list[str]:
    """Return the names of the attributes that hold one variable for each trained variable."""
    count = len(optimizer._trainable_variables)
    return [
        name
        for name, value in vars(optimizer).items()
        if isinstance(value, list)
        and len(value) == count
        and all(isinstance(one, keras.Variable) for one in value)
        and not any(one is other for one, other in zip(value, optimizer._trainable_variables))
    ]


def _update_of_one(optimizer: Any, slots: Sequence[str]) -> Callable[..., None]:
    def update(gradient: Any, variable: Any, own: Sequence[Any], rate: Any, steps: Any) -> None:
        attributes = vars(optimizer)
        # The steps as a tensor: what depends on it alone is the same for all variables, and computed once.
        others = {**{name: [one] for name, one in zip(slots, own)}, "_iterations": steps}
        before = {name: attributes[name] for name in others}
        attributes.update(others)
        attributes["_get_variable_index"] = lambda _: 0
        try:
            optimizer.update_step(gradient, variable, rate)
        finally:
            del attributes["_get_variable_index"]
            attributes.update(before)

    return update
