"""One worker of the start-up benchmark: worker 0 prints how long it took to import, and to the first step.

It ends as a script does, and not at once: how long that takes is measured too.

    python startup.py library|hand VARIABLES

Every worker runs it, with TF_CONFIG.
"""

# ruff: noqa: PLC0415 - imports are what is timed
from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from calls import after_each_call

WAY, VARIABLES = sys.argv[1], int(sys.argv[2])
STEPS, GLOBAL_BATCH, UNITS = 10, 64, 32


def main() -> None:
    """Train; print {"import_seconds": ..., "to_first_step_seconds": ..., "last_step_at": ...}.

    The second is counted from the imports, the third on the monotonic clock, which all processes share.
    """
    import keras  # noqa: F401
    import tensorflow as tf  # noqa: F401

    if WAY == "library":
        import trainjob_trainer  # noqa: F401
    imported = age()
    stepped, last_step_at = {"library": library, "hand": by_hand}[WAY]()
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
        took = {
            "import_seconds": round(imported, 2),
            "to_first_step_seconds": round(stepped - imported, 2),
            "last_step_at": last_step_at,
        }
        print(json.dumps(took), flush=True)


def library() -> tuple[float, float]:
    """Return this process's age after its first step, and when its last one ended."""
    from trainjob_trainer import train_and_evaluate

    stepped: list[tuple[float, float]] = []
    after_each_call(lambda _: stepped.append((age(), time.monotonic())))
    train_and_evaluate(model, examples, steps_per_epoch=STEPS, global_batch=GLOBAL_BATCH, export=False)
    return stepped[0][0], stepped[-1][1]


def by_hand() -> tuple[float, float]:
    """The same with a loop that a person would write, twenty steps a call; the first call takes one."""
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        net = model()
        net.optimizer.build(net.trainable_variables)
    data = examples().repeat().batch(GLOBAL_BATCH, drop_remainder=True)
    iterator = iter(strategy.experimental_distribute_dataset(data))

    def one_step(batch: Any) -> Any:
        inputs, targets = batch
        with tf.GradientTape() as tape:
            loss = keras.losses.mean_squared_error(targets, net(inputs, training=True))
            loss = tf.reduce_sum(loss) / GLOBAL_BATCH
        gradients = tape.gradient(loss, net.trainable_variables)
        net.optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        return loss

    @tf.function
    def call(iterator: Any, count: Any) -> Any:
        for _ in tf.range(count):
            strategy.run(one_step, args=(next(iterator),))

    call(iterator, tf.constant(1))
    return age(), time.monotonic()


def model() -> Any:
    """Return a compiled model of so many variables, its optimizer's not counted."""
    import keras

    hidden = [keras.layers.Dense(UNITS, activation="relu") for _ in range(VARIABLES // 2 - 1)]
    net = keras.Sequential([keras.Input((UNITS,)), *hidden, keras.layers.Dense(1)])
    net.compile("adam", "mse")
    return net


def examples() -> Any:
    """Return as many as a batch has."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensors((tf.ones(UNITS), tf.ones(1))).repeat(GLOBAL_BATCH)


def age() -> float:
    """Seconds since this process began."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
