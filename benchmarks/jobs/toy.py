"""A small training that says, in files of $STAMPS, which process it is and how far it has come.

An evaluator, which can't write there, says it in its own output folder.

Its examples follow from their number alone and take $SECONDS_AN_EXAMPLE each, so that it lasts as long on a
fast machine as on a slow one. They are stamped after each call of many steps.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

STARTED = time.time()
TASK = json.loads(os.environ["TF_CONFIG"])["task"]
IS_EVALUATOR = TASK["type"] == "evaluator"
FOLDER = Path(os.environ["TRAINJOB_OUTPUT_DIR" if IS_EVALUATOR else "STAMPS"])
STAMP = FOLDER / f"{TASK['type']}-{TASK['index']}.json"
EARLIER: dict[str, Any] = {}
with contextlib.suppress(OSError if IS_EVALUATOR else FileNotFoundError):  # its disk may be a faulty one
    FOLDER.mkdir(parents=True, exist_ok=True)
    EARLIER = json.loads(STAMP.read_text())
FACTS: dict[str, Any] = {
    "pid": os.getpid(),
    "attempt": int(os.environ["TRAINJOB_ATTEMPT"]),
    "began": STARTED,
    "reached": EARLIER.get("step", EARLIER.get("reached", 0)),
}
BATCH, INPUTS = 16, 8


def stamp(**facts: Any) -> None:
    """Say it where the benchmark looks."""
    FACTS.update(facts)
    temporary = STAMP.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(*([OSError] if IS_EVALUATOR else [])):
        temporary.write_text(json.dumps(FACTS))
        temporary.replace(STAMP)


stamp()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from trainjob_trainer import train_and_evaluate  # noqa: E402
from trainjob_trainer.keras.data import Batches  # noqa: E402
from trainjob_trainer.keras.steps import TracedSteps  # noqa: E402
from trainjob_trainer.session import current_session  # noqa: E402

stamp(imported=time.time())
take = TracedSteps.take


def take_and_stamp(self: TracedSteps, batches: Batches) -> Any:
    """Steps have been taken."""
    results = take(self, batches)
    stamp(first_step=FACTS.get("first_step") or time.time(), step=current_session().step + batches.count)
    return results


TracedSteps.take = take_and_stamp  # type: ignore[method-assign]


class Begin(keras.callbacks.Callback):
    """Training begins, at a checkpoint perhaps."""

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras."""
        stamp(resumed=current_session().step)


def example(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Make the example of a number."""
    inputs = tf.random.stateless_normal([INPUTS], [7, number])
    return inputs, tf.cast(tf.reduce_sum(inputs) > 0, tf.int32)


def wait(number: Any) -> Any:
    """Take as long as reading an example would."""
    time.sleep(float(os.environ["SECONDS_AN_EXAMPLE"]))
    return number


def train() -> tf.data.Dataset:
    """Return examples that are read again and again: after a restart, only a part of a short pass is read."""
    paced = tf.data.Dataset.range(7 * BATCH).map(
        lambda number: tf.ensure_shape(tf.numpy_function(wait, [number], tf.int64), [])
    )
    return paced.map(example)


def heldout() -> tf.data.Dataset:
    """Return examples that training comes to much later."""
    return tf.data.Dataset.range(1000, 1100).map(example)


def model() -> keras.Model:
    """Return a small network; with $FULL one that has statistics, dropout and a schedule as well."""
    layers, is_full = keras.layers, bool(int(os.environ["FULL"]))
    net = keras.Sequential([keras.Input((INPUTS,)), layers.Dense(16, activation="relu")])
    if is_full:
        net.add(layers.BatchNormalization(synchronized=True))
        net.add(layers.Dropout(0.3))
    net.add(layers.Dense(2))
    rate = keras.optimizers.schedules.CosineDecay(0.01, int(os.environ["STEPS"])) if is_full else 0.01
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.Adam(rate), loss=loss, metrics=["accuracy"])
    return net


train_and_evaluate(
    model,
    train,
    heldout,
    callbacks=[Begin()],
    steps_per_epoch=int(os.environ["STEPS"]),
    global_batch=BATCH,
    shuffle=False,
    checkpoint_every=int(os.environ["CHECKPOINT_EVERY"]),
    export=False,
    verbose=0,
)
