"""A script with processes of its own: one that trains in each epoch, and others that make its batches."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf

HELPER = """
import os, keras, numpy as np, tensorflow as tf
steps = [name for name in os.listdir(os.environ["TRAINJOB_CHECKPOINT_DIR"]) if name.startswith("step-")]
with tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="helpers")])
    model.compile("sgd", "mse")
model.fit(np.zeros((8, 2)), np.zeros((8, 1)), epochs=2, verbose=0)
model.save("helpers.keras")
print(os.path.getsize("helpers.keras") > 0, sorted(steps)[-1] if steps else "none", flush=True)
raise SystemExit(3)
"""


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.full((8, 2), index, "float32"), np.full((8, 1), index, "float32")


class Asks(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
        ended = subprocess.run([sys.executable, "-c", HELPER], capture_output=True, text=True, check=False)
        told = ended.stderr.count("is not part of the job")
        print("helper", ended.returncode, ended.stdout.split(), told, flush=True)


if __name__ == "__main__":
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    history = model.fit(
        Batches(workers=2, use_multiprocessing=True), epochs=2, verbose=0, callbacks=[Asks()] if rank else []
    )
    print("trained", len(history.history["loss"]))
