"""The chart with running pods: what a release does to jobs that are there."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from testbed import containerd, registry
from testbed.claims import NodeCluster
from testbed.commands import run
from testbed.enclosure import Enclosure
from testbed.images import operator
from testbed.programs import program
from testbed.readiness import answers
from testbed.waiting import until

from support.kube.chart import CHART, ROOT
from support.kube.helm import CRD, columns_of, later_chart

SYSTEM = "trainjob-system"
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
LATER = "99.0.0"
MINUTES = 3
# Trains until it is told to stop, by a file in the shared output.
PROGRAM = "import pathlib, time\nwhile not pathlib.Path('/output/enough').exists(): time.sleep(0.2)\n"


def job(name: str, replicas: int) -> dict[str, Any]:
    container = {
        "name": "trainer",
        "image": f"ghcr.io/trainjob/operator:{VERSION}",
        "command": ["python", "-c", PROGRAM],
        "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "trainjob.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "worker": {"replicas": replicas},
            "evaluator": {"replicas": 0},
            "output": {"claim": {"claimName": "training"}},
            "template": {"spec": {"securityContext": security, "containers": [container]}},
        },
    }


def helm(cluster: NodeCluster, verb: str, release: str, *args: str | Path, namespace: str = SYSTEM) -> str:
    waiting = [] if verb == "test" else ["--wait"]
    timeout = f"{MINUTES}m"
    words = [verb, release, *map(str, args), "-n", namespace, *waiting, "--timeout", timeout]
    return cluster.helm(*words, timeout=MINUTES * 60 + 20)


@pytest.fixture
def reinstalled(installed: NodeCluster) -> Iterator[NodeCluster]:
    """What a test makes of the installation, is made good after it."""
    yield installed
    if "trainjob" in installed.helm("list", "-n", SYSTEM, "--short").split():
        helm(installed, "uninstall", "trainjob")
    installed.apply(ROOT / "manifests/crd/crd.yaml")
    helm(installed, "install", "trainjob", CHART)


def running_pods(cluster: NodeCluster, namespace: str) -> dict[str, tuple[str, int]]:
    pods = cluster.get("pods", namespace=namespace, selector="trainjob.dev/job")["items"]
    return {
        pod["metadata"]["uid"]: (
            pod["status"]["phase"],
            pod["status"]["containerStatuses"][0]["restartCount"],
        )
        for pod in pods
    }


def wait_for(cluster: NodeCluster, condition: str, namespace: str, name: str) -> None:
    words = ("wait", f"tj/{name}", "-n", namespace, f"--for=condition={condition}", f"--timeout={MINUTES}m")
    cluster.kubectl(*words, timeout=MINUTES * 60 + 10)


def controllers(cluster: NodeCluster, namespace: str = SYSTEM) -> list[dict[str, Any]]:
    selector = "app.kubernetes.io/component=controller"
    pods: list[dict[str, Any]] = cluster.get("pods", namespace=namespace, selector=selector)["items"]
    return pods


def test_helm_test(installed: NodeCluster) -> None:
    assert "Phase:          Succeeded" in helm(installed, "test", "trainjob")
    assert not installed.exists("pod", "trainjob-test", namespace=SYSTEM)


def test_both_replicas_are_ready_and_one_leads(installed: NodeCluster) -> None:
    pods = controllers(installed)
    assert len(pods) == 2
    assert all(status["ready"] for pod in pods for status in pod["status"]["containerStatuses"])
    names = {pod["metadata"]["name"] for pod in pods}

    def leader() -> bool:
        lease = installed.get("lease", "trainjob", namespace=SYSTEM)
        return lease["spec"]["holderIdentity"].rpartition("_")[0] in names

    # A Lease outlives its release; one of an installation that was killed has to run out first.
    until(leader, what="one of the replicas leads", seconds=30)


def test_running_jobs_survive(reinstalled: NodeCluster, restricted: str, tmp_path: Path) -> None:
    cluster = reinstalled
    later = later_chart(tmp_path, LATER)
    cluster.apply(job("long", replicas=2), namespace=restricted)
    wait_for(cluster, "Running", restricted, "long")
    before = running_pods(cluster, restricted)
    assert sorted(before.values()) == [("Running", 0)] * 2

    # The later release's image isn't built; its chart and CRD are what this is about.
    helm(cluster, "upgrade", "trainjob", later, "--set", f"image.tag={VERSION},podAnnotations.now=later")
    assert all(pod["metadata"]["annotations"] == {"now": "later"} for pod in live(controllers(cluster)))
    assert columns_of(cluster.get("crd", CRD))[-1] == "Added"
    assert running_pods(cluster, restricted) == before

    helm(cluster, "rollback", "trainjob", "1")
    assert columns_of(cluster.get("crd", CRD))[-1] == "Added"
    assert running_pods(cluster, restricted) == before

    helm(cluster, "uninstall", "trainjob")
    assert running_pods(cluster, restricted) == before

    helm(cluster, "install", "renamed", CHART)
    assert running_pods(cluster, restricted) == before
    finish(cluster, restricted)
    wait_for(cluster, "Complete", restricted, "long")
    status = cluster.get("tj", "long", namespace=restricted)["status"]
    assert (status["restarts"]["counted"], status["restarts"]["notCounted"]) == (0, 0), json.dumps(status)
    helm(cluster, "uninstall", "renamed")


def test_two_releases_for_a_namespace_each(reinstalled: NodeCluster, restricted: str) -> None:
    cluster = reinstalled
    helm(cluster, "uninstall", "trainjob")
    other = cluster.create_namespace()
    cluster.claim(other)
    releases = {"one": restricted, "two": other}
    for release, namespace in releases.items():
        settings = f"crd.install=false,watch.namespace={namespace},replicas=1"
        helm(cluster, "install", release, CHART, "--set", settings)
    for release, namespace in releases.items():
        cluster.apply(job("short", replicas=1), namespace=namespace)
        wait_for(cluster, "Running", namespace, "short")
        finish(cluster, namespace)
        wait_for(cluster, "Complete", namespace, "short")
        assert "Succeeded" in helm(cluster, "test", release)
    for release in releases:
        helm(cluster, "uninstall", release)
    cluster.delete_namespace(other)


@pytest.mark.testbed  # it starts a registry beside the kubelet
@pytest.mark.nightly
def test_a_release_from_a_registry(reinstalled: NodeCluster, tmp_path: Path) -> None:
    cluster = reinstalled
    assert cluster.folder is not None
    address = f"{urlsplit(cluster.server).hostname}:{registry.PORT}"  # as it is reached from here
    enclosure = Enclosure(cluster.folder)
    enclosure.start(registry.component(cluster.folder / "registry", f":{registry.PORT}"))
    try:
        until(answers(f"http://{address}/v2/"), what="an answer of the registry", seconds=30)
        push = ("images", "push", "--plain-http", f"{address}/trainjob/operator:{VERSION}")
        containerd.Client(enclosure).call(*push, operator().name)
        run([program("helm4"), "package", CHART, "--destination", tmp_path])
        chart = tmp_path / f"trainjob-{VERSION}.tgz"
        run([program("helm4"), "push", chart, f"oci://{address}/charts", "--plain-http"])

        helm(cluster, "uninstall", "trainjob")
        image = f"127.0.0.1:{registry.PORT}/trainjob/operator"  # as it is reached by the kubelet
        settings = f"image.repository={image},image.pullPolicy=Always"
        words = (f"oci://{address}/charts/trainjob", "--version", VERSION, "--plain-http", "--set", settings)
        helm(cluster, "install", "trainjob", *words)
        assert "Succeeded" in helm(cluster, "test", "trainjob")
        pods = controllers(cluster)
        assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {f"{image}:{VERSION}"}
        pulled = cluster.get("events", namespace=SYSTEM, field_selector="reason=Pulled")["items"]
        assert any(f'Successfully pulled image "{image}' in event["message"] for event in pulled)

        pushed = f"registry:{address}/trainjob/operator:{VERSION}"
        listed = run(
            [program("syft"), "scan", pushed, "-o", "cyclonedx-json"],
            env={"SYFT_REGISTRY_INSECURE_USE_HTTP": "true", "SYFT_CHECK_FOR_APP_UPDATE": "false"},
        )
        found = {(each["name"], each.get("version")) for each in json.loads(listed)["components"]}
        assert {("trainjob", VERSION), ("kopf", version("kopf"))} <= found
        assert any(name == "libc6" for name, _ in found)
    finally:
        enclosure.signal("registry", signal.SIGTERM)


def live(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def finish(cluster: NodeCluster, namespace: str) -> None:
    name = cluster.get("pods", namespace=namespace, selector="trainjob.dev/job")["items"][0]["metadata"][
        "name"
    ]
    cluster.kubectl("exec", name, "-n", namespace, "--", "touch", "/output/enough")
