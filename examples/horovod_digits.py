"""A Horovod script: the ring comes from the job, checkpoints are the script's own.

It needs Horovod 0.28.1 and TensorFlow 2.12 (`horovod.Dockerfile`). Started again, it goes on after its last
complete epoch, also with another number of workers.
"""

import os
from pathlib import Path

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow.functions import allgather_object, broadcast_object
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from trainjob_trainer import report

CHECKPOINTS = Path(os.environ.get("TRAINJOB_OUTPUT_DIR", "output")) / "horovod"
EPOCHS = int(os.environ.get("EPOCHS", "20"))
BATCH = 32
"""Examples a step of each worker."""


def build_model() -> tf.keras.Model:
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(1e-3 * hvd.size()))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return model


def find_checkpoint() -> tuple[int, Path | None]:
    """Return the epochs done and the last checkpoint; rank 0 decides for all ranks."""
    files = sorted(CHECKPOINTS.glob("epoch-*.h5")) if hvd.rank() == 0 else []
    done = int(files[-1].stem.removeprefix("epoch-")) if files else 0
    return broadcast_object(done, 0), files[-1] if files else None


class SaveAndReport(tf.keras.callbacks.Callback):
    """Saves each epoch on rank 0, whole or not at all, and reports steps on each rank."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.epoch = steps, 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:  # noqa: ARG002, D102
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:  # noqa: D102
        step = self.epoch * self.steps + batch + 1
        report(
            step,
            total_steps=EPOCHS * self.steps,
            epoch=self.epoch + 1,
            total_epochs=EPOCHS,
            loss=logs["loss"],
        )

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:  # noqa: ARG002, D102
        if hvd.rank() == 0:
            CHECKPOINTS.mkdir(parents=True, exist_ok=True)
            unfinished = CHECKPOINTS / "unfinished.h5"
            self.model.save_weights(unfinished)
            unfinished.rename(CHECKPOINTS / f"epoch-{epoch + 1:04d}.h5")
        done = (epoch + 1) * self.steps
        report(done, checkpoint_step=done)


def main() -> None:
    hvd.init()
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16.0
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=0
    )
    # All ranks take the same number of steps: Horovod's operations wait for each rank.
    steps = len(x_train) // (BATCH * hvd.size())
    mine = slice(hvd.rank(), steps * BATCH * hvd.size(), hvd.size())

    model = build_model()
    epochs_done, checkpoint = find_checkpoint()
    if checkpoint is not None:
        model.load_weights(checkpoint)
    print(f"rank {hvd.rank()} of {hvd.size()} starts after epoch {epochs_done}", flush=True)
    model.fit(
        x_train[mine],
        y_train[mine],
        batch_size=BATCH,
        epochs=EPOCHS,
        initial_epoch=epochs_done,
        verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            SaveAndReport(steps),
        ],
    )
    weights = allgather_object(np.concatenate([value.ravel() for value in model.get_weights()]))
    print(f"weights equal on {hvd.size()} ranks: {all(np.array_equal(weights[0], w) for w in weights)}")
    print(f"held-out accuracy: {model.evaluate(x_test, y_test, verbose=0)[1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
