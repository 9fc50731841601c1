"""Sums that several workers add to at once.

Keras adds to a variable by reading it, adding, and writing the sum back. Where two workers do so at the same
time one of them is forgotten: a third of all steps, with two workers. The server itself adds without that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from trainjob_trainer.engine.metric_state import metric_variables


def add_on_server(model: Any) -> None:
    """From now on the model's metrics and its optimizer's count of steps are added to where they lie.

    Args:
        model: compiled and built.
    """
    for variable in summed_variables(model):
        _add_in_place(variable)


def summed_variables(model: Any) -> Iterable[Any]:
    """Those that Keras adds to by itself; weights and their moments are updated in place anyway."""
    iterations = getattr(model.optimizer, "iterations", None)
    return [*metric_variables(model), *([iterations] if iterations is not None else [])]


def _add_in_place(variable: Any) -> None:
    def assign_add(value: Any) -> Any:
        variable.value.assign_add(tf.cast(value, variable.value.dtype))
        return variable.value

    def assign_sub(value: Any) -> Any:
        variable.value.assign_sub(tf.cast(value, variable.value.dtype))
        return variable.value

    variable.assign_add, variable.assign_sub = assign_add, assign_sub
