"""One contestant of the step-time benchmark: trains a model, and worker 0 prints how long a step took.

    python steps.py CONTESTANT MODEL EPOCH_STEPS CHECKPOINT_EVERY [GLOBAL_BATCH]

Every worker runs it, with TF_CONFIG. Whatever a contestant needs before its steps are even (imports, tracing,
the choice of a pace) is not counted.
"""

# ruff: noqa: PLC0415 - each contestant imports what it needs, and no more
from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from calls import after_each_call

CONTESTANT, MODEL = sys.argv[1:3]
EPOCH_STEPS, CHECKPOINT_EVERY = (int(argument) for argument in sys.argv[3:5])
GLOBAL_BATCH = int(sys.argv[5]) if len(sys.argv) > 5 else 64
STEPS_A_CALL = 20
SIZES = {
    "small": (8, 1, (32, 32), 64),
    "large": (32, 3, (64, 128, 128), 256),  # 34 MB, with Adam's two moments 102
    "huge": (32, 3, (64, 128, 128), 3072),  # 404 MB, with them 1,212
}
SIZE, CHANNELS, FILTERS, UNITS = SIZES.get(MODEL, SIZES["small"])
WARM, TIMED = {"large": (4, 12), "huge": (2, 6)}.get(MODEL, (280, 840))
EXAMPLES = 1024
WORDS, LENGTH, WIDTH = 20_000, 64, 64
"""Of `embedding`: 5 MB, of which a step touches some rows."""
COMPARED: list[float] = []
"""Seconds that comparisons of the workers' weights took."""


def main() -> None:
    """Run the contestant; print {"step_ms": ..., "loss": ...}."""
    seconds, loss = CONTESTANTS[CONTESTANT]()
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
        found = {"step_ms": round(1000 * seconds, 3), "loss": round(float(loss), 3)}
        if len(COMPARED) > 1:  # the first one traces
            found["compare_ms"] = round(1000 * statistics.median(COMPARED[1:]), 3)
        print(json.dumps(found), flush=True)
    os._exit(0)  # a peer may be gone: the runtime's end would wait for it


def build(keras: Any) -> Any:
    """Return the compiled model, of Keras or of tf_keras."""
    layers = keras.layers
    if MODEL == "embedding":
        stack = [layers.Input((LENGTH,), dtype="int32"), layers.Embedding(WORDS, WIDTH)]
        stack += [layers.GlobalAveragePooling1D(), layers.Dense(UNITS, activation="relu")]
    else:
        stack = [layers.Input((SIZE, SIZE, CHANNELS))]
        stack += [layers.Conv2D(filters, 3, padding="same", activation="relu") for filters in FILTERS]
        stack += [layers.MaxPooling2D(), layers.Flatten(), layers.Dense(UNITS, activation="relu")]
    net = keras.Sequential([*stack, layers.Dense(10)])
    if MODEL == "own_step":
        net = with_own_step(keras)(net.inputs, net.outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    more = {"steps_per_execution": STEPS_A_CALL} if CONTESTANT.endswith("_20") else {}
    net.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss, metrics=["accuracy"], **more)
    return net


def with_own_step(keras: Any) -> Any:
    """Return a class of models that train as Keras's guide shows it, with a `train_step` of their own."""
    import tensorflow as tf

    class OwnStep(keras.Model):  # type: ignore[misc,name-defined,unused-ignore]
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            for metric in self.metrics:
                metric.update_state(*((loss,) if metric.name == "loss" else (y, y_pred)))
            return {metric.name: metric.result() for metric in self.metrics}

    return OwnStep


