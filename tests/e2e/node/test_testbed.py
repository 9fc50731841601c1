"""The node tier is a real node, keeps to itself, and leaves nothing behind."""

import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from testbed import images, network
from testbed.claims import NodeCluster
from testbed.cluster import Cluster
from testbed.commands import run
from testbed.enclosure import Enclosure
from testbed.errors import TestbedError
from testbed.places import TESTBED, cache, state
from testbed.process import Process
from testbed.programs import program

# In a pod: the cluster's DNS, a Service's address, and the API server by its own Service and the pod's token.
ASK = """
import socket, ssl, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount"
assert socket.gethostbyname("web-0.pods") == "{pod}", "a pod's name"
assert urllib.request.urlopen("http://web:80/", timeout=10).status == 200, "a Service"
request = urllib.request.Request("https://kubernetes.default.svc/version")
request.add_header("Authorization", "Bearer " + open(account + "/token").read())
context = ssl.create_default_context(cafile=account + "/ca.crt")
assert urllib.request.urlopen(request, context=context, timeout=10).status == 200, "the API server"
try:
    socket.create_connection(("192.0.2.77", 80), timeout=10)
except OSError as error:
    print("outside:", error)
"""
CGROUPS = Path("/sys/fs/cgroup")
OURS = "trainjob-testbed-*"
SETTINGS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")


def _pod(name: str, command: list[str], **spec: object) -> dict[str, object]:
    container = {"name": "main", "image": images.operator().name, "command": command}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            **spec,
        },
    }


def _service(name: str, app: str, **spec: object) -> dict[str, object]:
    ports = [{"port": 80, "targetPort": 8000}]
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"selector": {"app": app}, "ports": ports, **spec}}  # fmt: skip


def _until_ended(cluster: Cluster, pod: str, namespace: str) -> str:
    phase = "jsonpath={.status.phase}"
    for wanted in ("Succeeded", "Failed"):
        wait = ("wait", f"pod/{pod}", "-n", namespace, f"--for={phase}={wanted}", "--timeout=60s")
        if subprocess.run((cluster.kubectl_program, *wait), env=cluster.env, check=False).returncode == 0:
            break
    assert cluster.get("pod", pod, namespace=namespace)["status"]["phase"] == "Succeeded"
    return cluster.kubectl("logs", pod, "-n", namespace)


def test_pods_reach_each_other_and_the_api_and_nothing_else(
    node_cluster: NodeCluster, namespace: str
) -> None:
    serve = ["python3", "-m", "http.server", "8000", "--directory", "/tmp"]
    node_cluster.apply(_pod("web", serve, hostname="web-0", subdomain="pods"), namespace=namespace)
    node_cluster.apply(_service("web", "web"), namespace=namespace)
    node_cluster.apply(_service("pods", "web", clusterIP="None"), namespace=namespace)
    node_cluster.kubectl(
        "wait", "pod/web", "-n", namespace, "--for=condition=Ready", "--timeout=60s", timeout=70
    )
    address = node_cluster.get("pod", "web", namespace=namespace)["status"]["podIP"]
    wait = ("wait", "endpointslice", "-l", "kubernetes.io/service-name=web", "-n", namespace)
    node_cluster.kubectl(*wait, "--for=jsonpath={.endpoints[0].conditions.ready}=true", "--timeout=60s")
    node_cluster.apply(_pod("ask", ["python3", "-c", ASK.format(pod=address)]), namespace=namespace)
    said = _until_ended(node_cluster, "ask", namespace)
    if node_cluster.folder:  # any other cluster may have a way out
        assert said == "outside: [Errno 101] Network is unreachable\n"


@pytest.mark.testbed
def test_no_packet_for_a_pod_or_a_service_leaves_the_machine(node_cluster: NodeCluster) -> None:
    assert node_cluster.folder
    inside = json.loads(Enclosure(node_cluster.folder).run("ip", "-json", "route", "show"))
    assert "default" not in [route["dst"] for route in inside]
    service = node_cluster.get("service", "kubernetes", namespace="default")["spec"]["clusterIP"]
    used = network.Network(int(service.split(".")[1]))
    for address in (service, used.dns, used.of(0).gateway, f"10.{used.base + 1}.255.254"):
        (route,) = json.loads(run(["ip", "-json", "route", "get", address]))
        assert route["dev"] == network.interface()


