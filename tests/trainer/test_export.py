"""What a finished training leaves is of use without this package."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from support.trainer.alone import train
from trainjob_trainer.checkpoint.store import CheckpointStore

LOAD = """
import json, sys
sys.modules["trainjob_trainer"] = None
import keras, numpy as np, tensorflow as tf
inputs = np.arange(6, dtype="float32").reshape(2, 3)
by_keras = keras.models.load_model(sys.argv[1] + "/model.keras")
saved = tf.saved_model.load(sys.argv[1] + "/saved_model")
print(json.dumps([np.asarray(one(inputs)).tolist() for one in (by_keras, saved.serve)]))
print(by_keras.optimizer.iterations.numpy())
"""


def test_a_fresh_process_loads_the_model_without_this_package(tmp_path: Path) -> None:
    trained = train(tmp_path, epochs=2, export=True).model
    command = [sys.executable, "-c", LOAD, str(tmp_path / "model")]
    by_keras, step = subprocess.run(command, capture_output=True, check=True).stdout.splitlines()[-2:]
    expected = trained(np.arange(6, dtype="float32").reshape(2, 3)).numpy()
    for loaded in json.loads(by_keras):
        np.testing.assert_allclose(loaded, expected, rtol=1e-6)
    assert int(step) == 4


class Unwritable(keras.layers.Layer):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def call(self, inputs: Any) -> Any:
        return self.function(inputs)


def test_a_model_that_keras_cannot_write_is_told_of_and_the_training_is_finished(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def build() -> Any:
        net = keras.Sequential([keras.Input((3,)), Unwritable(tf.nn.relu), keras.layers.Dense(1)])
        net.compile("sgd", "mse")
        return net

    train(tmp_path, build, export=True)
    printed = capfd.readouterr().err
    assert "trainjob: the model can't be written as model.keras: " in printed
    assert "trainjob: the model can't be written as saved_model: " in printed
    assert not (tmp_path / "model").exists()
    assert CheckpointStore(tmp_path / "checkpoints").final() is not None


def test_nothing_is_written_where_it_is_not_wanted(tmp_path: Path) -> None:
    train(tmp_path, export=False)
    assert not (tmp_path / "model").exists()


def test_a_model_that_is_written_is_so_where_it_cannot_be_looked_at_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    exists = Path.exists

    def fail(path: Path) -> bool:
        if path.parent == tmp_path / "model":
            raise OSError(errno.ESTALE, "stale")
        return exists(path)

    monkeypatch.setattr(Path, "exists", fail)
    train(tmp_path, export=True)
    assert f"the model is in {tmp_path / 'model'}: model.keras and saved_model" in capfd.readouterr().err
