"""A function that Python sends trains in real pods; what it logs is followed, what it leaves is fetched."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import h5py
import pytest
from testbed import images
from testbed.claims import NodeCluster
from testbed.waiting import until

from support.cli.program import command, trainjob
from trainjob import Job, Trainer

FACTOR = 3.0
TIMEOUT = "8m"
"""Against hanging only."""


def train(epochs: int, text: str) -> dict[str, object]:
    import keras  # noqa: PLC0415 - only the pods have TensorFlow to import
    import numpy as np  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    inputs = np.linspace(-1, 1, 64, dtype="float32")[:, None]
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    curves = keras.callbacks.TensorBoard(os.environ["TRAINJOB_LOG_DIR"])
    model.fit(inputs, FACTOR * inputs, batch_size=16, epochs=epochs, verbose=2, callbacks=[curves])
    model.save(os.environ["TRAINJOB_OUTPUT_DIR"] + "/model.keras")
    print("trained with", text)
    return {"text": text, "weight": float(model.get_weights()[0][0, 0])}


TEXT = "quotes ' \" $5 `x` \\ äöü 漢字"


@pytest.fixture(scope="module")
def job(installed: NodeCluster, restricted_module: str) -> Job:
    """The job that was submitted, and has ended."""
    trainer = Trainer(
        train,
        kwargs={"epochs": 5, "text": TEXT},
        workers=2,
        evaluator=False,
        image=images.trainer().name,
        output="claim:training",
        cpu="50m",
        namespace=restricted_module,
        kubeconfig=str(installed.kubeconfig),
    )
    job = trainer.submit()
    lines = list(job.logs(follow=True))
    assert {f"worker-{index}: trained with {TEXT}" for index in (0, 1)} <= set(lines), "\n".join(lines)
    assert job.wait(timeout=TIMEOUT).status.state == "Complete"
    return job


@pytest.fixture
def readers(installed: NodeCluster, job: Job, restricted_module: str) -> Iterator[str]:
    """The job's namespace; no pod that reads the output is left in it, and the job is as it was."""
    before = job.status
    yield restricted_module
    gone = ("wait", "pods", "--for=delete", "-l", "trainjob.dev/output-reader=train", "-n", restricted_module)
    installed.kubectl(*gone, "--timeout=60s", timeout=70)
    names = installed.kubectl("get", "pods", "-n", restricted_module, "-o", "name").split()
    assert sorted(name.rpartition("-")[0] for name in names) == [
        "pod/train-worker-0",
        "pod/train-worker-1",
    ]
    assert job.status == before


def test_its_result_metrics_and_model_come_back(job: Job, readers: str, tmp_path: Path) -> None:
    result = job.result()
    assert result["text"] == TEXT
    losses = [row["loss"] for row in job.history() if "loss" in row]
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)
    model = job.model(tmp_path / "model") / "model.keras"
    with zipfile.ZipFile(model) as saved:
        weights = h5py.File(io.BytesIO(saved.read("model.weights.h5")))
    assert float(weights["layers/dense/vars/0"][0, 0]) == result["weight"]


def test_an_editor_may_copy_it_and_a_viewer_is_told_what_is_missing(
    job: Job, readers: str, installed: NodeCluster, tmp_path: Path
) -> None:
    for role, words in (("edit", ["cp", "train:logs", "logs"]), ("view", ["cp", "train:logs", "again"])):
        installed.kubectl("create", "serviceaccount", role, "-n", readers)
        to = (f"--clusterrole={role}", f"--serviceaccount={readers}:{role}")
        installed.kubectl("create", "rolebinding", role, *to, "-n", readers)
        file = installed.kubeconfig_of(role, readers, tmp_path)
        done = trainjob(*words, "-n", readers, "--kubeconfig", str(file), cwd=tmp_path)
        if role == "edit":
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith("logs: ")
            assert list(tmp_path.glob("logs/train/**/events.out.tfevents.*"))
        else:
            assert done.returncode == 4
            assert "you need create, list, watch and delete of pods" in done.stderr
    assert not (tmp_path / "again").exists()


def test_its_curves_are_shown_until_ctrl_c(
    job: Job, readers: str, installed: NodeCluster, tmp_path: Path
) -> None:
    (tmp_path / "tensorflow.py").write_text("raise ImportError")  # it starts much faster without
    env = {**os.environ, **installed.env, "PYTHONPATH": str(tmp_path)}
    words = command(["tensorboard", "train", "-n", readers])
    with subprocess.Popen(words, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as showing:
        try:
            assert showing.stderr is not None
            address = next(word for line in showing.stderr for word in line.split() if "http://" in word)
            tags = f"{address}data/plugin/scalars/tags"
            until(lambda: "epoch_loss" in _get(tags), what="the curve", seconds=60)
        finally:
            showing.send_signal(signal.SIGINT)
        assert showing.wait(60) == 130


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - TensorBoard's
        return json.dumps(json.load(answer))
