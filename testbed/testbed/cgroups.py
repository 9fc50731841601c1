"""A control group of our own, under which the kubelet puts its pods; on cgroup v1 one in every hierarchy."""

import contextlib
import os
from functools import partial
from pathlib import Path

from testbed.errors import TestbedError, Unfit
from testbed.places import mark
from testbed.waiting import until

MOUNTS = Path("/proc/self/mounts")
_SHARES_OF_A_PROCESSOR = 1024  # as the kubelet counts them, for a whole machine's pods


def name() -> str:
    """The group's name, below the root of every hierarchy."""
    return f"trainjob-testbed-{mark()}"


def name_for_docker() -> str:
    """The name of the group of Docker's containers: both clusters may run at a time."""
    return f"{name()}-docker"


def create(group: str | None = None) -> None:
    """Makes the group wherever the kubelet looks for it; the nodes' own unless another is named.

    Raises:
        Unfit: This machine's control groups can't be written to.
    """
    group = group or name()
    try:
        for root in _hierarchies():
            _make(root / group)
            _share_cpus(root / group)
        if _is_v2(Path("/sys/fs/cgroup")):
            _hand_down(Path("/sys/fs/cgroup"))
            _hand_down(Path("/sys/fs/cgroup") / group)
    except OSError as error:
        raise Unfit(
            f"no control group for the pods: {error}; run on the machine itself, or in a privileged "
            "container in the host's cgroup namespace"
        ) from error


def create_for(node: str) -> str:
    """Makes a group below it, for the pods of another node; its name, below the root of every hierarchy."""
    for root in _hierarchies():
        _make(root / name() / node)
    if _is_v2(Path("/sys/fs/cgroup")):
        _hand_down(Path("/sys/fs/cgroup") / name() / node)
    return f"/{name()}/{node}"


def remove(group: str | None = None) -> None:
    """Removes the group and all below it, once their processes are gone."""
    for left in leftovers(group):
        until(partial(_removed, left), what=f"the removal of {left}", seconds=20)


def leftovers(group: str | None = None) -> list[Path]:
    """The groups of ours that exist."""
    group = group or name()
    return [root / group for root in _hierarchies() if (root / group).exists()]


def _hierarchies() -> list[Path]:
    lines = [line.split() for line in MOUNTS.read_text().splitlines()]
    found = [Path(path) for _, path, kind, *_ in lines if kind in {"cgroup", "cgroup2"}]
    if not found:
        raise TestbedError("no control groups are mounted under /sys/fs/cgroup")
    return found


def _is_v2(root: Path) -> bool:
    return (root / "cgroup.controllers").exists()


def _hand_down(group: Path) -> None:
    """Lets the group's children use every controller that the group has."""
    wanted = (group / "cgroup.controllers").read_text().split()
    have = (group / "cgroup.subtree_control").read_text().split()
    for controller in wanted:
        if controller not in have:
            (group / "cgroup.subtree_control").write_text(f"+{controller}")


def _make(group: Path) -> None:
    """A new group of cgroup v1's cpuset has no processors, and takes no process before it has some."""
    group.mkdir(exist_ok=True)
    for setting in ("cpuset.cpus", "cpuset.mems"):
        own = group / setting
        if own.exists() and not _is_v2(group) and not own.read_text().strip():
            own.write_text((group.parent / setting).read_text())


def _share_cpus(group: Path) -> None:
    """On cgroup v1 each process beside the group counts as much as all pods together, if nothing is done."""
    own = group / "cpu.shares"
    if own.exists():
        own.write_text(str(_SHARES_OF_A_PROCESSOR * (os.cpu_count() or 1)))


def _removed(group: Path) -> bool:
    for path, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):  # a process in it is just ending
            Path(path).rmdir()
    return not group.exists()
