"""Trains on data whose length nobody knows beforehand. DIE=5 kills it after that step's checkpoint."""

import json
import os
import signal

import keras
import numpy as np
import tensorflow as tf

from trainjob_trainer.session import current_session


class Dying(keras.callbacks.Callback):
    """At the next thing that Keras tells it, which is the epoch's end after its last batch."""

    def on_train_batch_begin(self, batch, logs=None):  # noqa: ARG002 - Keras names it
        self._die()

    def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
        self._die()

    def _die(self):
        session = current_session()
        if str(session.step) == os.environ.get("DIE"):
            session.call.record.writer.settle()
            os.kill(os.getpid(), signal.SIGKILL)


keras.utils.set_random_seed(3)
x = np.random.default_rng(0).normal(size=(30, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")
with tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")])
    steps = int(os.environ.get("STEPS_PER_EXECUTION", "1"))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"], steps_per_execution=steps)
data = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: True).batch(4)
history = model.fit(data, epochs=2, verbose=0, callbacks=[Dying()])
weights = [float(np.abs(one).sum()) for one in model.get_weights()]
print("ended", json.dumps({**history.history, "weights": weights}), flush=True)
