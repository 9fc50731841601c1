"""A training in this very process, by itself: nothing of it outlasts a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainjob_trainer import Environment, Task
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.library import _Request, _train
from trainjob_trainer.progress import ProgressFile
from trainjob_trainer.recipe import Recipe
from trainjob_trainer.replica import Replica
from trainjob_trainer.stop import StopRequest

STRATEGY = tf.distribute.get_strategy()


def replica(folder: Path, uid: str = "mine") -> Replica:
    task = Task("worker", 0, {})
    environment = Environment.from_environment(
        {"TRAINJOB_OUTPUT_DIR": str(folder), "TRAINJOB_UID": uid}, task
    )
    store = CheckpointStore(environment.checkpoint_dir)
    return Replica(task, environment, store, ProgressFile(None), StopRequest())


def model() -> Any:
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    return net


def examples() -> Any:
    inputs = np.ones((8, 3), "float32")
    return tf.data.Dataset.from_tensor_slices((inputs, inputs[:, :1]))


def train(folder: Path, steps: int, build: Any = model, *, test: Any = None, **settings: Any) -> Any:
    recipe = Recipe(steps=steps, global_batch=4, seed=1, **settings)
    return _train(replica(folder), STRATEGY, _Request(build, examples, examples, recipe, test))
