"""What a checkpoint holds of a Keras model, and what its normalization means with several workers."""

from __future__ import annotations

import functools
import importlib
import random
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from trainjob_trainer.checkpoint.snapshot import assign
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore
from trainjob_trainer.errors import CheckpointMismatch, CheckpointUnreadable
from trainjob_trainer.reporting.progress import notice

# State of a Keras model's training that a snapshot has to hold.


VariableLists = Mapping[str, list[Any]]


def checkpoint_groups(model: Any) -> VariableLists:
    """Return all variables of a checkpoint; Keras's random state must exist in the strategy's scope."""
    return {**variable_groups(model), **further_groups(model)}


def variable_groups(model: Any, *, with_optimizer: bool = True) -> VariableLists:
    """Return the variables that every checkpoint holds; create the optimizer's if they don't exist yet.

    `model.variables` has the random state of dropout, which TensorFlow's own checkpoints of a Keras 3 model
    leave out.
    """
    groups = {"model": list(model.variables)}
    optimizer = getattr(model, "optimizer", None)
    if not with_optimizer or optimizer is None:
        return groups
    if not optimizer.built:
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)
    return {**groups, "optimizer": list(optimizer.variables)}


def further_groups(model: Any) -> VariableLists:
    """Return variables that not every model has, and that older checkpoints lack.

    They belong to optimizers that only the model's own `train_step` uses, as in a GAN, and to the random
    state of calls without a seed, such as `keras.random.normal(shape)`. This function creates that state.
    """
    groups = {f"optimizer.{name}": list(one.variables) for name, one in _further_optimizers(model)}
    state = create_random_state()
    return {**groups, "random": [state]} if state is not None else groups


def optimizers_of(model: Any) -> list[Any]:
    """Return all optimizers, the one that the model was compiled with first; none without that one."""
    main = getattr(model, "optimizer", None)
    return [] if main is None else [main, *(one for _, one in _further_optimizers(model))]


def tell_unsaved(model: Any) -> None:
    """Log optimizers whose state a resumed run lacks: they create their variables in the first step."""
    for name, optimizer in _further_optimizers(model):
        if not optimizer.built:
            notice(
                f"model.{name} has no variables yet, so checkpoints don't hold its state: call "
                f"{name}.build(trainable_variables) where the model is made"
            )


def _further_optimizers(model: Any) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(vars(model).items()):
        if isinstance(value, keras.optimizers.Optimizer) and value is not model.optimizer:
            yield name, value


def create_random_state() -> Any:
    """Return the variable of Keras's random state, created here if necessary; None if it can't be reached.

    Its initial value is a number of Python's `random`, whose state doesn't change.
    """
    before = random.getstate()
    try:
        return importlib.import_module("keras.src.random.seed_generator").global_seed_generator().state
    except (ImportError, AttributeError):
        return None
    finally:
        random.setstate(before)


def share_random_state(module: Any) -> None:
    """Have threads of devices use the main thread's random state in `keras.src.random.seed_generator`.

    Keras creates it per thread, for the first random number without a seed. Devices run in threads of their
    own, within a step, where no variable can be created.
    """
    original = module.global_seed_generator
    newest: list[Any] = []

    @functools.wraps(original)
    def global_seed_generator() -> Any:
        if threading.current_thread() is threading.main_thread():
            newest[:] = [original()]
        return newest[0] if newest else original()

    module.global_seed_generator = global_seed_generator


# A checkpoint, in a program that doesn't train.


def load_checkpoint(model: Any, path: str | Path) -> int:
    """Load a job's checkpoint into a built Keras model, such as to predict with it; return its step.

    A model that is compiled gets the state of its optimizer too.

    Args:
        model: with the layers of the one that was trained.
        path: the folder of a checkpoint, such as `checkpoints/step-00000440`, or one that holds checkpoints:
            the newest whole one is taken.

    Raises:
        CheckpointUnreadable: there is no checkpoint, or it is damaged.
        CheckpointUnavailable: reading failed; what is there is unknown.
        CheckpointMismatch: it belongs to another model, or another optimizer. Nothing is changed then.
    """
    if not model.built:
        raise CheckpointMismatch(
            "the model has no variables yet: build it first, with a keras.Input or by calling it on a batch"
        )
    folder = Path(path)
    store, one = CheckpointStore(folder), re.fullmatch(r"step-(\d+)(\.\d+)?", folder.name)
    step = Checkpoint(int(one[1]), 0, "", folder, 0.0) if one else None
    found = (step, store.read(step)) if step else store.read_latest()
    if found is None:
        raise CheckpointUnreadable(f"{folder} holds no whole checkpoint")
    newest, host = found
    further = further_groups(model)
    groups = {
        **variable_groups(model, with_optimizer=model.compiled),
        **{name: variables for name, variables in further.items() if model.compiled and name in host},
    }
    assign(groups, host)
    return newest.step


# Batch normalization with several workers.


_SHOWN = 5


def unsynchronized(model: Any) -> list[str]:
    """Return the names of layers that compute statistics over each device's own part of a batch."""
    kind = keras.layers.BatchNormalization
    return [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, kind) and layer.trainable and not layer.synchronized
    ]


def tell_unsynchronized(model: Any, replicas: int) -> None:
    """Log how a built model's batch normalization works with several devices."""
    names = unsynchronized(model) if replicas > 1 else []
    if not names:
        return
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    notice(
        f"{shown}: BatchNormalization normalizes each worker's part of a batch by itself, and keeps the "
        "moving statistics of worker 0's; with synchronized=True it takes the whole batch"
    )
