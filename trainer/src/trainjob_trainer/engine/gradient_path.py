"""The way of gradients from a traced step to its optimizer: they are timed, looked at, and summed if need be.

The step calls `optimizer.apply` as ever, Keras's own step or one of the user's. What is between the two is
put there while the step is being traced, and taken away again.
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
from trainjob_trainer.engine.model_state import optimizers_of
from trainjob_trainer.engine.not_finite import OnNan
from trainjob_trainer.engine.replica_share import weighed_gradients
from trainjob_trainer.engine.work_time import gradients_moment

# Rows of tables that are looked up whatever the batch holds, such as those of positions.
#
# Keras's optimizers square each row of a gradient by itself, also where several are of the same place in the
# table. One process has one row for each lookup of a position, summed over the batch; workers would have one
# each. So these are summed over the replicas before the optimizer sees them, as any weight's gradient is.


_OF_SHAPES = ("Shape", "ShapeN", "Size", "Rank")


def has_fixed_rows(gradient: Any) -> bool:
    """Whether a gradient is of rows of a table that are the same for any batch of this shape.

    Known where it has been traced into the graph of the step; elsewhere the answer is no.
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
    """Have the first replica hold the sum of such rows, and the others zeros; all replicas call it."""
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


# Gradients summed over all replicas before the optimizer looks at them.
#
# Keras's `apply` clips, accumulates and checks what each replica passes, and sums over the replicas last.
# So `clipnorm` would bound each worker's own gradient, an overflow on one worker would keep that one alone
# from taking the step, and what `gradient_accumulation_steps` does in a branch can't reduce there at all.
# Here they are summed first, in one collective as before, and `apply` then runs once for all replicas of
# this process, outside any replica: there Keras reduces nothing, and branches may update variables. Every
# worker computes the same from the same sums.


_LOOKS_AT_GRADIENTS = (
    "clipnorm",
    "global_clipnorm",
    "clipvalue",
    "gradient_accumulation_steps",
    "ema_overwrite_frequency",
)
"""Settings by which an optimizer looks at gradients, or updates variables in a branch."""

Apply = Callable[..., Any]
"""An optimizer's own `apply`: gradients, and the variables or None."""


def are_needed(optimizer: Any, strategy: Any) -> bool:
    """Whether this optimizer has a setting that Keras gets wrong under such a strategy."""
    if not is_mirrored(strategy) or optimizer is None:
        return False
    settings = inner_of(optimizer)
    return scales_loss(optimizer) or any(getattr(settings, name, None) for name in _LOOKS_AT_GRADIENTS)


def scales_loss(optimizer: Any) -> bool:
    """Whether it scales the loss, as `mixed_float16` brings it along."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def inner_of(optimizer: Any) -> Any:
    """The optimizer that has the settings."""
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
    """Sum the gradients over all replicas and apply them; each replica calls it.

    A gradient is None where a variable has none. `shares` are float32 scalars, summed in the same collective;
    `condition` says by the summed gradients and shares whether the update takes place.
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
    """Let `apply` update variables where it is, instead of meeting the other replicas once more.

    `_use_merge_call` is TensorFlow's own word for that, and false under XLA on GPUs. The loss scale's
    `_tf_apply` only chooses between the two.
    """
    changes = [(strategy.extended, "_use_merge_call", lambda: False)]
    if scales_loss(optimizer):
        changes.append((optimizer, "_tf_apply", optimizer._common_apply))
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, _ in changes:
            delattr(owner, name)


_UPDATE = "_distributed_tf_update_step"
"""Keras's method that updates all variables, given their summed gradients."""
_LOCAL = (None, "none", "sum")
"""Kinds of aggregation with which each replica assigns to a copy of its own."""


@dataclass(frozen=True)
class Traced:
    """What one step of a replica leaves behind, as tensors.

    `ready` is when the gradients were there, as `work_time.moment_after`; 0 where that can't be known. With
    `fault` the loss or a gradient is not finite; with `skipped` all replicas have left the update out.
    """

    ready: Any
    fault: Any
    skipped: Any


