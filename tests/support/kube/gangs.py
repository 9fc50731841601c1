"""Real schedulers, each as a process beside a control plane, and nodes for them that run nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from testbed import Cluster
from testbed.component import Component, Plain, check_alive
from testbed.ports import free_ports
from testbed.programs import module, program

from support.kube.real_kube import RealKubelet, await_crd
from trainjob.cluster.kube.resources import PODS

Manifest = dict[str, Any]

DEFAULT, COSCHEDULING, VOLCANO = "default-scheduler", "coscheduling", "volcano"
"""The names that pods have for Kubernetes' own scheduler, the one with coscheduling, and Volcano's."""

GROUPED = f"{DEFAULT} with PodGroups"
"""Kubernetes' own on a control plane that serves its PodGroups, from 1.37 on."""

CRDS = {
    "scheduler-plugins": "config/crd/bases/scheduling.x-k8s.io_podgroups.yaml",
    "volcano": "config/crd/volcano/bases/*.yaml",
}


def install_pod_groups(cluster: Cluster) -> None:
    """Create the CRDs of both kinds of PodGroup, and what else Volcano's scheduler reads."""
    files = [file for name, pattern in CRDS.items() for file in sorted(module(name).glob(pattern))]
    crds = [yaml.safe_load(file.read_text()) for file in files]
    for crd in crds:
        cluster.apply(crd)
    for crd in crds:
        await_crd(cluster, crd["metadata"]["name"])
    queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    cluster.apply({**queue, "metadata": {"name": "default"}, "spec": {"weight": 1}})
    # Volcano's controllers open a queue; they don't run here.
    is_open = {"status": {"state": "Open"}}
    words = ("queues.scheduling.volcano.sh", "default", "--type=merge", "--subresource=status")
    cluster.kubectl("patch", *words, "--patch", json.dumps(is_open))


def make_nodes(cluster: Cluster, count: int, cpus: int, **labels: str) -> None:
    """Create nodes that are ready and have this many CPUs each."""
    for number in range(count):
        name = f"node-{number}"
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
        cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": meta})
        room = {"cpu": str(cpus), "memory": "16Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        status = {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}
        cluster.kubectl("patch", "node", name, "--subresource=status", "--patch", json.dumps(status))
        # A new node has a taint, which a controller that doesn't run here would take off.
        cluster.kubectl("patch", "node", name, "--patch", json.dumps({"spec": {"taints": []}}))


@contextmanager
def running_scheduler(cluster: Cluster, name: str, folder: Path) -> Iterator[None]:
    """Run the scheduler of pods that name it."""
    folder.mkdir(parents=True)
    argv = _volcano(cluster, folder) if name == VOLCANO else _kubernetes(cluster, name, folder)
    process = Plain(folder, die_with_us=True).start(Component(name, argv))
    try:
        yield
        check_alive(folder, process, name)
    finally:
        process.kill()


def _kubernetes(cluster: Cluster, name: str, folder: Path) -> tuple[str, ...]:
    """Return the command of Kubernetes' scheduler, which scheduler-plugins' is with more plugins."""
    profile: Manifest = {"schedulerName": DEFAULT if name == GROUPED else name}
    if name == COSCHEDULING:
        gangs = [{"name": "Coscheduling"}]
        profile["plugins"] = {
            "multiPoint": {"enabled": gangs},
            "queueSort": {"enabled": gangs, "disabled": [{"name": "*"}]},
        }
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(cluster.kubeconfig)},
        "profiles": [profile],
    }
    file = folder / "scheduler.json"
    file.write_text(json.dumps(configuration))
    (port,) = free_ports(1)
    binary = program("scheduler-plugins" if name == COSCHEDULING else "kube-scheduler")
    # Of what ends a gang's wait, this version of the plugin hears only of new pods and of changed PodGroups.
    again = "--pod-max-in-unschedulable-pods-duration=5s"
    gates = ("--feature-gates=GenericWorkload=true",) if name == GROUPED else ()
    return str(binary), f"--config={file}", f"--secure-port={port}", f"--cert-dir={folder}", again, *gates


def _volcano(cluster: Cluster, folder: Path) -> tuple[str, ...]:
    configuration = module("volcano") / "installer/helm/chart/volcano/config/volcano-scheduler.conf"
    return (
        str(program("volcano")),
        f"--kubeconfig={cluster.kubeconfig}",
        f"--scheduler-conf={configuration}",
        "--leader-elect=false",
        "--cache-dumper=false",
        f"--cache-dump-dir={folder}",
    )


class NodesKubelet(RealKubelet):
    """Sets the states of pods that have a node, and lets those go that are deleted."""

    async def _see_to(self, pod: Manifest) -> None:
        meta = pod["metadata"]
        if "deletionTimestamp" in meta:
            await self._admin.delete(PODS, meta["namespace"], meta["name"], uid=meta["uid"], grace_seconds=0)
        elif pod["spec"].get("nodeName"):
            await super()._see_to(pod)
