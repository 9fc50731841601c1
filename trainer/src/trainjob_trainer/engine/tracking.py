"""The variables of what a user asks to be tracked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer.errors import InvalidConfiguration


def collect_variables(objects: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Variables by the names that the user gave; a compiled model brings its optimizer along.

    Raises:
        InvalidConfiguration: an object of a kind without variables, or one that is not built yet.
    """
    models = [item for item in objects.values() if isinstance(item, keras.Model)]
    groups: dict[str, list[Any]] = {}
    for name, item in objects.items():
        groups[name] = _variables(name, item, models)
        optimizer = getattr(item, "optimizer", None) if isinstance(item, keras.Model) else None
        if optimizer is not None and optimizer not in objects.values():
            groups[f"{name}.optimizer"] = _variables(f"{name}.optimizer", optimizer, [item])
    return groups


def _variables(name: str, item: Any, models: Sequence[Any]) -> list[Any]:
    if isinstance(item, keras.optimizers.Optimizer):
        return _optimizer_variables(name, item, models)
    if isinstance(item, (list, tuple)):
        return [variable for part in item for variable in _variables(name, part, models)]
    if isinstance(item, (tf.Variable, keras.Variable)):
        return [item]
    if not isinstance(item, (keras.Layer, keras.Metric, tf.Module)):
        raise InvalidConfiguration(
            f"track({name}=...): {type(item).__name__} has no variables to save; give a Keras model, layer, "
            "metric or optimizer, a tf.Module or a variable"
        )
    if isinstance(item, keras.Layer) and not item.built:
        raise InvalidConfiguration(
            f"track({name}=...): the model has no variables yet; give it a keras.Input or call it once"
        )
    return list(item.variables)


def _optimizer_variables(name: str, optimizer: Any, models: Sequence[Any]) -> list[Any]:
    if not optimizer.built:
        if len(models) != 1:
            raise InvalidConfiguration(
                f"track({name}=...): the optimizer has no variables yet; call "
                "optimizer.build(model.trainable_variables) in the strategy's scope"
            )
        optimizer.build(models[0].trainable_variables)
    return list(optimizer.variables)
