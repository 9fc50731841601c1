"""Creates variables whose initial values differ from worker to worker, and tells what they are then.

    python initial_values.py FOLDER

Each worker leaves FOLDER/<replica>.json behind: by case, values and how many broadcasts there were.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.ops import collective_ops

from trainjob_trainer import Task
from trainjob_trainer.checkpoint.snapshot import local_components
from trainjob_trainer.distribution.strategy import build_strategy

TASK = Task.from_environment(os.environ)
OWN = TASK.rank + 1
broadcasts: list[str] = []


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    def counting(*args: Any, **kwargs: Any) -> Any:
        broadcasts.append(function.__name__)
        return function(*args, **kwargs)

    return counting


collective_ops.broadcast_send = counted(collective_ops.broadcast_send)
collective_ops.broadcast_recv = counted(collective_ops.broadcast_recv)
STRATEGY = build_strategy(TASK)


def model(seed: int) -> list[Any]:
    keras.utils.set_random_seed(seed)
    with STRATEGY.scope():
        net = keras.Sequential([keras.Input((3,)), *(keras.layers.Dense(4) for _ in range(6))])
        net.compile("adam", "mse", metrics=["mae"])
        net.optimizer.build(net.trainable_variables)
    return [*net.variables, *net.optimizer.variables, *net.metrics_variables]


def seeded() -> list[Any]:
    return model(7)


def unseeded() -> list[Any]:
    return model(OWN)


def of_all_types() -> list[Any]:
    with STRATEGY.scope():
        return [
            tf.Variable(OWN == 1),
            tf.Variable([OWN] * 3, dtype=tf.int8),
            tf.Variable([[OWN, 5]], dtype=tf.int32),
            tf.Variable(float(OWN), dtype=tf.bfloat16),
            tf.Variable([float(OWN), -0.0, np.inf], dtype=tf.float64),
            tf.Variable(tf.zeros([0])),
            tf.Variable(
                float(OWN),
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
                trainable=False,
            ),
        ]


def one_of_two() -> list[Any]:
    with STRATEGY.scope():
        return [tf.Variable([1.0, 2.0]), tf.Variable([float(OWN)] * 2)]


def trained_within_the_scope() -> list[Any]:
    """A loop that doesn't leave the scope before its first step, and adds the value to itself."""
    with STRATEGY.scope():
        variable = tf.Variable(float(OWN))

        @tf.function
        def step() -> Any:
            return STRATEGY.run(lambda: variable.assign_add(1.0))

        step()
        return [variable, tf.Variable(variable.values[0].numpy())]


def created_in_a_step() -> list[Any]:
    found: list[Any] = []

    def step() -> Any:
        found.append(tf.Variable(float(OWN)))
        return found[0].read_value()

    with STRATEGY.scope():
        STRATEGY.run(step)
    return found


def after_an_error() -> list[Any]:
    found = []
    with contextlib.suppress(ValueError), STRATEGY.scope():
        found.append(tf.Variable(float(OWN)))
        raise ValueError
    with STRATEGY.scope():
        return found


CASES = (
    seeded,
    unseeded,
    of_all_types,
    one_of_two,
    trained_within_the_scope,
    created_in_a_step,
    after_an_error,
)

if __name__ == "__main__":
    told = {}
    for case in CASES:
        before = len(broadcasts)
        values = [local_components(one)[0].numpy() for one in case()]
        told[case.__name__] = {
            "values": [repr(value.tolist() if hasattr(value, "tolist") else value) for value in values],
            "broadcasts": len(broadcasts) - before,
        }
    Path(sys.argv[1], f"{TASK.replica}.json").write_text(json.dumps(told))
