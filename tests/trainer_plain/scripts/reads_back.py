"""Each worker reads back what it has saved, by Keras's readers and by any other."""

import csv
import json
import os
import subprocess
import sys
import zipfile

import keras
import numpy as np
import tensorflow as tf

OUT = os.environ["TRAINJOB_OUTPUT_DIR"]
RANK = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
x = np.arange(32, dtype="float32").reshape(16, 2) / 32
strategy = tf.distribute.MultiWorkerMirroredStrategy()


def net():
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def total(variables):
    return round(float(sum(np.abs(np.asarray(one)).sum() for one in variables)), 5)


model = net()
# A folder that all share, one of a worker's own in it, and a path that is another place on each "disk".
for name, folder in [("shared", OUT)] * 2 + [("own", f"{OUT}/w{RANK}")] + [("apart", "here")] * 2:
    seen = []

    class Rows(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
            with open(f"{folder}/log.csv") as file:  # noqa: B023, PTH123
                seen.append(len(file.readlines()))  # noqa: B023

    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    callbacks = [
        keras.callbacks.CSVLogger(f"{folder}/log.csv"),
        Rows(),
        keras.callbacks.ModelCheckpoint(folder + "/each/{epoch}.keras"),
        keras.callbacks.BackupAndRestore(f"{folder}/backup"),
    ]
    model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
    now = total(model.get_weights())
    model.save(f"{folder}/m.keras")
    model.save_weights(f"{folder}/m.weights.h5")
    model.export(f"{folder}/export", verbose=False)
    again = net()
    again.load_weights(f"{folder}/m.weights.h5")
    with open(f"{folder}/log.csv") as file:  # noqa: PTH123
        rows = len(list(csv.reader(file)))
    size = [sys.executable, "-c", f"import os; print(os.path.getsize('{folder}/m.keras') > 0)"]
    found = [
        total(keras.models.load_model(f"{folder}/m.keras").get_weights()) == now,
        total(keras.models.load_model(f"{folder}/each/2.keras").get_weights()) == now,
        total(again.get_weights()) == now,
        total(one.numpy() for one in tf.saved_model.load(f"{folder}/export").variables) == now,
        "config.json" in zipfile.ZipFile(f"{folder}/each/1.keras").namelist(),
        subprocess.run(size, capture_output=True, text=True, check=True).stdout == "True\n",
        (rows, seen) == (3, [2, 3]),
    ]
    print("read", name, "as saved" if all(found) else found, flush=True)
