"""What the scripts of `shapes.py` begin with: data, a small model, and `say`, for what a test compares."""

import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

TASK = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {})
RANK = TASK.get("index", 0)
ATTEMPT = int(os.environ.get("TRAINJOB_ATTEMPT", "0"))
OUT = Path(os.environ["TRAINJOB_OUTPUT_DIR"])
SEEN = Path(os.environ["SEEN"])
OUT.mkdir(parents=True, exist_ok=True)

_random = np.random.default_rng(0)
x = _random.normal(size=(64, 4)).astype("float32")
y = (x @ np.array([1, -2, 3, 0.5]))[:, None].astype("float32")


def net(rate=0.02, units=0, optimizer=keras.optimizers.SGD, **dense):
    strategy = getattr(sys.modules["__main__"], "strategy", None) or tf.distribute.get_strategy()
    with strategy.scope():
        layers = [keras.layers.Dense(units, kernel_initializer="ones")] if units else []
        last = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.1), **dense)
        model = keras.Sequential([keras.Input((4,)), *layers, last])
        model.compile(optimizer(rate), loss="mse")
    return model


def fit(model, epochs=3, target=1.0, **arguments):
    """Not used where the place of the call in the script is what matters."""
    return model.fit(x, target * y, batch_size=16, epochs=epochs, verbose=0, **arguments)


class Kill(keras.callbacks.Callback):
    """Kills a worker in the first attempt, when an epoch has ended."""

    def __init__(self, epoch=1, rank=0):
        super().__init__()
        self.at = epoch, rank

    def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
        if ATTEMPT == 1 and (epoch, RANK) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def say(name, value):
    if isinstance(value, keras.Model):
        value = [one.tolist() for one in value.get_weights()]
    if isinstance(value, keras.callbacks.History):
        value = value.history
    SEEN.mkdir(parents=True, exist_ok=True)
    with (SEEN / f"{RANK}.jsonl").open("a") as file:
        file.write(json.dumps([name, value], default=float) + "\n")


def fails_once():
    if ATTEMPT == 1 and RANK == 0:
        raise RuntimeError("what comes after training fails")


keras.utils.set_random_seed(7)
__all__ = [name for name in dir() if not name.startswith("_")] + ["np"]
assert sys.path
