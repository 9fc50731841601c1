"""Mistakes that beginners make. Each is made in turn; what its failure would report goes to stdout as JSON.

What fails in the middle of a step ends it for good, as collectives are aborted then: FATAL names the one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainjob_trainer.edge import describe

layers = keras.layers
strategy = tf.distribute.MultiWorkerMirroredStrategy()
X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
Y = np.arange(8) % 3


def network(*more: Any, features: int = 4) -> Any:
    with strategy.scope():
        return keras.Sequential([keras.Input((features,)), *more, layers.Dense(3)])


def compiled(*more: Any, loss: Any = "sparse_categorical_crossentropy", **words: Any) -> Any:
    model = network(*more)
    with strategy.scope():
        model.compile("sgd", loss, **words)
    return model


class Typo(layers.Layer):
    def call(self, inputs: Any) -> Any:
        return self.dens(inputs)  # here: typo_in_a_layer


def own_loss(truth: Any, predicted: Any) -> Any:
    return keras.ops.mean(truth - predicted[:, 0], axis=-2)  # here: own_loss_of_a_wrong_axis


def parse(number: Any) -> Any:
    # next: error_in_a_map
    raise KeyError("label")


def unbatched() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y))


def not_compiled() -> None:
    network().fit(X, Y, verbose=0)  # here: not_compiled


def too_few_labels() -> None:
    compiled().fit(X, Y[:5], verbose=0)  # here: too_few_labels


def features_of_another_model() -> None:
    compiled().fit(X[:, :3], Y, verbose=0)  # here: features_of_another_model


def not_batched() -> None:
    compiled().fit(unbatched(), verbose=0)  # here: not_batched


def labels_one_hot() -> None:
    compiled().fit(X, np.eye(3)[Y], verbose=0)  # here: labels_one_hot


def loss_that_is_none() -> None:
    compiled(loss="categorial_crossentropy").fit(X, Y, verbose=0)  # here: loss_that_is_none


def metric_that_is_none() -> None:
    compiled(metrics=["acuracy"]).fit(X, Y, verbose=0)  # here: metric_that_is_none


def typo_in_a_layer() -> None:
    compiled(Typo()).fit(X, Y, verbose=0)


def own_loss_of_a_wrong_axis() -> None:
    compiled(loss=own_loss).fit(X, Y.astype("float32"), verbose=0)


def split_of_a_data_set() -> None:
    compiled().fit(unbatched().batch(4), validation_split=0.5, verbose=0)  # here: split_of_a_data_set


def words_for_numbers() -> None:
    compiled().fit(X.astype(str), Y, verbose=0)  # here: words_for_numbers


def label_out_of_range() -> None:
    compiled().fit(X, Y + 1, batch_size=8, verbose=0)  # here: label_out_of_range


def no_such_file() -> None:
    records = tf.data.TFRecordDataset("nowhere.tfrecord").map(lambda _: (X[0], Y[0])).repeat().batch(4)
    compiled().fit(records, steps_per_epoch=1, verbose=0)  # here: no_such_file


def error_in_a_map() -> None:
    data = unbatched().map(lambda x, y: (x, tf.numpy_function(parse, [y], tf.int64)))
    data = data.map(lambda x, y: (x, tf.ensure_shape(y, []))).repeat().batch(4)
    compiled().fit(data, steps_per_epoch=1, verbose=0)


MISTAKES: list[Callable[[], None]] = [
    not_compiled,
    too_few_labels,
    features_of_another_model,
    not_batched,
    labels_one_hot,
    loss_that_is_none,
    metric_that_is_none,
    typo_in_a_layer,
    own_loss_of_a_wrong_axis,
    split_of_a_data_set,
    words_for_numbers,
]

if __name__ == "__main__":
    fatal = os.environ.get("FATAL")
    if fatal:
        globals()[fatal]()
    for mistake in MISTAKES:
        try:
            mistake()
        except Exception as error:  # noqa: BLE001 - whatever Keras raises
            print("report", json.dumps([mistake.__name__, describe(error, error.__traceback__)]))
    sys.stdout.flush()
    os._exit(0)
