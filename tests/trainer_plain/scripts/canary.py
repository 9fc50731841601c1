"""Keras as it is, then with one repair, then with both: run without the bootstrap folder."""

import json
import os
from pathlib import Path

import keras
import keras.src.backend.tensorflow.trainer as keras_trainer
import numpy as np
import tensorflow as tf

from trainjob_trainer.plain import keras_repair


def outcome():
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    try:
        model.fit(np.ones((8, 4), "f"), np.ones((8, 1), "f"), batch_size=4, verbose=0)
    except Exception as error:  # noqa: BLE001 - which one is what the test asks
        return f"{type(error).__name__}: {error}"
    return "trained"


strategy = tf.distribute.MultiWorkerMirroredStrategy()
seen = {
    "build_fault": keras_repair.has_build_fault(keras_trainer),
    "reduce_fault": keras_repair.has_reduce_fault(keras_trainer),
    "unrepaired": outcome(),
}
Trainer = keras_repair.fit_class(keras_trainer)
original = Trainer._maybe_symbolic_build
Trainer._maybe_symbolic_build = keras_repair._repaired_build(keras_trainer)
seen["build_repaired"] = outcome()
Trainer._maybe_symbolic_build = original
seen["known"] = keras_repair.repair_keras(keras_trainer)
seen["repaired"] = outcome()
seen["again"] = keras_repair.repair_keras(keras_trainer)
task = json.loads(os.environ["TF_CONFIG"])["task"]
(Path(os.environ["SEEN"]) / f"{task['type']}-{task['index']}.json").write_text(json.dumps(seen))
