"""A function that two workers train, as a notebook or a program has it: `python from_python.py`."""

import os

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

from trainjob import Trainer


def train(epochs: int, units: int = 64) -> dict[str, float]:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    images, labels = load_digits(return_X_y=True)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((64,)),
                keras.layers.Rescaling(1 / 16),
                keras.layers.Dense(units, "relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    history = model.fit(images, labels, batch_size=64, epochs=epochs, verbose=2)
    model.save(os.environ["TRAINJOB_OUTPUT_DIR"] + "/model.keras")
    return {"accuracy": history.history["accuracy"][-1]}


if __name__ == "__main__":
    job = Trainer(train, kwargs={"epochs": 10}, workers=2, evaluator=False).run()
    print(job.metrics, job.result())