def test_a_claim_is_shared_and_belongs_to_the_pods_group(node_cluster: NodeCluster, namespace: str) -> None:
    claim = node_cluster.claim(namespace)
    write = "open('/data/' + __import__('socket').gethostname(), 'w').write('here')"
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim.name}}
    for name in ("one", "two"):
        pod = _pod(name, ["python3", "-c", write], volumes=[volume],
                   securityContext={"runAsUser": 12345, "fsGroup": 54321})  # fmt: skip
        pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        node_cluster.apply(pod, namespace=namespace)
        _until_ended(node_cluster, name, namespace)
    if claim.folder:
        assert {file.name: file.stat().st_gid for file in claim.folder.iterdir()} == {
            "one": 54321,
            "two": 54321,
        }


@pytest.mark.testbed
def test_a_question_to_an_enclosure_that_is_gone_leaves_nothing_open(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="doesn't answer"):
        Enclosure(tmp_path).living()
    gc.collect()  # a socket that was left open would warn now, and warnings are errors


@pytest.fixture
def apart(tmp_path: Path, node_cluster: NodeCluster) -> dict[str, str]:
    """An environment in which the testbed's command line runs a second cluster, beside the tests' own."""
    assert node_cluster.folder
    (tmp_path / "cache" / "images").mkdir(parents=True)
    for shared in ("bin", "debian"):
        (tmp_path / "cache" / shared).symlink_to(cache() / shared)
    temporary = tmp_path / "tmp" / ("longer-than-a-socket-s-address-may-be-" * 3)
    temporary.mkdir(parents=True)
    return {**os.environ, "TMPDIR": str(temporary), "TRAINJOB_CACHE": str(tmp_path / "cache"),
            "PYTHONPATH": str(TESTBED)}  # fmt: skip


def _testbed(env: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "testbed", *words], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _on_the_machine(folder: Path) -> dict[str, object]:
    """What a cluster could leave behind."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    commands = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    return {
        "interfaces": sorted(each.name for each in Path("/sys/class/net").iterdir()),
        "routes": run(["ip", "route"]),
        "firewall": [line for line in run(["iptables-save"]).splitlines() if not line.startswith("#")],
        "mounts": [line for line in lines if str(folder) in line],
        "groups": sorted(str(each) for depth in ("", "*/") for each in CGROUPS.glob(f"{depth}{OURS}")),
        "settings": [Path("/proc/sys", name).read_text() for name in SETTINGS],
        "processes": [command for command in commands if str(folder).encode() in command],
        # The state folder itself stays, for the lock: who waits for it must find the same file.
        "files": [str(file) for file in folder.glob(f"tmp/*/{state().name}/**/*") if file.suffix != ".lock"],
    }  # fmt: skip


@pytest.mark.nightly
@pytest.mark.testbed
def test_a_cluster_leaves_nothing_behind_even_if_it_was_killed(apart: dict[str, str], tmp_path: Path) -> None:
    before = _on_the_machine(tmp_path)
    kubeconfig = Path(_testbed(apart, "up", "--bare", "--joined", "1"))
    cluster = Cluster(kubeconfig, kubectl=program("kubectl"))
    cluster.kubectl("run", "idle", "--image=localhost/pause:1")
    cluster.kubectl("wait", "pod/idle", "--for=condition=Ready", "--timeout=60s", timeout=70)
    outer = Process.read(kubeconfig.parent / "processes" / "enclosure.json")
    assert outer
    outer.send(signal.SIGKILL)
    assert _testbed(apart, "up", "--bare", "--joined", "1") == str(kubeconfig)
    assert cluster.get("pods", namespace="default")["items"] == []
    cluster.kubectl("run", "idle", "--image=localhost/pause:1")
    cluster.kubectl("wait", "pod/idle", "--for=condition=Ready", "--timeout=60s", timeout=70)
    _testbed(apart, "down")
    assert _on_the_machine(tmp_path) == before
    _testbed(apart, "down")
