"""Horovod itself, compiled against TensorFlow 2.12: the example's ring, as processes here and in pods."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from testbed import containerd, node_tier, store
from testbed.claims import NodeCluster
from testbed.enclosure import Enclosure
from testbed.horovod import IMAGE, horovod_image, horovod_python

from support.agents.agent_job import until
from support.cli.running import TRAINJOB, finished_run, processes_of, started_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "horovod_digits.yaml"
CHART = EXAMPLE.parents[1] / "charts" / "trainjob"
CONTAINER = "spec.template.spec.containers[trainer]"


@pytest.fixture(scope="module")
def python() -> Path:
    return horovod_python()


def options(python: Path, epochs: int) -> list[str]:
    """The example's job with that Python, and with so many epochs."""
    command = json.dumps([str(python), "horovod_digits.py"])
    env = json.dumps([{"name": "EPOCHS", "value": str(epochs)}])
    return ["--set", f"{CONTAINER}.command={command}", "--set", f"{CONTAINER}.env={env}"]


def epochs_saved(folder: Path) -> int:
    return len(list(folder.rglob("horovod/epoch-*.h5")))


def accuracy(printed: str) -> float:
    return float(re.findall(r"held-out accuracy: (\d\.\d+)", printed)[-1])


def pid_of_rank(folder: Path, rank: int) -> int:
    wanted = f"HOROVOD_RANK={rank}".encode()
    trains = (pid for pid, command in processes_of(folder).items() if "horovod_digits.py" in command)
    found = [p for p in trains if wanted in Path(f"/proc/{p}/environ").read_bytes().split(b"\0")]
    assert len(found) == 1
    return found[0]


def test_two_workers_train_in_step(python: Path, tmp_path: Path) -> None:
    code, printed = finished_run(EXAMPLE, tmp_path, *options(python, 20))
    assert code == 0, printed
    assert "weights equal on 2 ranks: True" in printed
    assert accuracy(printed) >= 0.97
    assert "step 440 of 440" in printed
    assert processes_of(tmp_path) == {}


def test_the_ring_restarts_from_the_scripts_checkpoint_and_grows(python: Path, tmp_path: Path) -> None:
    with started_run(EXAMPLE, tmp_path / "runs", *options(python, 60)) as run:
        until(lambda: epochs_saved(tmp_path) >= 5, "five epochs")
        os.kill(pid_of_rank(tmp_path, 1), signal.SIGKILL)
        until(lambda: "attempt 2" in run.output, "the restart")
        until(lambda: epochs_saved(tmp_path) >= 15, "fifteen epochs")
        scale = [str(TRAINJOB), "scale", "horovod-digits", "--replicas", "3"]
        subprocess.run(scale, check=True, cwd=tmp_path, timeout=60)
        assert run.wait() == 0, run.output
    starts = re.findall(r"rank 0 of (\d) starts after epoch (\d+)", run.output)
    assert [size for size, _ in starts] == ["2", "2", "3"], run.output
    epochs = [int(epoch) for _, epoch in starts]
    assert epochs[0] == 0
    assert 5 <= epochs[1] < epochs[2] < 60
    assert "worker 1 was killed (SIGKILL)" in run.output
    assert "weights equal on 3 ranks: True" in run.output
    assert accuracy(run.output) >= 0.97


def test_the_evaluator_is_no_rank(python: Path, tmp_path: Path) -> None:
    code, printed = finished_run(EXAMPLE, tmp_path, *options(python, 2), "--set", "spec.evaluator.replicas=1")
    assert "the evaluator has no rank in Horovod's ring; set spec.evaluator.replicas to 0" in printed
    assert "weights equal on 2 ranks: True" in printed
    assert code == 0, printed


@pytest.fixture(scope="module")
def cluster() -> Iterator[NodeCluster]:
    """A cluster with the controller and the example's image."""
    layout = horovod_image()
    cluster = node_tier.start(die_with_us=True)
    assert cluster.folder is not None
    store.add(containerd.Client(Enclosure(cluster.folder)), {IMAGE: layout})
    release = ("trainjob", "-n", "trainjob-system", "--create-namespace")
    cluster.helm("install", *release, str(CHART), "--wait", "--timeout", "3m", timeout=200)
    yield cluster
    cluster.helm("uninstall", "trainjob", "-n", "trainjob-system", "--wait", timeout=200)
    node_tier.stop_own()


KILL = """
import os, pathlib
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    if b"HOROVOD_RANK=1" in (folder / "environ").read_bytes().split(b"\\0"):
        os.kill(int(folder.name), 9)
"""


def test_the_ring_restarts_and_grows_in_pods(cluster: NodeCluster) -> None:
    namespace = cluster.create_namespace(labels={"pod-security.kubernetes.io/enforce": "restricted"})
    output = cluster.claim(namespace).folder
    assert output is not None
    job = yaml.safe_load(EXAMPLE.read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container |= {
        "env": [{"name": "EPOCHS", "value": "120"}],
        "resources": {"requests": {"cpu": "50m"}, "limits": {"memory": "2Gi"}},
    }
    cluster.apply(job, namespace=namespace)

    def wait(what: str) -> None:
        cluster.kubectl(
            "wait", "tj/horovod-digits", "-n", namespace, f"--for={what}", "--timeout=5m", timeout=310
        )

    def pod(index: int) -> str:
        selector = f"trainjob.dev/job=horovod-digits,trainjob.dev/index={index},trainjob.dev/live=true"
        (found,) = cluster.get("pods", namespace=namespace, selector=selector)["items"]
        return str(found["metadata"]["name"])

    until(lambda: epochs_saved(output) >= 5, "five epochs")
    cluster.kubectl("exec", pod(1), "-n", namespace, "--", "python", "-c", KILL)
    wait("jsonpath={.status.restarts.counted}=1")
    until(lambda: epochs_saved(output) >= 25, "twenty-five epochs")
    cluster.kubectl("scale", "tj/horovod-digits", "-n", namespace, "--replicas=3")
    wait("condition=Complete")

    log = cluster.kubectl("logs", pod(0), "-n", namespace)
    starts = re.findall(r"rank 0 of (\d) starts after epoch (\d+)", log)
    assert [size for size, _ in starts] == ["2", "2", "3"], log
    epochs = [int(epoch) for _, epoch in starts]
    assert 5 <= epochs[1] < epochs[2] < 120
    logs = "".join(cluster.kubectl("logs", pod(index), "-n", namespace) for index in range(3))
    assert logs.count("weights equal on 3 ranks: True") == 3
    assert accuracy(logs) >= 0.97
    cluster.delete_namespace(namespace)
