"""The control-plane tier: a whole API without a node. Tests set the states of pods themselves.

Everything is a plain process on 127.0.0.1. No root, nothing on the machine is changed, and any number of them
run side by side, each in a folder of its own under `places.state()`.
"""

import os
import shutil

from testbed.cluster import Cluster
from testbed.component import Component, Plain, check_alive, processes
from testbed.control_plane import Addresses, ControlPlane, Options
from testbed.debian import need_tools
from testbed.places import state
from testbed.ports import free_ports
from testbed.process import Process
from testbed.programs import program
from testbed.readiness import answers
from testbed.waiting import until

KEPT = "control-plane"  # the one that `python -m testbed control-plane` leaves running
# Without a kubelet, these would take nodes and pods that a test made for dead.
ABSENT = ("-node-lifecycle-controller", "-taint-eviction-controller", "-pod-garbage-collector-controller")


class PlainCluster(Cluster):
    """A control plane whose parts are processes of this machine."""

    def __init__(self, plane: ControlPlane, runner: Plain) -> None:
        super().__init__(plane.admin, kubectl=program("kubectl"))
        self._plane = plane
        self._runner = runner

    def kill_api_server(self) -> None:
        """Ends the API server as a crash would."""
        processes(self._plane.folder)["kube-apiserver"].kill()

    def start_api_server(self) -> None:
        """Starts it again; returns once it is ready."""
        launch(self._plane, self._runner, [self._plane.api_server()])


def start(name: str, *, die_with_us: bool, gates: tuple[str, ...] = (), served: str = "") -> PlainCluster:
    """Starts a control plane in the folder `name` and returns once its controllers work.

    Args:
        name: The folder under `places.state()`; all that it held before is ended and deleted.
        die_with_us: The control plane ends with this process, however it ends.
        gates: Feature gates that are off by default.
        served: A version of an API that isn't served by default.
    """
    need_tools("openssl")
    folder = state() / name
    stop(name)
    folder.mkdir(parents=True, mode=0o700)
    Process.of(os.getpid()).write(folder / "owner.json") if die_with_us else None
    api_port, etcd_port, peer_port = free_ports(3)
    addresses = Addresses("127.0.0.1", api_port, etcd_port, peer_port, "10.96.0.0/16", "10.96.0.1")
    # Debian's etcd can't serve WatchList. With it, a watch of kwok's, which begins with what is there, fails.
    opened = [f"{gate}=true" for gate in gates]
    server = (
        "--endpoint-reconciler-type=none",
        f"--feature-gates={','.join(['WatchList=false', *opened])}",
        *((f"--runtime-config={served}=true",) if served else ()),
    )
    manager = (f"--feature-gates={','.join(opened)}",) if gates else ()
    options = Options(api_server=server, controllers=("*", *ABSENT), controller_manager=manager)
    plane = ControlPlane(folder, addresses, options)
    runner = Plain(folder, die_with_us=die_with_us)
    launch(plane, runner, [plane.etcd(), plane.api_server()])
    runner.start(plane.controller_manager())
    cluster = PlainCluster(plane, runner)
    cluster.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=60s", timeout=70)
    return cluster


def launch(plane: ControlPlane, runner: Plain, parts: list[Component]) -> None:
    """Starts these parts of a control plane, and waits until its API server is ready."""
    started = {part.name: runner.start(part) for part in parts}
    ready = answers(f"{plane.addresses.server}/readyz", authority=plane.authority)

    def look() -> bool:
        for name, process in started.items():
            check_alive(plane.folder, process, name)
        return ready()

    until(look, what="an API server that is ready", seconds=90)


def running(name: str) -> Cluster | None:
    """The control plane in the folder `name`, if its API server lives."""
    folder = state() / name
    process = processes(folder).get("kube-apiserver")
    if process and process.alive and (folder / "kubeconfig").exists():
        return Cluster(folder / "kubeconfig", kubectl=program("kubectl"))
    return None


def stop(name: str) -> None:
    """Ends what runs in the folder `name` and deletes it; nothing to do is fine."""
    folder = state() / name
    for process in reversed(processes(folder).values()):
        process.kill()  # its data is deleted next: there is nothing to end gently
    shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Ends and deletes the control planes whose owner is gone: tests that were killed."""
    for file in state().glob("*/owner.json"):
        owner = Process.read(file)
        if owner is None or not owner.alive:
            stop(file.parent.name)
