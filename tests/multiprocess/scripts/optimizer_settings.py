"""Trains one small model for each of Keras's settings, and leaves weights, optimizer and reports behind.

    python optimizer_settings.py FOLDER '{"two workers": ["adam", ...], ...}'

By what trains: one process, two devices of it, or as many workers as TF_CONFIG says. Each leaves
FOLDER/<who>/<replica>.npz behind.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainjob_trainer import Task
from trainjob_trainer.checkpoint.snapshot import local_components
from trainjob_trainer.distribution.divergence import WeightsWatch
from trainjob_trainer.distribution.strategy import build_strategy
from trainjob_trainer.keras.model import further_groups, variable_groups
from trainjob_trainer.keras.not_finite import OnNan

sys.path.append(str(Path(__file__).parents[2]))

from support.trainer.steps import Steps, build_model

BATCH, STEPS = 8, 10
BAD_STEP = 4
"""From 0; its last example, which is the last replica's, has a target that no one can learn."""

keras.config.disable_traceback_filtering()
layers, optimizers = keras.layers, keras.optimizers
SGD, Adam = optimizers.SGD, optimizers.Adam


class OwnStep(keras.Model):
    """A training step such as Keras's guides show."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)
        self.optimizer.apply(tape.gradient(scaled, self.trainable_variables), self.trainable_variables)
        self._loss_tracker.update_state(loss)
        return self.get_metrics_result()


@dataclass(frozen=True)
class Case:
    optimizer: Callable[[], Any]
    bad: float = 0.0
    """What the bad step's last target is; 0 for none."""
    on_nan: OnNan = OnNan.STOP
    kind: type[keras.Model] = keras.Model
    dtype: str = "float32"
    compiled: bool = False
    embedding: bool = False
    normed: bool = False
    own_state: bool = False


