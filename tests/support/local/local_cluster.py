"""Builders for the local cluster: pods of small programs, a place in a temporary folder, and waiting."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from trainjob.cluster import JobKey, ObjectRef, Snapshot
from trainjob.cluster.local import LocalCluster
from trainjob.cluster.local.machine import Machine

GUARD_SECONDS = 60.0
"""Against hanging only: nothing here depends on how long something takes."""

JOB: dict[str, Any] = {
    "apiVersion": "trainjob.dev/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "digits", "namespace": "default"},
    "spec": {},
}
KEY = JobKey("default", "digits")


def build_pod(
    command: Sequence[str] = ("true",),
    *,
    name: str = "digits-worker-0-aaaaaaaa",
    role: str = "worker",
    index: int = 0,
    env: Sequence[Mapping[str, Any]] = (),
    container: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a pod as the core renders one, with the output on claim `training`."""
    own = "/output/digits/evaluator" if role == "evaluator" else "/output/digits"
    ours = [
        {"name": "TRAINJOB_ATTEMPT", "value": "1"},
        {"name": "TRAINJOB_OUTPUT_DIR", "value": own},
        {"name": "TRAINJOB_CHECKPOINT_DIR", "value": "/output/digits/checkpoints"},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"trainjob.dev/role": role, "trainjob.dev/index": str(index)},
        },
        "spec": {
            "hostname": f"digits-{role}-{index}",
            "subdomain": "digits",
            "restartPolicy": "Never",
            "volumes": [{"name": "out", "persistentVolumeClaim": {"claimName": "training"}}],
            "containers": [
                {
                    "name": "trainer",
                    "image": "acme/digits:1",
                    "command": list(command),
                    "env": [*ours, *env],
                    "volumeMounts": [{"name": "out", "mountPath": "/output"}],
                    **(container or {}),
                }
            ],
            **(spec or {}),
        },
    }


def build_place(folder: Path, /, **changes: Any) -> Machine:
    """Return a machine whose runs go into `folder`."""
    values: dict[str, Any] = {
        "folder": folder / "runs",
        "job_folder": folder,
        "programs": Path(sys.executable).parent,
        "bootstrap": Path("/opt/bootstrap"),
        "environ": {"PATH": "/usr/bin:/bin", "HOME": str(folder)},
    }
    return Machine(**{**values, **changes})


def python(code: str) -> list[str]:
    """Return a command that runs `code` without any package, so that it starts fast."""
    return [sys.executable, "-I", "-S", "-c", code]


def state_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = pod["status"]["containerStatuses"][0]["state"]
    return state


def ref_of(pod: Mapping[str, Any], kind: str = "Pod") -> ObjectRef:
    meta = pod["metadata"]
    return ObjectRef(kind, meta["namespace"], meta["name"], meta["uid"])


async def until(cluster: LocalCluster, holds: Callable[[Snapshot], Any]) -> Snapshot:
    """Return the first snapshot for which `holds`, looking again whenever the cluster says so."""
    changed = asyncio.Event()
    cluster.watch(lambda _: changed.set())
    async with asyncio.timeout(GUARD_SECONDS):
        while True:
            changed.clear()
            snapshot = await cluster.observe(KEY)
            assert snapshot is not None
            if holds(snapshot):
                return snapshot
            await changed.wait()


async def ended(cluster: LocalCluster, name: str = "digits-worker-0-aaaaaaaa") -> dict[str, Any]:
    def _terminated(snapshot: Snapshot) -> bool:
        return any(p["metadata"]["name"] == name and "terminated" in state_of(p) for p in snapshot.pods)

    snapshot = await until(cluster, _terminated)
    pod = next(p for p in snapshot.pods if p["metadata"]["name"] == name)
    found: dict[str, Any] = state_of(pod)["terminated"]
    return found


class Lines:
    """The lines that replicas print, to be waited for."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self._changed = asyncio.Event()

    def __call__(self, replica: str, line: str) -> None:
        self.seen.append((replica, line))
        self._changed.set()

    async def wait_count(self, count: int) -> None:
        """Return once so many lines have been printed that hold a number (of a process, mostly)."""
        await self.wait_until(lambda seen: sum(any(map(str.isdigit, line)) for _, line in seen) >= count)

    async def wait_for(self, line: str, replica: str = "worker-0") -> None:
        """Return once `replica` has printed `line`."""
        await self.wait_until(lambda seen: (replica, line) in seen)

    async def wait_until(self, holds: Callable[[list[tuple[str, str]]], bool]) -> None:
        """Return once the lines printed so far are such that it `holds`."""
        async with asyncio.timeout(GUARD_SECONDS):
            while not holds(self.seen):
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def local_cluster(
    folder: Path, /, *, base_port: int | None = None, **machine: Any
) -> AsyncIterator[tuple[LocalCluster, Lines]]:
    """Give a cluster that keeps its runs in `folder`, and end it."""
    lines = Lines()
    cluster = LocalCluster(JOB, build_place(folder, **machine), base_port=base_port, on_line=lines)
    try:
        yield cluster, lines
    finally:
        await cluster.close()


def wait_gone(pid: int) -> None:
    """Return once the process has ended, whoever its parent is."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([handle], [], [], GUARD_SECONDS)
        assert ready, f"process {pid} is still there"
    finally:
        os.close(handle)


def is_alive(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
