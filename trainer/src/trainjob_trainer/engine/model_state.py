"""What training depends on besides its data: the model, initial weights, learning rate, normalization."""

from __future__ import annotations

import functools
import importlib
import random
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer.distribution.collective import check_same_weights
from trainjob_trainer.errors import InvalidConfiguration, first_line
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

    Keras creates it per thread, for the first random number without a seed. Devices run in threads of their
    own, within a step, where no variable can be created: they use this one. Its initial value is a number of
    Python's `random`, whose state doesn't change.
    """
    before = random.getstate()
    try:
        module = importlib.import_module("keras.src.random.seed_generator")
        state = _shared_by_threads(module)().state
    except (ImportError, AttributeError):
        return None
    finally:
        random.setstate(before)
    return state


def _shared_by_threads(module: Any) -> Callable[[], Any]:
    if hasattr(module.global_seed_generator, "__wrapped__"):
        return module.global_seed_generator  # type: ignore[no-any-return]
    original = module.global_seed_generator
    newest: list[Any] = []

    @functools.wraps(original)
    def global_seed_generator() -> Any:
        if threading.current_thread() is threading.main_thread():
            newest[:] = [original()]
        return newest[0] if newest else original()

    module.global_seed_generator = global_seed_generator
    return global_seed_generator


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


# The learning rate of a larger batch: linear scaling and warm-up.
#
# The rule is from Goyal et al., "Accurate, Large Minibatch SGD" (2017): k times the examples per step take
# k times the rate. A warm-up keeps the first steps, in which the weights change most, from diverging.


class ScaledRate(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc,unused-ignore]
    """A rate, or a schedule from step 0 on, times a factor, with a warm-up.

    In the warm-up, step s, from 0, takes (s + 1) / `warmup_steps` of the rate; 0 means no warm-up.
    """

    def __init__(self, rate: Any, factor: float, warmup_steps: int) -> None:
        self._rate = rate
        self._factor = factor
        self._warmup_steps = warmup_steps

    def __call__(self, step: Any) -> Any:
        """Return the rate of a step, a float32 scalar."""
        rate = tf.cast(self._rate(step) if callable(self._rate) else self._rate, tf.float32)
        share = (tf.cast(step, tf.float32) + 1.0) / max(self._warmup_steps, 1)
        return rate * self._factor * tf.minimum(share, 1.0)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, for Keras."""
        return {"rate": self._rate, "factor": self._factor, "warmup_steps": self._warmup_steps}


def scale_learning_rate(model: Any, recipe: Recipe) -> None:
    """Apply the recipe's learning rate to a compiled model; without such settings change nothing."""
    factor = (recipe.global_batch or 0) / recipe.base_batch if recipe.base_batch else 1.0
    if factor == 1.0 and not recipe.warmup_steps:
        return
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    rate = optimizer._learning_rate  # the property returns a schedule's current value
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        if callable(rate) and not hasattr(rate, "numpy"):
            raise InvalidConfiguration(
                "base_batch, warmup_steps: the optimizer's learning rate is a function; give a number or a "
                "keras.optimizers.schedules.LearningRateSchedule"
            )
        rate = float(rate)
    optimizer.learning_rate = ScaledRate(rate, factor, recipe.warmup_steps)


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
