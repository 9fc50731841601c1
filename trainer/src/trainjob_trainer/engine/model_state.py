"""What training depends on besides its data: the model, initial weights, learning rate, normalization."""

from __future__ import annotations

import functools
import importlib
import random
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer.checkpoint.snapshot import assign
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore
from trainjob_trainer.distribution.collective import check_same_weights
from trainjob_trainer.errors import (
    CheckpointMismatch,
    CheckpointUnreadable,
    InvalidConfiguration,
    first_line,
)
from trainjob_trainer.recipe import Recipe
from trainjob_trainer.reporting.progress import announce, notice
from trainjob_trainer.task import Task

# The model.


def build_model(strategy: Any, build: Callable[[], Any], spec: Any, seed: int) -> Any:
    """Build the user's model, seeded, with every variable that training on batches of `spec` needs."""
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = build()
        if not isinstance(model, keras.Model):
            raise InvalidConfiguration(f"model() must return a Keras model, got {type(model).__name__}")
        if not model.compiled:
            raise InvalidConfiguration("model() must return a compiled model: call model.compile(...) in it")
        _create_variables(model, spec)
    return model


def _create_variables(model: Any, spec: Any) -> None:
    """Create variables, which traced steps can't do. Keras does the same at the start of `fit`."""
    try:
        model._symbolic_build(data_batch=spec)
    except (ValueError, TypeError, RuntimeError) as error:
        traceback.print_exc()
        # Some versions of Keras wrap every error there in advice to build the model by hand.
        wrapped = error.__context__ if isinstance(error, RuntimeError) else None
        why = first_line(wrapped or error)
        shapes = ", ".join(str(tuple(part.shape)[1:]) for part in tf.nest.flatten(spec))
        raise InvalidConfiguration(
            f"the model can't be trained on examples of the shapes {shapes}: {why}"
        ) from error
    model.optimizer.build(model.trainable_variables)


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


# Initial weights: those of an earlier model, of another job or of a colleague.


ENDINGS = (".keras", ".weights.h5")


def load_initial_weights(strategy: Any, task: Task, model: Any, path: str) -> None:
    """Load a file into a built model on every worker, and check that all have the same weights.

    The optimizer keeps its initial state.

    Raises:
        CheckpointMismatch: the workers read different weights.
    """
    if not path.endswith(ENDINGS):
        raise InvalidConfiguration(
            f"initial_weights: {path} is none of {' or '.join(ENDINGS)}; model.save and model.save_weights "
            "write such files"
        )
    if not Path(path).is_file():
        raise InvalidConfiguration(
            f"initial_weights: {task.replica} finds no file {path}; it must be in the image or on a volume "
            "of every worker"
        )
    try:
        model.load_weights(path)
    except (ValueError, KeyError, TypeError, OSError) as error:
        why = first_line(error)
        raise InvalidConfiguration(f"initial_weights: {path} doesn't fit the model: {why}") from error
    check_same_weights(strategy, task, {"model": model.variables})
    if task.is_writer:
        announce(f"begins with the weights of {path}")


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
    found = Checkpoint(int(one[1]), 0, "", folder, 0.0) if one else store.latest()
    if found is None:
        raise CheckpointUnreadable(f"{folder} holds no whole checkpoint")
    host = store.read(found)
    further = further_groups(model)
    groups = {
        **variable_groups(model, with_optimizer=model.compiled),
        **{name: variables for name, variables in further.items() if model.compiled and name in host},
    }
    assign(groups, host)
    return found.step


# The learning rate of a larger batch: linear scaling and warm-up.
#
# The rule is from Goyal et al., "Accurate, Large Minibatch SGD" (2017): k times the examples per step take
# k times the rate. A warm-up keeps the first steps, in which the weights change most, from diverging.


# A file of the model is read where this library isn't, so the rate is a number or a schedule of Keras's.


_RATES = ("initial_learning_rate", "end_learning_rate", "warmup_target", "values")
"""The arguments of Keras's schedules that are rates; each is proportional to them."""


def scale_learning_rate(model: Any, recipe: Recipe) -> None:
    """Apply the recipe's learning rate to a compiled model; without such settings change nothing.

    In the warm-up, step s, from 0, takes (s + 1) / `warmup_steps` of the rate.
    """
    factor = (recipe.global_batch or 0) / recipe.base_batch if recipe.base_batch else 1.0
    steps = recipe.warmup_steps
    if factor == 1.0 and not steps:
        return
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    rate = optimizer._learning_rate  # the property returns a schedule's current value
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        rate = _scaled_schedule(rate, factor, steps)
    elif callable(rate) and not hasattr(rate, "numpy"):
        raise InvalidConfiguration(
            "base_batch, warmup_steps: the optimizer's learning rate is a function; give a number or a "
            "keras.optimizers.schedules.LearningRateSchedule"
        )
    else:
        rate = float(rate) * factor
        if steps > 1:  # a straight line up
            rate = keras.optimizers.schedules.PolynomialDecay(rate / steps, steps - 1, rate)
    optimizer.learning_rate = rate


def _scaled_schedule(schedule: Any, factor: float, warmup_steps: int) -> Any:
    """Return a schedule from step 0 on, times a factor, with a warm-up.

    Files name Keras's own class, without the warm-up, which is over by then. One of the user's own can't be
    read from files: its arguments don't tell the factor.
    """
    kind, config = type(schedule), schedule.get_config()
    is_keras = kind.__module__.startswith("keras.")
    if is_keras:
        rates = {name: config[name] for name in _RATES if config.get(name) is not None}
        config |= tf.nest.map_structure(lambda rate: rate * factor, rates)
    if is_keras and not warmup_steps:
        return kind.from_config(config)

    def call(self: Any, step: Any) -> Any:
        share = (tf.cast(step, tf.float32) + 1.0) / max(warmup_steps, 1)
        return kind.__call__(self, step) * tf.minimum(share, 1.0) * (1.0 if is_keras else factor)

    members = {"__call__": call, "__module__": "keras.optimizers.schedules" if is_keras else __name__}
    return type(kind.__name__, (kind,), members).from_config(config)  # type: ignore[attr-defined]


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
