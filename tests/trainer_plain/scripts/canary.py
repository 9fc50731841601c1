"""Keras as it is, then with a part of the repair, then with all: run without the bootstrap folder."""

import json
import os
import time
from pathlib import Path

import keras
import keras.src.backend.tensorflow.trainer as keras_trainer
import numpy as np
import tensorflow as tf

from trainjob_trainer.patches import prepare_loaded


def outcome():
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    try:
        model.fit(np.ones((8, 4), "f"), np.ones((8, 1), "f"), batch_size=4, verbose=0)
        scalar = strategy.run(lambda: tf.constant(2.0))
        assert float(keras_trainer.reduce_per_replica(scalar, strategy, "auto")) == 2.0
    except Exception as error:  # noqa: BLE001 - which one is what the test asks
        return f"{type(error).__name__}: {error}"
    return "trained"


def meet(name):
    """Wait for the other worker: a call that fails there aborts a collective that has begun here."""
    (SEEN / f"{name}-{TASK['index']}").touch()
    while len([*SEEN.glob(f"{name}-?")]) < 2:
        time.sleep(0.1)


SEEN = Path(os.environ["SEEN"])
TASK = json.loads(os.environ["TF_CONFIG"])["task"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
seen = {"unrepaired": outcome()}
for name, without in (("without reduce", "reduce"), ("repaired", ""), ("again", "")):
    meet(name)
    os.environ["TRAIN_WITHOUT"] = without
    prepare_loaded()
    seen[name] = outcome()
(SEEN / f"{TASK['type']}-{TASK['index']}.json").write_text(json.dumps(seen))