@dataclass
class _Notes:
    """Of one step, by all replicas of this process: each is traced up to where all meet, then the next."""

    graph: Any
    losses: dict[int, Any] = field(default_factory=dict)
    """By the thread that traces a replica."""
    moments: list[Any] = field(default_factory=list)
    faults: list[Any] = field(default_factory=list)
    skipped: list[Any] = field(default_factory=list)

    def here(self, tensors: Sequence[Any], otherwise: Any) -> list[Any]:
        """Those of the step itself: what belongs to a branch of it can't be had outside."""
        return [one for one in tensors if one.graph is self.graph] or [otherwise]


class GradientPath:
    """The way from the steps of one model to its optimizers; there are none where nothing is trained.

    The main optimizer comes first. `kept` are the variables that the forward pass changes; they stay as they
    were where an update is left out.
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
        """That of a compiled model. Its metrics and moving averages are kept from a batch that is skipped."""
        changed = [*model.non_trainable_variables, *model.metrics_variables]
        kept = [one for one in changed if tf.as_dtype(one.dtype).is_floating and one.aggregation in _LOCAL]
        return cls(strategy, optimizers_of(model), on_nan, kept)

    @contextmanager
    def summing(self) -> Iterator[None]:
        """While a step is being traced by somebody else, or run: only sum gradients where need be."""
        notes = self._notes
        if notes is not None:
            yield
            return
        with ExitStack() as stack:
            self._notes = _Notes(None)
            stack.callback(setattr, self, "_notes", None)
            for optimizer in self._optimizers:
                globally = are_needed(optimizer, self._strategy)
                _replace(stack, optimizer, "apply", _summing(optimizer, globally=globally))
            yield

    def trace(self, step: Callable[[], Any]) -> Traced:
        """Call the step of a replica, within its trace."""
        unknown, no = tf.constant(0.0, tf.float64), tf.constant(False)
        notes = self._notes
        if notes is not None:  # another replica of this process is being traced, and notes for both
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
                _replace(stack, optimizer, "apply", self._passing(optimizer, notes))
                _share_update(stack, inner_of(optimizer))
            for optimizer in self._optimizers[:1]:
                _replace(stack, optimizer, "scale_loss", _noting_loss(optimizer, notes))
            yield

    def _passing(self, optimizer: Any, notes: _Notes) -> Callable[..., None]:
        apply = optimizer.apply
        is_main = optimizer is self._optimizers[0]
        globally = are_needed(optimizer, self._strategy)

        def passing(grads: Any, trainable_variables: Any = None) -> None:
            gradients = weighed_gradients(list(grads))
            variables = None if trainable_variables is None else list(trainable_variables)
            _note_gathered(gradients, variables)
            loss = _loss_share(notes) if is_main else tf.constant(0.0)
            if is_main:
                notes.moments.append(gradients_moment(gradients))
            if self.on_nan is not OnNan.IGNORE:
                notes.faults.append(~_are_finite(gradients, loss, optimizer))
            gradients = sum_fixed_rows(gradients)
            if self.on_nan is OnNan.SKIP:
                condition = self._condition(optimizer, notes)
                apply_globally(optimizer, apply, gradients, variables, shares=[loss], condition=condition)
            elif globally:
                apply_globally(optimizer, apply, gradients, variables)
            else:
                apply(gradients, variables)

        return passing

    def _condition(self, optimizer: Any, notes: _Notes) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
        def condition(gradients: Sequence[Any], losses: Sequence[Any]) -> Any:
            finite = _are_finite(gradients, losses[0], optimizer)
            notes.skipped.append(~finite)
            return finite

        return condition

    def _keeping(self, step: Callable[[], Any], notes: _Notes) -> None:
        before = [tf.identity(one) for one in self._kept]
        step()
        if before:
            skipped = any_of(notes.here(notes.skipped, tf.constant(False)))
            tf.cond(skipped, lambda: _put_back(self._kept, before), lambda: True)


def any_of(flags: Sequence[Any]) -> Any:
    """Whether one of them is true; most often there is only one."""
    return functools.reduce(tf.logical_or, flags)


def _replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)
    stack.callback(delattr, owner, name)


def _share_update(stack: ExitStack, optimizer: Any) -> None:
    own = getattr(optimizer, _UPDATE, None)
    if own is not None:
        _replace(stack, optimizer, _UPDATE, shared_update(optimizer, own, optimizer._get_variable_index))


def _summing(optimizer: Any, *, globally: bool) -> Callable[..., None]:
    apply = optimizer.apply

    def summing(grads: Any, trainable_variables: Any = None) -> None:
        gradients = sum_fixed_rows(weighed_gradients(list(grads)))
        variables = None if trainable_variables is None else list(trainable_variables)
        _note_gathered(gradients, variables)
        if globally:
            apply_globally(optimizer, apply, gradients, variables)
        else:
            apply(gradients, variables)

    return summing


def _note_gathered(gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
    """Mark tables whose gradients are rows: they are gathered from all replicas, not summed."""
    for gradient, variable in zip(gradients, variables or ()):
        if isinstance(gradient, tf.IndexedSlices):
            variable.is_gathered = True


def _noting_loss(optimizer: Any, notes: _Notes) -> Callable[[Any], Any]:
    """Keras's step passes its loss to the optimizer before the backward pass."""
    scale_loss = optimizer.scale_loss

    def noting(loss: Any) -> Any:
        notes.losses[threading.get_ident()] = loss
        return scale_loss(loss)

    return noting


