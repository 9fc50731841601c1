"""A script that trains, and then ends with things that only an ordinary end of a process takes care of.

WAY is how it trains. LAST is the index of the worker that goes on when the other one's script is through: it
reads a FIFO that the other one closes there. CODE is what worker 0 passes to `sys.exit`, and
to `exit` with WAY=fit.
"""

import atexit
import contextlib
import json
import os
import sys
import threading
from pathlib import Path

import keras
import tensorflow as tf
from tensorflow.python.eager import context

import trainjob_trainer

INDEX = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
SEEN = Path(os.environ["SEEN"]) / str(INDEX)
SEEN.mkdir(parents=True)
LAST = int(os.environ.get("LAST", "-1"))
if LAST >= 0:
    held = os.open(os.environ["FIFO"], os.O_RDONLY if INDEX == LAST else os.O_WRONLY)


def model():
    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    net.compile("adam", "mse")
    return net


def examples():
    return tf.data.Dataset.from_tensors((tf.ones(4), tf.ones(1))).repeat(32)


def fit():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        net = model()
    net.fit(examples().batch(8), epochs=1, verbose=0)


def library():
    trainjob_trainer.train_and_evaluate(model, examples, examples, epochs=1, global_batch=8, export=False)


def loop():
    run = trainjob_trainer.init()
    with run.strategy.scope():
        count = tf.Variable(0.0)
    run.track(count=count)
    for _ in run.steps(2):
        run.strategy.reduce("SUM", run.strategy.run(lambda: count.assign_add(1.0)), axis=None)


def write_when_main_has_ended():
    threading.main_thread().join()
    (SEEN / "thread").write_text("written")


{"fit": fit, "library": library, "loop": loop}[os.environ["WAY"]]()
if INDEX == LAST:
    assert os.read(held, 1) == b""
if INDEX == LAST == 0:  # by TensorFlow's default the service would have said that the other one crashed
    with contextlib.suppress(tf.errors.OpError):
        context.context().wait_at_barrier("nobody else comes", timeout_in_ms=15_000)
atexit.register(lambda: (SEEN / "atexit").write_text("written"))
threading.Thread(target=write_when_main_has_ended).start()
unclosed = (SEEN / "unclosed").open("w")
unclosed.write("written")
writer = tf.summary.create_file_writer(str(SEEN / "events"))
with writer.as_default():
    tf.summary.scalar("loss", 1.0, step=1)
sys.stdout = open(1, "w", buffering=1 << 16, closefd=False)  # noqa: SIM115 - as it is without a terminal
print("the last line")
if 0 <= LAST != INDEX:
    os.close(held)
if INDEX == 0 and "CODE" in os.environ:
    leave = exit if os.environ["WAY"] == "fit" else sys.exit
    leave(int(os.environ["CODE"]))
