"""Memory limits of pods on this machine: a control group each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from support.local.local_cluster import build_pod, ended, local_cluster, python, ref_of
from trainjob.api.errors import trainer_of
from trainjob.cluster import Refused
from trainjob.cluster.local.memory import MemoryGroup, find_folder

MIB = 2**20
HOARD = """
import os
print("waits", flush=True)
while not os.path.exists("go"): pass
hoard = bytes([1]) * 2**20 * int(os.environ["MIB"])
print("has", len(hoard), flush=True)
"""


def greedy_pod(mebibytes: int, limit: str) -> dict[str, Any]:
    resources = {"limits": {"memory": limit}}
    env = [{"name": "MIB", "value": str(mebibytes)}]
    return build_pod(python(HOARD), env=env, container={"resources": resources})


def groups() -> list[str]:
    """The groups of this process's runs."""
    folder = find_folder()
    assert folder is not None
    return [group.name for group in folder.glob(f"trainjob-{os.getpid()}-*")]


@pytest.mark.parametrize(("resized", "code", "reason"), [(None, 137, "OOMKilled"), ("160Mi", 0, "Completed")])
async def test_what_uses_more_is_killed_unless_the_pod_is_resized(
    tmp_path: Path, resized: str | None, code: int, reason: str
) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        pod = greedy_pod(80, "64Mi")
        assert cluster.limits_memory
        assert not any("memory" in note for note in cluster.prepare([pod]))
        await cluster.create(pod)
        await lines.wait_for("waits")
        (stored,) = cluster.snapshot().pods
        if resized is not None:
            resources = {"limits": {"memory": resized}}
            patch = {"spec": {"containers": [{"name": "trainer", "resources": resources}]}}
            await cluster.patch(ref_of(stored), "", patch, "resize")
            (stored,) = cluster.snapshot().pods
            assert trainer_of(stored["spec"])["resources"]["limits"]["memory"] == resized
        (tmp_path / "go").touch()
        end = await ended(cluster)
        assert (end["exitCode"], end["reason"]) == (code, reason)
        assert not groups()
        with pytest.raises(Refused):
            await cluster.patch(ref_of(stored), "", {"metadata": {}})


async def test_a_pod_without_a_limit_has_no_group(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_pod(python(HOARD)))
        await lines.wait_for("waits")
        assert not groups()


async def test_where_no_group_can_be_made_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainjob.cluster.local.sandbox.find_folder", lambda: None)
    async with local_cluster(tmp_path) as (cluster, _):
        assert not cluster.limits_memory
        line = "memory limits are not enforced: this user can't make control groups here"
        assert line in cluster.prepare([greedy_pod(80, "64Mi")])
        assert line not in cluster.prepare([build_pod()])
        await cluster.create(greedy_pod(80, "64Mi"))
        (tmp_path / "go").touch()
        assert (await ended(cluster))["exitCode"] == 0


LAYOUTS = {
    "v1: below the own group": (
        "4:memory:/a\n",
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        {"sys/fs/cgroup/memory/a/cgroup.procs": ""},
        "sys/fs/cgroup/memory/a",
    ),
    "v2: beside the own group": (
        "0::/user/app.slice/shell.scope\n",
        "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        {
            "sys/fs/cgroup/user/app.slice/cgroup.procs": "",
            "sys/fs/cgroup/user/app.slice/cgroup.subtree_control": "memory pids\n",
            "sys/fs/cgroup/user/app.slice/shell.scope/cgroup.procs": "",
            "sys/fs/cgroup/user/app.slice/shell.scope/cgroup.controllers": "memory pids\n",
        },
        "sys/fs/cgroup/user/app.slice",
    ),
    "v2: no memory for the groups there": (
        "0::/session.scope\n",
        "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        {
            "sys/fs/cgroup/cgroup.subtree_control": "pids\n",
            "sys/fs/cgroup/session.scope/cgroup.procs": "",
            "sys/fs/cgroup/session.scope/cgroup.controllers": "pids\n",
        },
        None,
    ),
    "v2: the root of a container": (
        "0::/\n",
        "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        {"sys/fs/cgroup/cgroup.procs": "", "sys/fs/cgroup/cgroup.controllers": "memory\n"},
        None,
    ),
    "none": ("", "", {}, None),
}


@pytest.mark.parametrize(("own", "mounts", "files", "place"), LAYOUTS.values(), ids=LAYOUTS)
def test_where_groups_are_made(
    tmp_path: Path, own: str, mounts: str, files: dict[str, str], place: str | None
) -> None:
    for name, text in {"proc/self/cgroup": own, "proc/self/mountinfo": mounts, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert find_folder(tmp_path) == (tmp_path / place if place else None)


def test_groups_of_killed_runs_are_removed() -> None:
    folder = find_folder()
    assert folder is not None
    own = MemoryGroup(folder, "mine", 64 * MIB)
    stale = folder / "trainjob-4194305-digits"  # above the kernel's largest process number
    stale.mkdir()
    find_folder()
    assert not stale.exists()
    assert own.folder.exists()
    own.remove()
    assert not own.folder.exists()