class Jitter(layers.Layer):
    """A layer with a random state and a moving mean of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.random = keras.random.SeedGenerator(3)
        self.mean = self.add_weight(shape=(4,), trainable=False, name="mean")

    def call(self, inputs: Any) -> Any:
        self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(inputs, axis=0))
        return inputs + 0.01 * keras.random.normal(keras.ops.shape(inputs), seed=self.random)


CASES = {
    "adam": Case(lambda: Adam(0.01)),
    "clipnorm": Case(lambda: SGD(0.1, clipnorm=0.5)),
    "global clipnorm, embedding": Case(lambda: SGD(0.1, global_clipnorm=0.5), embedding=True),
    "accumulation, clipped": Case(
        lambda: optimizers.AdamW(0.01, gradient_accumulation_steps=2, clipnorm=0.3, use_ema=True)
    ),
    "loss scale": Case(lambda: scaled(SGD(0.1, clipnorm=0.5)), bad=1e36),
    "loss scale, own step": Case(lambda: scaled(SGD(0.1, clipnorm=0.5)), bad=1e36, kind=OwnStep),
    "loss scale, compiled": Case(lambda: scaled(SGD(0.1, clipnorm=0.5)), bad=1e36, compiled=True),
    "float16": Case(lambda: scaled(SGD(0.02)), bad=3e4, dtype="mixed_float16"),
    "bfloat16": Case(lambda: SGD(0.02), dtype="mixed_bfloat16"),
    "compiled": Case(lambda: Adam(0.01), compiled=True),
    "skip": Case(lambda: Adam(0.01), bad=np.nan, on_nan=OnNan.SKIP),
    "skip, normed": Case(lambda: Adam(0.01), bad=np.nan, on_nan=OnNan.SKIP, normed=True, compiled=True),
    "skip, loss scale": Case(lambda: scaled(Adam(0.01)), bad=np.nan, on_nan=OnNan.SKIP),
    "skip, accumulation": Case(
        lambda: Adam(0.01, gradient_accumulation_steps=3), bad=np.inf, on_nan=OnNan.SKIP
    ),
    "stop": Case(lambda: Adam(0.01), bad=np.nan),
    "stop, loss scale": Case(lambda: scaled(Adam(0.01)), bad=np.nan),
    "own state": Case(lambda: Adam(0.01, use_ema=True), embedding=True, normed=True, own_state=True),
    "ignore": Case(lambda: Adam(0.01), bad=np.nan, on_nan=OnNan.IGNORE),
}


def scaled(inner: Any) -> Any:
    return optimizers.LossScaleOptimizer(inner, initial_scale=2.0**10, dynamic_growth_steps=3)


def data(case: Case) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(STEPS * BATCH, 3)).astype("float32")
    targets = inputs.sum(axis=1, keepdims=True) * np.linspace(0.1, 3, len(inputs), dtype="float32")[:, None]
    if case.embedding:
        inputs = random.integers(0, 7, size=inputs.shape).astype("int32")
    if case.bad:
        targets[BAD_STEP * BATCH + BATCH - 1] = case.bad
        if case.normed:  # so that the moving averages would be spoiled too
            inputs[BAD_STEP * BATCH + BATCH - 1] = case.bad
    return inputs, targets


def build(case: Case) -> keras.Model:
    inputs = keras.Input((3,), dtype="int32" if case.embedding else "float32")
    hidden = layers.Flatten()(layers.Embedding(7, 4)(inputs)) if case.embedding else inputs
    hidden = layers.Dense(4, activation="tanh", dtype=case.dtype)(hidden)
    if case.normed:
        hidden = layers.BatchNormalization(momentum=0.5)(hidden)
    if case.own_state:
        hidden = Jitter()(layers.Dropout(0.2)(hidden))
    outputs = layers.Dense(1, dtype=case.dtype)(hidden)
    model = case.kind(inputs, outputs)
    model.compile(case.optimizer(), "mse", metrics=["mae"], auto_scale_loss=False, jit_compile=case.compiled)
    return model


def run(strategy: Any, case: Case) -> dict[str, Any]:
    inputs, targets = data(case)
    local = BATCH // strategy.num_replicas_in_sync
    spec = (tf.TensorSpec([local, 3], inputs.dtype), tf.TensorSpec([local, 1], targets.dtype))
    with strategy.scope():
        model = build_model(lambda: build(case), spec, seed=1)
    steps = Steps(strategy, model, case.on_nan)

    def batches(context: Any) -> Any:
        stream = tf.data.Dataset.from_tensor_slices((inputs, targets)).repeat()
        own = stream.shard(context.num_input_pipelines, context.input_pipeline_id)
        return own.batch(local, drop_remainder=True)

    watch = WeightsWatch(strategy, Task.from_environment(os.environ))
    iterator = iter(strategy.distribute_datasets_from_function(batches))
    found, metrics = [], {}
    for count in (3, STEPS - 3):
        metrics = steps.run(iterator, count)
        found.append(steps.found)
        groups = {**variable_groups(model), **further_groups(model)}
        watch.compare(groups, 3 if len(found) == 1 else STEPS)
    variables = [*model.trainable_variables, *model.optimizer.variables]
    values = [[one.numpy() for one in local_components(variable)] for variable in variables]
    return {
        "weights": np.concatenate([one[0].ravel() for one in values[: len(model.trainable_variables)]]),
        "optimizer": np.concatenate([one[0].ravel() for one in values[len(model.trainable_variables) :]]),
        "alike": all(np.array_equal(one[0], other, equal_nan=True) for one in values for other in one),
        "moving": np.concatenate(
            [local_components(one)[0].numpy().ravel() for one in model.non_trainable_variables] or [[0.0]]
        ),
        "others_finite": all(
            bool(np.isfinite(component.numpy()).all())
            for variable in model.non_trainable_variables
            for component in local_components(variable)
        ),
        "metrics": np.array(list(metrics.values())),
        "skipped": sum(one.skipped for one in found),
        "first": found[1].first if found[1].first else [0],
        "scale": float(local_components(getattr(model.optimizer, "dynamic_scale", tf.Variable(0.0)))[0]),
    }


if __name__ == "__main__":
    folder, wanted = Path(sys.argv[1]), json.loads(sys.argv[2])
    if "two devices" in wanted:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    task = Task.from_environment(os.environ)
    strategies = {
        "one process": tf.distribute.get_strategy,
        "two devices": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
        "two workers": lambda: build_strategy(task),
    }
    for who, names in wanted.items():
        strategy = strategies[who]()
        seen = {name: run(strategy, CASES[name]) for name in names}
        (folder / who).mkdir(parents=True, exist_ok=True)
        np.savez(
            folder / who / f"{task.replica}.npz",
            **{f"{name}/{key}": value for name, result in seen.items() for key, value in result.items()},
        )
