"""One process by itself, through both ways into the library; nothing of it outlasts a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainjob_trainer import CheckpointMismatch, Environment, Run, Task
from trainjob_trainer.checkpoint.snapshot import NamedArray
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.library import _Request, _train
from trainjob_trainer.progress import ProgressFile
from trainjob_trainer.replica import Replica
from trainjob_trainer.resume import Start
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


def request(steps: int) -> _Request:
    return _Request(model, examples, examples, None, steps, 4, 1, None, True)


def test_another_model_leaves_a_finished_output_finished(tmp_path: Path) -> None:
    alone = replica(tmp_path)
    alone.store.save(2, 1, {"model": [NamedArray("a", np.zeros(2, "float32"))], "optimizer": []}, "old")
    alone.store.mark_final(2, "old")

    with pytest.raises(CheckpointMismatch):
        _train(alone, STRATEGY, request(steps=4))

    assert alone.store.final() is not None


def test_a_second_loop_goes_on_where_the_first_one_ended(tmp_path: Path) -> None:
    run = Run(replica(tmp_path), STRATEGY, Start.nothing())
    run.track(counter=tf.Variable(0))

    assert list(run.steps(3)) == [0, 1, 2]
    assert list(run.steps(5)) == [3, 4]