def examples() -> Any:
    """Return single examples, the same ones everywhere."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(1)
    if MODEL == "embedding":
        texts = random.integers(0, WORDS, (EXAMPLES, LENGTH), dtype=np.int32)
        return tf.data.Dataset.from_tensor_slices((texts, texts[:, 0] % 10))
    images = random.random((EXAMPLES, SIZE, SIZE, CHANNELS), dtype=np.float32)
    labels = (images.mean(axis=(1, 2, 3)) * 4000 % 10).astype("int32")
    return tf.data.Dataset.from_tensor_slices((images, labels))


def global_batches() -> Any:
    """Return endless global batches."""
    return examples().repeat().batch(GLOBAL_BATCH, drop_remainder=True)


def by_hand(steps_a_call: int) -> tuple[float, float]:
    """The loop as a person who knows TensorFlow writes it: no metrics, callbacks, reports or checkpoints.

    With epochs it reads its data from the beginning in each.
    """
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    with strategy.scope():
        model = build(keras)
        model.optimizer.build(model.trainable_variables)
        compute = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    steps = EPOCH_STEPS or WARM + TIMED
    data = strategy.experimental_distribute_dataset(global_batches().take(steps).with_options(options))

    def one_step(batch: Any) -> Any:
        images, labels = batch
        with tf.GradientTape() as tape:
            loss = compute(labels, model(images, training=True)) / GLOBAL_BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def call(iterator: Any, count: Any) -> Any:
        for _ in tf.range(count - 1):
            strategy.run(one_step, args=(next(iterator),))
        return strategy.run(one_step, args=(next(iterator),))

    done, began, begun = 0, 0.0, 0
    while done < WARM + TIMED:
        iterator, until = iter(data), done + steps
        while done < until:
            if done >= WARM and not begun:
                began, begun = time.perf_counter(), done
            count = min(steps_a_call, until - done)
            loss = call(iterator, tf.constant(count))
            done += count
    local = strategy.experimental_local_results(loss)[0].numpy()
    return (time.perf_counter() - began) / (done - begun), local


def library() -> tuple[float, float]:
    """`train_and_evaluate`, with metrics, reports and checkpoints."""
    import keras

    from trainjob_trainer import train_and_evaluate

    moments: list[tuple[int, float]] = []
    after_each_call(lambda step: moments.append((step, time.perf_counter())))
    time_comparisons()

    result = train_and_evaluate(
        lambda: build(keras),
        examples().repeat(),
        epochs=(WARM + TIMED) // EPOCH_STEPS if EPOCH_STEPS else 1,
        steps_per_epoch=EPOCH_STEPS or WARM + TIMED,
        global_batch=GLOBAL_BATCH,
        checkpoint_every=min(CHECKPOINT_EVERY, TIMED // 3) or None,
        shuffle=False,
        verbose=0,
    )
    timed = [moment for moment in moments if moment[0] >= WARM]
    seconds = (timed[-1][1] - timed[0][1]) / (timed[-1][0] - timed[0][0])
    return seconds, result.metrics.get("loss", 0.0)


def time_comparisons() -> None:
    """Take the time of every comparison, the wait for the other workers included."""
    from trainjob_trainer.distribution.divergence import WeightsWatch

    compare = WeightsWatch.compare

    def timed(self: Any, *arguments: Any) -> None:
        began = time.perf_counter()
        compare(self, *arguments)
        COMPARED.append(time.perf_counter() - began)

    WeightsWatch.compare = timed  # type: ignore[method-assign]


def fit(name: str) -> tuple[float, float]:
    """`model.fit` as users call it; under the project's agent the script is the same."""
    import importlib

    import tensorflow as tf

    keras = importlib.import_module(name)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = build(keras)
    ends: list[float] = []
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: ends.append(time.perf_counter()))]
    if CONTESTANT == "fit_each_batch":
        callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: None))
    data = global_batches()
    steps = EPOCH_STEPS or WARM
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    history = model.fit(
        data.take(steps).with_options(options) if EPOCH_STEPS else data.with_options(options),
        epochs=(WARM + TIMED) // steps,
        steps_per_epoch=None if EPOCH_STEPS else steps,
        verbose=0,
        callbacks=callbacks,
    )
    first = WARM // steps - 1
    seconds = (ends[-1] - ends[first]) / ((len(ends) - 1 - first) * steps)
    return seconds, history.history["loss"][-1]


CONTESTANTS: dict[str, Callable[[], tuple[float, float]]] = {
    "hand": lambda: by_hand(1),
    "hand_20": lambda: by_hand(2 if MODEL in ("large", "huge") else STEPS_A_CALL),
    "library": library,
    "fit": lambda: fit("keras"),
    "fit_each_batch": lambda: fit("keras"),
    "tf_keras": lambda: fit("tf_keras"),
    "tf_keras_20": lambda: fit("tf_keras"),
}

if __name__ == "__main__":
    main()