def _loss_share(notes: _Notes) -> Any:
    """This replica's share of the loss, as far as it is known: a float32 scalar."""
    loss = notes.losses.get(threading.get_ident())
    if loss is None or getattr(loss, "graph", None) is not notes.graph:
        return tf.constant(0.0)
    return tf.cast(loss if loss.shape.rank == 0 else tf.reduce_sum(loss), tf.float32)


def _are_finite(gradients: Sequence[Any], loss: Any, optimizer: Any) -> Any:
    """Whether all are, by their sum.

    A scale of the loss makes gradients overflow now and then, and is halved each time: that is its way to
    find the right one. At 1 it has come to its end.
    """
    total = _total(gradients)
    if not scales_loss(optimizer):
        return tf.math.is_finite(total + loss)
    is_scaling = tf.convert_to_tensor(optimizer.dynamic_scale) > 1.0
    return (tf.math.is_finite(total) | is_scaling) & tf.math.is_finite(loss)


def _total(gradients: Sequence[Any]) -> Any:
    """NaN or infinite if one of them is; too large a sum of finite ones needs some of 1e30."""
    values = [getattr(one, "values", one) for one in gradients if one is not None]
    wide = [tf.cast(one, tf.float32) if one.dtype.size < 4 else one for one in values]
    sums = [tf.cast(tf.reduce_sum(one), tf.float32) for one in wide]
    return tf.add_n(sums) if sums else tf.constant(0.0)


def _put_back(variables: Sequence[Any], values: Sequence[Any]) -> bool:
    for variable, value in zip(variables, values):
        variable.assign(value)
    return True


# An optimizer's update, traced once for all variables of one shape instead of for each.
#
# Tracing is Python's work, and three quarters of a step's trace are Adam's forty operations a variable. The
# update of one variable is a function of its gradient, itself and the optimizer's variables for it: it is
# traced for the first of a shape, and called for the others. TensorFlow puts the calls into the step's graph,
# which is the same as before.


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
"""Whose update depends on nothing else of a variable. Muon's depends on its name, Adafactor's on its rank."""


def shared_update(optimizer: Any, update: Update, index: Callable[[Any], int]) -> Update:
    """What takes the place of a built optimizer's own `update` while a step is traced.

    Optimizers of other classes than Keras's keep their own, and so do those of classes derived from Keras's.
    `index` returns a variable's position among those that the optimizer was built for.
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
    """The attributes that hold a variable for each of those that are trained."""
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
        # The steps as a number: what depends on it alone is the same for all variables, and computed once.
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
