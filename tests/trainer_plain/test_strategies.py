"""Whatever strategy a script names, a job's workers train one model, with the numbers of one process."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.trainer.plain import Ended, run_alone, run_job

DATA = """
import json, sys
import keras
import numpy as np
import tensorflow as tf

rows = np.random.RandomState(0).rand(64, 4).astype("float32")
targets = rows @ np.array([[1.0], [2.0], [3.0], [4.0]], "float32")

def build(optimizer=keras.optimizers.Adam):
    starts = [keras.initializers.GlorotUniform(seed) for seed in (1, 2)]
    model = keras.Sequential([
        keras.Input((4,)),
        keras.layers.Dense(3, "relu", kernel_initializer=starts[0]),
        keras.layers.BatchNormalization(synchronized=True),
        keras.layers.Dense(1, kernel_initializer=starts[1]),
    ])
    model.compile(optimizer(0.05), "mse", metrics=["mae"])
    return model

def fit(model, epochs=3, **options):
    return model.fit(rows, targets, epochs=epochs, batch_size=16, shuffle=False, verbose=0, **options)

def say(model, history=None):
    said = {
        "history": history.history if history else {},
        "evaluated": model.evaluate(rows, targets, verbose=0),
        "predicted": model.predict(rows, verbose=0)[:, 0].tolist(),
        "steps": int(model.optimizer.iterations.numpy()),
    }
    print("SAID", json.dumps(said), flush=True)
"""


@dataclass(frozen=True)
class Case:
    """A script after `DATA`, and what the first worker logs of the strategy."""

    name: str
    script: str
    logged: str = ""


WITHOUT, MIRRORED = "the model was built without a strategy", "MirroredStrategy() is the MultiWorkerMirrored"
CASES = [
    Case(
        "no strategy",
        "model = build(); say(model, fit(model, validation_data=(rows, targets)))",
        WITHOUT,
    ),
    Case(
        "two models, forgotten between them",
        """
for epochs in (2, 3):
    keras.backend.clear_session()
    model = build()
    say(model, fit(model, epochs))
""",
        WITHOUT,
    ),
    Case(
        "a functional model of two parts, of which one is used alone",
        """
inner = build()
inputs = keras.Input((4,))
outer = keras.Model(inputs, inner(inputs) * 2.0)
outer.compile(keras.optimizers.SGD(0.02), "mse")
outer.predict(rows, verbose=0)
history = fit(outer)
inner.compile(keras.optimizers.SGD(0.02), "mse", metrics=["mae"])
say(outer, history)
say(inner)
""",
        WITHOUT,
    ),
    Case(
        "no variables before fit",
        """
model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
model.compile("sgd", "mse")
say(model, fit(model))
""",
        WITHOUT,
    ),
    Case(
        "batch by batch",
        """
model = build(keras.optimizers.SGD)
for start in range(0, 64, 16):
    model.train_on_batch(rows[start:start + 16], targets[start:start + 16])
say(model)
""",
        WITHOUT,
    ),
    Case(
        "MirroredStrategy, and all of it in the scope",
        """
tf.config.threading.set_inter_op_parallelism_threads(2)
with tf.distribute.MirroredStrategy().scope():
    model = build()
    say(model, fit(model))
""",
        MIRRORED,
    ),
    Case(
        "the workers' strategy after an operation, and the model outside the scope",
        """
print(tf.constant(1) + 1)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
model = build()
say(model, fit(model))
with tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = build()
say(model, fit(model))
""",
        WITHOUT,
    ),
]


def said(log: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("SAID ")) for line in log.splitlines() if line.startswith("SAID ")]


def assert_close(value: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert value.keys() == expected.keys()
        for name in expected:
            assert_close(value[name], expected[name])
    else:
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name == "no strategy" else pytest.mark.nightly)
        for case in CASES
    ],
)
def test_workers_train_one_model_whatever_strategy_the_script_names(case: Case, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DATA + case.script)
    assert run_alone(script, tmp_path / "alone", {}) == 0
    expected = said((tmp_path / "alone" / "log").read_text())
    assert expected

    for workers in (1, 2, 3) if case.logged == MIRRORED else (1, 2):
        ended = run_job(script, tmp_path / str(workers), workers=workers)
        assert {replica.code for replica in ended.values()} == {0}, ended
        for replica in ended.values():
            found = said(replica.log)
            assert len(found) == len(expected), replica.log
            for one, other in zip(found, expected, strict=True):
                assert_close(one, other)
            assert not replica.progress.get("trainsAlone"), replica.log
        assert (case.logged in ended["worker-0"].log) == (workers > 1)


def run(script: str, folder: Path, **options: Any) -> dict[str, Ended]:
    folder.mkdir(exist_ok=True)
    path = folder / "train.py"
    path.write_text(DATA + script)
    return run_job(path, folder / "job", **options)


LOOP = """
model, optimizer = build(), keras.optimizers.SGD(0.01)
for _ in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(rows) - targets) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
"""


@pytest.mark.parametrize(
    ("script", "env"),
    [
        pytest.param(
            "fit(build())", {"TRAIN_STRATEGY": "own"}, id="by the setting", marks=pytest.mark.nightly
        ),
        pytest.param(LOOP, {}, id="a loop without a strategy"),
        pytest.param(
            "with tf.distribute.OneDeviceStrategy('CPU:0').scope(): fit(build())",
            {},
            id="a strategy of one device",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_where_each_worker_trains_by_itself_that_is_reported(
    script: str, env: dict[str, str], tmp_path: Path
) -> None:
    for replica in run(script, tmp_path, env=env).values():
        assert replica.code == 0, replica.log
        assert replica.progress["trainsAlone"] is True
        (line,) = replica.progress["notices"]
        assert "each worker trains the whole model by itself" in line
        assert replica.log.count(line) == 1


@pytest.mark.parametrize("role", ["worker", "evaluator"])
def test_another_back_end_is_refused_where_it_would_train_alone(role: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"""
import json, os
if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == {role!r}:
    import keras
""")
    ended = run_job(script, tmp_path / "job", evaluator=True, env={"KERAS_BACKEND": "jax"})
    for name, replica in ended.items():
        if name.startswith(role):
            assert replica.code == 80, replica.log
            assert "back end is jax" in replica.progress["error"]["message"]


def test_an_unknown_setting_is_refused(tmp_path: Path) -> None:
    ended = run("", tmp_path, workers=1, env={"TRAIN_STRATEGY": "mine"})["worker-0"]
    assert ended.code == 80
    assert "TRAIN_STRATEGY: must be own, or not be set, got 'mine'" in ended.log


def test_an_evaluator_does_not_train_a_loop_without_a_strategy(tmp_path: Path) -> None:
    ended = run(LOOP + "print('trained')", tmp_path, workers=1, evaluator=True)
    assert [replica.code for replica in ended.values()] == [0, 0], ended
    assert "trained" in ended["worker-0"].log
    assert "the script trains in a loop of its own" in ended["evaluator-0"].log
    assert "trained\n" not in ended["evaluator-0"].log
