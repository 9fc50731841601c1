"""A small training through the library; what goes wrong in it is chosen by arguments."""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--kill-worker-1-after", type=int, help="SIGKILL itself once that step is on disk")
parser.add_argument("--operation-first", action="store_true")
parser.add_argument("--examples", type=int, default=200)
parser.add_argument("--slow-worker-1", type=float, default=0.0, help="seconds that an example takes it")
parser.add_argument("--nan-example", type=int, help="its first number is NaN, and nothing is shuffled")
parser.add_argument("--on-nan", default="stop")
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--checkpoint-every", type=int, default=7, help="steps; an epoch has 7")
parser.add_argument(
    "--flip-bit-after", type=int, help="steps after which one bit of worker 1's weights differs, at first"
)
parser.add_argument("--other-order", action="store_true", help="of worker 1's examples")
arguments = parser.parse_args()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from trainjob_trainer import train_and_evaluate  # noqa: E402
from trainjob_trainer.checkpoint.snapshot import local_components  # noqa: E402
from trainjob_trainer.keras.steps import TracedSteps  # noqa: E402

if arguments.operation_first:
    tf.constant(1) + 1


def examples(count: int, seed: int, rows: slice = slice(None)) -> tf.data.Dataset:
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, 8)).astype("float32")
    labels = (inputs.sum(axis=1) > 0).astype("int32")
    if seed == 0 and arguments.nan_example is not None:
        inputs[arguments.nan_example, 0] = np.nan
    return tf.data.Dataset.from_tensor_slices((inputs[rows], labels[rows]))


def wait(inputs: np.ndarray) -> np.ndarray:
    time.sleep(arguments.slow_worker_1)
    return inputs


def slow_examples() -> tf.data.Dataset:
    def slow(inputs: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.ensure_shape(tf.numpy_function(wait, [inputs], tf.float32), inputs.shape), label

    return examples(arguments.examples, seed=0).map(slow)


def model() -> keras.Model:
    layers = keras.layers
    meets = not arguments.slow_worker_1 and arguments.nan_example is None
    net = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, activation="relu", name="hidden"),
            # In the forward pass it meets the other workers: it waits for the slow one, and carries NaN on.
            *[layers.BatchNormalization(synchronized=True, name="norm")] * meets,
            layers.Dropout(arguments.dropout, name="dropout"),
            layers.Dense(2, name="logits"),
        ]
    )
    rate = keras.optimizers.schedules.CosineDecay(0.01, 100)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.Adam(rate), loss=loss, metrics=["accuracy"])
    return net


def kill_when_saved(step: int) -> None:
    folder = Path(os.environ["TRAINJOB_CHECKPOINT_DIR"]) / f"step-{step:08d}"
    while not folder.exists():
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)


is_worker_1 = json.loads(os.environ["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}
if arguments.kill_worker_1_after and is_worker_1:
    step_to_die_at = arguments.kill_worker_1_after
    threading.Thread(target=kill_when_saved, args=(step_to_die_at,), daemon=True).start()


def flip_bit_after(step: int) -> None:
    original, done = TracedSteps.take, 0

    def take(self: TracedSteps, batches: Any) -> dict[str, Any]:
        nonlocal done
        logs = original(self, batches)
        if not self._trains:
            return logs
        if done < step <= done + batches.count:
            (kernel,) = local_components(self._model.weights[0])
            value = kernel.numpy()
            value.view("int32").flat[5] ^= 1
            kernel.assign(value)
        done += batches.count
        return logs

    TracedSteps.take = take  # type: ignore[method-assign]


if arguments.flip_bit_after and is_worker_1 and os.environ["TRAINJOB_ATTEMPT"] == "1":
    flip_bit_after(arguments.flip_bit_after)


def train() -> tf.data.Dataset:
    if is_worker_1 and arguments.slow_worker_1:
        return slow_examples()
    step = -1 if is_worker_1 and arguments.other_order else 1
    return examples(arguments.examples, 0, slice(None, None, step))


# 200 examples in batches of 32 leave a rest, and 103 held-out ones a smaller last batch.
train_and_evaluate(
    model,
    train,
    lambda: examples(103, seed=1),
    epochs=arguments.epochs,
    global_batch=arguments.batch,
    checkpoint_every=arguments.checkpoint_every,
    # A buffer takes its time once an epoch, not at each step.
    shuffle=not arguments.slow_worker_1 and arguments.nan_example is None,
    on_nan=arguments.on_nan,
    export=False,  # it takes longer than these trainings
)
