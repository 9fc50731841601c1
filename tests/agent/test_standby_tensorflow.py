"""A plain Keras script, started as usual and from a standby: the same weights, and the same help."""

import json
import socket
from pathlib import Path

from support.agents.own_process import Trainee, in_own_process

SCRIPT = """
import os, time
if os.environ['RUN'] == 'first':
    path = os.environ['TRAINJOB_PROGRESS_FILE']
    with open(path + '.new', 'w') as file:
        file.write('{"state": "training", "step": 1, "time": 1}')
    os.replace(path + '.new', path)
    time.sleep(1000)

import random
before = random.random()
import hashlib, sys
print('library imported', 'trainjob_trainer.library' in sys.modules)
import keras
import numpy as np
import tensorflow as tf

x = np.random.rand(96, 8).astype('float32')
y = (x.sum(axis=1) > 4).astype('float32')
with tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([
        keras.layers.Dense(16, activation='relu'), keras.layers.Dropout(0.3), keras.layers.Dense(1)
    ])
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss='mse')
model.fit(x, y, epochs=3, batch_size=32, verbose=0)
weights = b''.join(np.asarray(w).tobytes() for w in model.get_weights())
print('weights', hashlib.sha256(weights).hexdigest())
print('drawn', before, random.random(), np.random.rand(), keras.random.uniform((1,)).numpy())
print('repaired', [one.__name__ for one in keras.Model.__bases__])
print('saved by', keras.saving.save_model is keras.src.saving.saving_api.save_model,
      hasattr(keras.saving.save_model, '__wrapped__'))
raise RuntimeError('as asked')
"""


@in_own_process
async def test_cold_and_warm_starts_train_alike(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = {"cluster": {"worker": [f"127.0.0.1:{port}"]}, "task": {"type": "worker", "index": 0}}
    env = {"TF_CONFIG": json.dumps(config), "TRAINJOB_NAME": "job", "CUDA_VISIBLE_DEVICES": "-1"}
    printed = []
    for standby in (False, True):
        folder = tmp_path / str(standby)
        folder.mkdir()
        one = Trainee(folder, SCRIPT, env, tf_port=port, standby=standby)
        if standby:
            one.child.start({"RUN": "first"})
            await one.until(lambda one=one: one.child._standby.ready)
            await one.child.stop(0)
        pids = one.child._standby.pids
        one.child.start({"RUN": "second", "TRAINJOB_OUTPUT_DIR": str(folder / "out")})
        await one.until(lambda one=one: one.child._run.pid)
        assert ({one.child._run.pid} == pids) is standby
        ended = await one.ends()
        assert (ended.code, ended.reason) == (1, "RuntimeError"), ended
        assert ended.message == f"program.py:{SCRIPT.count(chr(10))}: RuntimeError: as asked"
        assert list((folder / "out").rglob("manifest.json"))
        printed.append([line for line in one.output.splitlines() if line.startswith(("weights", "drawn"))])
        assert f"library imported {standby}\n" in one.output
        assert "repaired ['JobTrainer', 'Trainer', 'Layer']\nsaved by True True\n" in one.output
        await one.child.close()
    assert printed[0] == printed[1] != []
