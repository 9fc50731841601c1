"""An ordinary script with two models: one with odd sizes and many callbacks, one with full batches.

What a test needs to see goes to the file `seen.json` and `weights.npz` in $SEEN, one folder a process.
"""

import json
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

TASK = json.loads(os.environ["TF_CONFIG"])["task"]
SEEN = Path(os.environ["SEEN"]) / f"{TASK['type']}-{TASK['index']}"
CRASH = os.environ.get("CRASH") == f"{TASK['type']}-{TASK['index']}"
BATCH = 32


class Crash(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
        if CRASH and epoch == 1:
            raise ValueError("the second epoch is unlucky")


def build_model(*layers, rate="0.01"):
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])
    model.compile(
        keras.optimizers.Adam(float(rate)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


strategy = tf.distribute.MultiWorkerMirroredStrategy()
random = np.random.default_rng(5)
x = random.normal(size=(268, 6)).astype("float32")
y = (x[:, 0] + x[:, 1] > 0).astype("int64") + (x[:, 2] > 1)
x_train, y_train, x_val, y_val = x[:203], y[:203], x[203:], y[203:]

with strategy.scope():
    first = build_model(keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.2))
    second = build_model(keras.layers.Dense(8, activation="tanh"), rate=os.environ.get("RATE", "0.01"))


def fit_first(**arguments):
    held_out = (x_val, y_val)
    return first.fit(x_train, y_train, batch_size=BATCH, validation_data=held_out, verbose=0, **arguments)


first_history = fit_first(
    epochs=3,
    callbacks=[
        keras.callbacks.ModelCheckpoint("best.keras", monitor="val_accuracy", save_best_only=True),
        keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False),
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.TensorBoard("events"),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=9),
    ],
)
between = [float(np.sum(w)) for w in first.get_weights()]
profile = keras.callbacks.TensorBoard("profile", profile_batch=(2, 3))
tuned_history = fit_first(initial_epoch=3, epochs=4, callbacks=[profile])
first.save("first.keras")
loaded = keras.saving.load_model("first.keras")

second.set_weights([np.linspace(-0.5, 0.5, w.size).reshape(w.shape) for w in second.get_weights()])
second_history = second.fit(x[:192], y[:192], batch_size=BATCH, epochs=3, verbose=0, callbacks=[Crash()])

SEEN.mkdir(parents=True, exist_ok=True)
(SEEN / "seen.json").write_text(
    json.dumps(
        {
            "first": first_history.history,
            "between": between,
            "tuned": tuned_history.history,
            "second": second_history.history,
        },
        default=float,
    )
)
np.savez(
    SEEN / "weights.npz",
    first=np.concatenate([w.ravel() for w in first.get_weights()]),
    loaded=np.concatenate([w.ravel() for w in loaded.get_weights()]),
    second=np.concatenate([w.ravel() for w in second.get_weights()]),
)
