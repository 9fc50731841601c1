"""What the rows of the table of patches mend, each as a fact of this process. At its end it fails."""

import gc
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import keras
import keras.src.backend.tensorflow.trainer as keras_trainer
import numpy as np
import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator
from tensorflow.python.data.ops.multi_device_iterator_ops import OwnedMultiDeviceIterator

SEEN = Path(os.environ["SEEN"])
TASK = json.loads(os.environ["TF_CONFIG"])["task"]


def slow_first(number):
    time.sleep(0.5 if number == 0 else 0.0)
    return number


def minus_mean(_, y_pred):
    return -y_pred[:, 0]


def is_error(function):
    try:
        function()
    except Exception as error:  # noqa: BLE001 - that there is one is what the test asks
        print(repr(error)[:600])
        return True
    return False


def keeps_its_dataset():
    """Return whether an iterator keeps the dataset that it has made for itself."""
    dataset, made = tf.data.Dataset.range(3), []

    def with_options(options):
        one = tf.data.Dataset.with_options(dataset, options)
        made.append(weakref.ref(one))
        return one

    dataset.with_options = with_options
    iterator = OwnedMultiDeviceIterator(dataset, devices=["/cpu:0"])
    gc.collect()
    return made[-1]() is not None and next(iterator) is not None


def has_one_random_state():
    here, found = global_seed_generator().state, []
    thread = threading.Thread(target=lambda: found.append(global_seed_generator().state))
    thread.start()
    thread.join()
    return found[0] is here


def left_by_the_others(path):
    """Save, worker 1 after worker 0; return whether the file is then the one that worker 0 has saved."""
    is_saved = path.with_suffix(".saved")
    while TASK["index"] == 1 and not is_saved.exists():
        time.sleep(0.1)
    before = path.stat() if TASK["index"] == 1 else None
    model.save_weights(path)
    is_saved.touch()
    after = path.stat()
    return before is None or (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def refuses(code, **env):
    """Return whether a process of the job that runs this code ends with the trainer's sentence."""
    env = {**os.environ, "TRAINJOB_PROGRESS_FILE": str(SEEN / f"other-{os.getpid()}.json"), **env}
    del env["TRAINJOB_PID"]  # else it is the script's own
    ended = subprocess.run([sys.executable, "-c", code], env=env, check=False, capture_output=True, text=True)
    return "InvalidConfiguration" in ended.stderr


horovod = SEEN / f"packages-{TASK['index']}" / "horovod" / "common"
horovod.mkdir(parents=True)
(horovod / "basics.py").write_text("class HorovodBasics:\n    def init(self):\n        pass\n")

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(keras.optimizers.SGD(1.0), loss=minus_mean)
rows = np.array([[1.0], [2.0], [6.0]], "float32")
numbers = tf.data.Dataset.range(8).map(
    lambda one: tf.numpy_function(slow_first, [one], tf.int64), num_parallel_calls=4, deterministic=False
)
ordered = [int(one) for one in numbers]
fails = is_error(lambda: model.fit(rows, rows, batch_size=3, verbose=0))
facts = {
    "refusals": refuses("import keras", KERAS_BACKEND="numpy"),
    "strategy": strategy.num_replicas_in_sync == 2,
    "numbers": not is_error(lambda: float(model.optimizer.learning_rate)),
    "iterators": keeps_its_dataset(),
    "order": ordered == list(range(8)),
    "reduce": not is_error(
        lambda: keras_trainer.reduce_per_replica(strategy.run(lambda: tf.constant(2.0)), strategy, "auto")
    ),
    "losses": abs(float(model.get_weights()[0].item()) - 3.0) < 1e-5,
    "fit": not fails,
    "random": has_one_random_state(),
    "saving": left_by_the_others(SEEN / "shared.weights.h5"),
    "horovod": refuses(
        "import horovod.common.basics as one; one.HorovodBasics().init()",
        PYTHONPATH=f"{os.environ['PYTHONPATH']}:{horovod.parents[1]}",
    ),
}
(SEEN / f"{TASK['type']}-{TASK['index']}.json").write_text(json.dumps(facts))
raise ValueError("the end")
