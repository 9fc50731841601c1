"""What some rows of the table of patches mend, each as a fact of this process."""

import json
import os
import time
from pathlib import Path

import keras
import keras.src.backend.tensorflow.trainer as keras_trainer
import numpy as np
import tensorflow as tf


def slow_first(number):
    time.sleep(0.5 if number == 0 else 0.0)
    return number


def minus_mean(_, y_pred):
    return -y_pred[:, 0]


def is_error(function):
    try:
        function()
    except Exception as error:  # noqa: BLE001 - that there is one is what the test asks
        print(repr(error)[:600])
        return True
    return False


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(keras.optimizers.SGD(1.0), loss=minus_mean)
rows = np.array([[1.0], [2.0], [6.0]], "float32")
numbers = tf.data.Dataset.range(8).map(
    lambda one: tf.numpy_function(slow_first, [one], tf.int64), num_parallel_calls=4, deterministic=False
)
ordered = [int(one) for one in numbers]
fails = is_error(lambda: model.fit(rows, rows, batch_size=3, verbose=0))
facts = {
    "strategy": strategy.num_replicas_in_sync == 2,
    "numbers": not is_error(lambda: float(model.optimizer.learning_rate)),
    "order": ordered == list(range(8)),
    "reduce": not is_error(
        lambda: keras_trainer.reduce_per_replica(strategy.run(lambda: tf.constant(2.0)), strategy, "auto")
    ),
    "losses": abs(float(model.get_weights()[0].item()) - 3.0) < 1e-5,
    "fit": not fails,
}
task = json.loads(os.environ["TF_CONFIG"])["task"]
(Path(os.environ["SEEN"]) / f"{task['type']}-{task['index']}.json").write_text(json.dumps(facts))
