"""The node tier: a whole cluster on this machine, in namespaces of its own. Pods run.

There is one on a machine: it is the only holder of containerd's images in the cache and of our control group.
"""

import os
import shutil
import sys
from pathlib import Path

from testbed import cgroups, containerd, network, node_parts, nodes, store
from testbed.claims import NodeCluster
from testbed.control_plane import Addresses, ControlPlane, Options
from testbed.debian import need_tools
from testbed.enclosure import Enclosure, may_enclose
from testbed.errors import TestbedError, Unfit
from testbed.images import need_images, need_pause
from testbed.locking import locked
from testbed.nodes import JoinedNode
from testbed.places import cache, state
from testbed.process import Process
from testbed.programs import program
from testbed.readiness import answers
from testbed.waiting import until


def start(*, die_with_us: bool, bare: bool = False, joined: int = 0) -> NodeCluster:
    """Builds what is missing, starts a cluster and returns once it can run pods.

    A cluster that was left running is taken as it is; it only gets the images that changed since.

    Args:
        die_with_us: The cluster ends with this process, however it ends.
        bare: Without the project's images.
        joined: How many nodes it has beside the first one.

    Raises:
        Unfit: This machine can't have one; says why.
        TestbedError: One of another test run is there, or it could not be started; or one was left running,
            and more nodes than one are wanted.
    """
    check_machine()
    images = need_pause() if bare else need_images()
    with locked(state() / "node.lock"):
        kept = running()
        if kept:
            if owner():
                raise TestbedError(
                    "another test run has its cluster on this machine, and there is room for one"
                )
            if joined:
                raise TestbedError("a cluster of one node was left running here: run `make cluster-down`")
            store.add(containerd.Client(Enclosure(_folder())), images)
            return kept
        _clean()
        store.fill(images, _folder().with_name("store"))
        store.reset()
        try:
            return _start(_folder(), die_with_us=die_with_us, joined=joined)
        except BaseException:
            _clean(keep_logs=True)
            raise


def prepare() -> None:
    """Does all of `start` that is slow, and starts nothing."""
    check_machine()
    images = need_images()
    for name in ("kubelet", "kube-proxy", "kube-scheduler", "coredns", "helm"):
        program(name)
    with locked(state() / "node.lock"):
        if not running():
            _clean()
            store.fill(images, _folder().with_name("store"))


def running() -> NodeCluster | None:
    """The cluster that runs on this machine."""
    if not Enclosure(_folder()).alive or not (_folder() / "kubeconfig").exists():
        return None
    return _cluster(_folder())


def owner() -> Process | None:
    """The test run that a cluster belongs to, if it belongs to one that lives."""
    found = Process.read(_folder() / "owner.json")
    return found if found and found.alive else None


def stop() -> None:
    """Ends the cluster and cleans up after it, or after one that was killed; nothing to do is fine."""
    if not state().exists() and not cgroups.leftovers():
        return
    with locked(state() / "node.lock"):
        _clean()


def stop_own() -> None:
    """Ends the cluster if it is this process's own, and not one that was left running."""
    found = owner()
    if found and found.pid == os.getpid():
        stop()


def check_machine() -> None:
    """Raises Unfit if a node can't run here."""
    if sys.platform != "linux":
        raise Unfit("a node runs on Linux only")
    if os.geteuid() != 0:
        raise Unfit("a node needs root: run `make cluster-up` as root, or use kind")
    need_tools("openssl", "ip", "iptables", "conntrack", "unshare", "mount")
    if not may_enclose():
        raise Unfit("root may not make namespaces here: in a container, run it with --privileged")


def _start(folder: Path, *, die_with_us: bool, joined: int) -> NodeCluster:
    folder.mkdir(parents=True, mode=0o755)
    if die_with_us:
        Process.of(os.getpid()).write(folder / "owner.json")
    cgroups.create()
    net = network.choose()
    enclosure = Enclosure.create(folder, die_with_us=die_with_us)
    store.take(enclosure)
    network.connect(net, enclosure)
    addresses = Addresses(net.node, 6443, 2379, 2380, net.services, net.kubernetes_service)
    plane = ControlPlane(folder, addresses, Options())
    node = node_parts.Node(node_parts.NODE, folder, net.of(0), f"/{cgroups.name()}")
    node_parts.write_cni(node)
    for part in (plane.etcd(), plane.api_server(), containerd.component(folder, store.root())):
        enclosure.start(part)
    _until_ready(enclosure, f"{addresses.server}/readyz", plane.authority, seconds=90)
    others = [nodes.prepare(number, plane, enclosure, net, die_with_us=die_with_us)
              for number in range(1, joined + 1)]  # fmt: skip
    cluster = _cluster(folder, *others)
    cluster.apply(node_parts.DNS_ROLE)
    containerd.Client(enclosure).wait()
    for part in (
        plane.controller_manager(), node_parts.scheduler(plane), node_parts.kubelet(plane, node),
        node_parts.kube_proxy(plane, node), node_parts.coredns(plane, net),
    ):  # fmt: skip
        enclosure.start(part)
    _until_ready(enclosure, f"http://{net.node}:{node_parts.KUBE_PROXY_HEALTH}/healthz", None, seconds=60)
    _until_ready(enclosure, f"http://{net.node}:{node_parts.DNS_READY}/ready", None, seconds=60)
    for other in others:
        other.boot()
        _until_ready(other.enclosure, other.health, None, seconds=60)
    for name in (node.name, *(other.name for other in others)):
        cluster.kubectl("wait", "--for=create", f"node/{name}", "--timeout=60s", timeout=70)
        cluster.kubectl("wait", "--for=condition=Ready", f"node/{name}", "--timeout=60s", timeout=70)
    cluster.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=60s", timeout=70)
    return cluster


def _until_ready(enclosure: Enclosure, url: str, authority: Path | None, *, seconds: float) -> None:
    ask = answers(url, authority=authority)
    started = enclosure.living()

    def look() -> bool:
        enclosure.check(*started)
        return ask()

    until(look, what=f"an answer of {url}", seconds=seconds)


def _cluster(folder: Path, *joined: JoinedNode) -> NodeCluster:
    return NodeCluster(
        folder / "kubeconfig", folder=folder, joined=joined, kubectl=program("kubectl"), helm=program("helm")
    )


def _clean(*, keep_logs: bool = False) -> None:
    """Ends and deletes all that there is of a cluster of ours, in any state."""
    for folder in (*_folder().glob("nodes/*"), _folder(), _folder().with_name("store")):
        Enclosure(folder).destroy()
    network.disconnect()
    cgroups.remove()
    if keep_logs and (_folder() / "logs").exists():
        kept = cache() / "logs-of-a-failed-start"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(_folder() / "logs", kept)
    for folder in (_folder(), _folder().with_name("store")):
        shutil.rmtree(folder, ignore_errors=True)


def _folder() -> Path:
    return state() / "node"
