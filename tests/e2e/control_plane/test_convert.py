"""What `trainjob convert` prints is accepted by a real API server: TrainJobs, and the pods that they mean."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from testbed import Cluster

from support.kube.real_kube import await_crd
from support.world.tfjobs import SAMPLES, build_claim_mount, build_replicas, build_tfjob
from trainjob.api import parse, read_documents
from trainjob.cli import main
from trainjob.core.manifests import build_pod
from trainjob.core.names import desired_replicas

ROOT = Path(__file__).parents[3]
CRD = ROOT / "manifests" / "crd" / "crd.yaml"
ROLES = (
    ("Worker",),
    ("Chief",),
    ("Master",),
    ("Chief", "Worker"),
    ("Master", "Worker", "Evaluator"),
    ("Worker", "Evaluator"),
    ("PS", "Worker"),
    ("Chief", "PS", "Worker"),
    ("Chief", "PS", "Worker", "Evaluator"),
)
POLICIES = ("Always", "OnFailure", "Never", "ExitCode", None)
CLEANING = ("All", "Running", "None", None)
SUCCESS = ("", "AllWorkers", None)
SCHEDULING = {"minAvailable": 2, "queue": "q", "minResources": {"cpu": "1"}, "scheduleTimeoutSeconds": 60}
LIMITS = {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 60, "backoffLimit": 3, "suspend": True}
GPU = {"limits": {"nvidia.com/gpu": 1}}


@pytest.fixture(scope="module")
def cluster(control_plane: Cluster) -> Cluster:
    control_plane.apply(CRD)
    await_crd(control_plane, "trainjobs.trainjob.dev")
    return control_plane


def shapes() -> list[dict[str, Any]]:
    """Every set of roles with every restart policy; the rest in turns."""
    made = []
    for number, (roles, policy) in enumerate(product(ROLES, POLICIES)):
        mounts = build_claim_mount() if number % 2 else {}
        container = {**mounts.get("container", {}), **({"resources": GPU} if number % 3 else {})}
        replicas = {
            role: build_replicas(
                number % 3 + 1 if role in ("Worker", "PS") else 1,
                policy,
                container={**container, "args": [role]} if number % 5 == 0 else container,
                pod=mounts.get("pod"),
            )
            for role in roles
        }
        run_policy = {
            "cleanPodPolicy": CLEANING[number % 4],
            **(LIMITS if number % 2 else {"managedBy": "kueue.x-k8s.io/multikueue"}),
            **({"schedulingPolicy": SCHEDULING} if number % 3 else {}),
        }
        success = SUCCESS[number % 3]
        name = {"name": f"shape-{number}"}
        made.append(build_tfjob(replicas, metadata=name, runPolicy=run_policy, successPolicy=success))
    return made


def convert(text: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(main, ["convert", "-"], input=text)
    assert result.exit_code == 0, result.stderr
    return [d.raw for d in read_documents(result.stdout, source="stdout") if d.is_trainjob]


def create(cluster: Cluster, objects: list[dict[str, Any]], namespace: str) -> list[str]:
    """Have the API server check the objects as at their creation, unknown fields included."""
    stream = "\n---\n".join(
        json.dumps({**item, "metadata": {**item["metadata"], "namespace": namespace}}) for item in objects
    )
    command = ("create", "--dry-run=server", "--validate=strict", "-o", "name", "-f", "-")
    return cluster.kubectl(*command, stdin=stream).split()


@pytest.mark.parametrize("text", [pytest.param(f.read_text(), id=f.stem) for f in SAMPLES])
def test_the_samples_are_accepted(cluster: Cluster, namespace: str, text: str) -> None:
    jobs = convert(text)
    assert jobs
    assert len(create(cluster, jobs, namespace)) == len(jobs)


def test_every_shape_is_accepted(cluster: Cluster, namespace: str) -> None:
    jobs = convert("\n---\n".join(json.dumps(tfjob) for tfjob in shapes()))
    assert len(jobs) == len(ROLES) * len(POLICIES)
    made = create(cluster, jobs, namespace)
    assert made == [f"trainjob.trainjob.dev/{job['metadata']['name']}" for job in jobs]


@pytest.mark.parametrize("text", [pytest.param(f.read_text(), id=f.stem) for f in SAMPLES])
def test_their_pods_are_accepted(cluster: Cluster, namespace: str, text: str) -> None:
    pods = []
    for raw in convert(text):
        job = parse({**raw, "metadata": {**raw["metadata"], "uid": "1-2-3"}})
        for replica in desired_replicas(job.spec):
            pod = build_pod(job, role=replica.role, index=replica.index, incarnation=1, attempt=1)
            # These name objects that only their own cluster has.
            for field in ("serviceAccountName", "priorityClassName"):
                pod["spec"].pop(field, None)
            pods.append(pod)
    assert len(create(cluster, pods, namespace)) == len(pods)
