"""A small custom loop that can be told to crash: `CRASH=worker-1:30:1` means in attempt 1, after step 30."""

from __future__ import annotations

import os
import time
from pathlib import Path

import keras
import tensorflow as tf

import trainjob_trainer

TOTAL_STEPS = int(os.environ.get("STEPS", "60"))
CHECKPOINT_EVERY = 20

run = trainjob_trainer.init()
with run.strategy.scope():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    optimizer = keras.optimizers.SGD(0.01)
run.track(model=model, optimizer=optimizer)


@tf.function
def train_step() -> tf.Tensor:
    def one_replica() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.ones((4, 8))) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return run.strategy.reduce("MEAN", run.strategy.run(one_replica), axis=None)


def crash_if_told(step: int) -> None:
    replica, at, last_attempt = os.environ.get("CRASH", "nobody:0:0").split(":")
    told = replica == f"{run.role}-{run.index}" and step == int(at)
    if told and int(os.environ["TRAINJOB_ATTEMPT"]) <= int(last_attempt):
        while not list(Path(os.environ["TRAINJOB_CHECKPOINT_DIR"]).glob("step-*")):
            time.sleep(0.01)  # checkpoints are written in the background
        raise ValueError("told to crash")


if run.is_evaluator:
    run.each_checkpoint(lambda _step: {"norm": float(tf.norm(model.weights[0].value))})
else:
    for step in run.steps(TOTAL_STEPS, checkpoint_every=CHECKPOINT_EVERY):
        run.report(loss=train_step())
        if step == 100 and run.index == 0:
            print("a hundred steps are done", flush=True)
        crash_if_told(step)
