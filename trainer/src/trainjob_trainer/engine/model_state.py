"""What a Keras model's training depends on, beside its data: what a snapshot has to hold."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from trainjob_trainer.reporting.lines import announce

VariableLists = Mapping[str, list[Any]]


def variable_groups(model: Any) -> VariableLists:
    """What every checkpoint of the model holds.

    `model.variables` has the random state of dropout, which TensorFlow's own checkpoints of a Keras 3 model
    leave out.
    """
    return {"model": list(model.variables), "optimizer": list(model.optimizer.variables)}


def further_groups(model: Any) -> VariableLists:
    """What not every model has, and older checkpoints lack.

    Further optimizers, and the random state behind calls such as `keras.random.normal(shape)` that name no
    seed. Asking creates that state, which draws a number from Python's `random`.
    """
    groups = further_optimizers(model)
    state = _global_random_state()
    return {**groups, "random": [state]} if state is not None else groups


def further_optimizers(model: Any) -> dict[str, list[Any]]:
    """The variables of optimizers that only the model's own `train_step` uses, as those of a GAN."""
    return {f"optimizer.{name}": list(one.variables) for name, one in _further_optimizers(model)}


def optimizers_of(model: Any) -> list[Any]:
    """All of them, the one that the model was compiled with first; none without that one."""
    main = getattr(model, "optimizer", None)
    return [] if main is None else [main, *(one for _, one in _further_optimizers(model))]


def tell_unsaved(model: Any) -> None:
    """Say what a resumed run will not have: an optimizer that creates its variables in the first step."""
    for name, optimizer in _further_optimizers(model):
        if not optimizer.built:
            announce(
                f"model.{name} has no variables yet, so checkpoints don't hold its state: call "
                f"{name}.build(trainable_variables) where the model is made"
            )


def _further_optimizers(model: Any) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(vars(model).items()):
        if isinstance(value, keras.optimizers.Optimizer) and value is not model.optimizer:
            yield name, value


def _global_random_state() -> Any:
    """Keras has no public way to it; without it such calls begin anew after a restart."""
    try:
        return importlib.import_module("keras.src.random.seed_generator").global_seed_generator().state
    except (ImportError, AttributeError):
        return None
