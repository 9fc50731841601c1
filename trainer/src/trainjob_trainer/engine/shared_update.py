"""An optimizer's update, traced once for all variables of one shape instead of for each.

Tracing is Python's work, and three quarters of a step's trace are Adam's forty operations a variable. The
update of one variable is a function of its gradient, itself and the optimizer's variables for it: it is
traced for the first of a shape, and called for the others. TensorFlow puts the calls into the step's graph,
which is the same as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

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
