"""Gradients summed over all replicas before the optimizer looks at them.

Keras's `apply` clips, accumulates and checks what each replica passes, and sums over the replicas last. So
`clipnorm` would bound each worker's own gradient, an overflow on one worker would keep that one alone from
taking the step, and what `gradient_accumulation_steps` does in a branch can't reduce there at all. Here they
are summed first, in one collective as before, and `apply` then runs once for all replicas of this process,
outside any replica: there Keras reduces nothing, and branches may update variables. Every worker computes the
same from the same sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer.distribution.kind import is_mirrored

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
    """Sum the gradients over all replicas and apply them; to be called by each replica.

    Args:
        optimizer: whose `apply` it is.
        apply: the optimizer's own.
        gradients: of this replica; None where a variable has none.
        variables: as many, or None for those that the optimizer was built for.
        shares: float32 scalars of this replica, summed in the same collective.
        condition: of the summed gradients and shares: whether the update takes place.
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
