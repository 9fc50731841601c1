"""A job in a queue of the real Kueue whose pods are real: TensorFlow saves before it makes room.

The rest of what Kueue does is shown in `test_kueue.py`, where pods are played.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from testbed import Unfit, node_tier
from testbed.claims import NodeCluster

from support.kube.digits_job import (
    ROOT,
    RUNNING,
    completed,
    is_training_without_a_checkpoint,
    largest_difference,
    output,
    resumed,
    start,
)
from support.kube.kueue import Kueue, running_kueue
from support.kube.real_pods import describe, script_job, touch, wait_for

EQUAL = 1e-6
"""The aim of benchmarks/chaos.py, too."""


@pytest.fixture(scope="module")
def kueue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kueue]:
    """A node with Kueue and the controller, whose chart finds Kueue by itself."""
    try:
        cluster = node_tier.start(die_with_us=True)
    except Unfit as error:
        pytest.skip(str(error))
    try:
        with running_kueue(cluster, tmp_path_factory.mktemp("kueue")) as kueue:
            release = ("trainjob", str(ROOT / "charts" / "trainjob"), "-n", "trainjob-system")
            cluster.helm("install", *release, "--create-namespace", "--wait", timeout=200)
            cluster.kubectl("label", "node", "testbed", "pool=gpu")
            yield kueue
    finally:
        node_tier.stop_own()


def pods(cluster: NodeCluster, namespace: str, job: str) -> list[str]:
    selector = f"trainjob.dev/job={job}"
    found = cluster.get("pods", namespace=namespace, selector=selector)["items"]
    return [pod["metadata"]["name"] for pod in found]


def test_a_preempted_job_saves_makes_room_and_ends_as_if_nothing_had_happened(kueue: Kueue) -> None:
    cluster = kueue.cluster
    assert isinstance(cluster, NodeCluster)
    alone = cluster.claim(cluster.create_namespace())
    start(cluster, alone)
    completed(cluster, alone)

    namespace = cluster.create_namespace()
    claim = cluster.claim(namespace)
    kueue.make_queue(namespace, cpus="300m")  # of two workers and the evaluator
    kueue.make_priority("urgent", 100)
    queue = {"kueue.x-k8s.io/queue-name": "research"}
    start(cluster, claim, "--checkpoint-every", "1000000", suspend=True)
    patch = json.dumps({"metadata": {"labels": queue}, "spec": {"suspend": False}})
    cluster.kubectl("patch", "tj/digits", "-n", namespace, "--type=merge", "--patch", patch)
    is_training_without_a_checkpoint(cluster, claim)
    checkpoints = output(claim) / "checkpoints"
    assert not list(checkpoints.glob("step-*"))

    urgent = script_job("urgent", 'until("done")')
    urgent["metadata"]["labels"] = {**queue, "kueue.x-k8s.io/priority-class": "urgent"}
    cluster.apply(urgent, namespace=namespace)
    wait_for(cluster, namespace, "digits", "jsonpath={.status.state}=Queued")
    wait_for(cluster, namespace, "urgent", RUNNING)
    assert pods(cluster, namespace, "digits") == []
    assert list(checkpoints.glob("step-*")), "nothing was saved in the grace period"
    told = describe(cluster, namespace, "digits")
    assert "evicted by Kueue (Preempted): Preempted to accommodate a workload" in told

    touch(cluster, namespace, "urgent", "done")
    wait_for(cluster, namespace, "urgent", "jsonpath={.status.state}=Complete")
    cluster.delete("tj", "urgent", namespace=namespace)
    status = completed(cluster, claim)
    assert resumed(cluster, claim)
    restarts = status["restarts"]
    assert (restarts.get("counted", 0), restarts.get("notCounted", 0)) == (0, 0)
    assert largest_difference(output(alone), output(claim)) <= EQUAL
    assert status["stateSeconds"]["queued"] > 0
    left = cluster.get("workloads.kueue.x-k8s.io", namespace=namespace)["items"]
    assert [name for workload in left for name in workload["metadata"].get("finalizers", ())] == []
