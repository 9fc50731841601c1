"""This container's limits and usage, from the kernel's control groups, version 1 or 2."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Controller:
    """A file of one controller, called `v1` in cgroup v1 and `v2` in v2."""

    name: str
    v1: str
    v2: str


def places(controller: Controller, root: Path = Path("/")) -> Iterator[Path]:
    """Yield the likely paths of the file for this process, the surest first; tests replace `root`."""
    groups = list(_groups(root))
    for mount, mount_root, controllers in _mounts(root):
        is_v2 = controllers is None
        name = controller.v2 if is_v2 else controller.v1
        if not is_v2 and controller.name not in (controllers or ()):
            continue
        folder = root / mount.lstrip("/")
        for group_controllers, group in groups:
            if (controller.name in group_controllers) if not is_v2 else group_controllers == [""]:
                yield folder / _below(group, mount_root) / name
        yield folder / name  # in a cgroup namespace, the container's cgroup is the root
    yield root / "sys/fs/cgroup" / controller.v2
    yield root / "sys/fs/cgroup" / controller.name / controller.v1


def _groups(root: Path) -> Iterator[tuple[list[str], str]]:
    """Yield this process's cgroups: controllers ([""] for v2) and path."""
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        yield controllers.split(","), path


def _mounts(root: Path) -> Iterator[tuple[str, str, list[str] | None]]:
    """Yield the cgroup file systems: mount point, mounted cgroup, controllers (None for v2)."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        path = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        yield path, fields[3], kind[2].split(",") if kind[0] == "cgroup" else None


def _below(group: str, mount_root: str) -> str:
    """Return the path of a cgroup relative to the mounted one."""
    top = mount_root.rstrip("/")
    if group == top or group.startswith(f"{top}/"):
        return group[len(top) :].lstrip("/")
    return "."


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


# Kills by the kernel because the container's memory is used up.
#
# Its counter is `oom_kill` in `memory.events` (cgroup v2, kernel documentation: admin-guide/cgroup-v2) or in
# `memory.oom_control` (v1, since Linux 4.13) of the container's own cgroup.


_COUNTER = Controller("memory", v1="memory.oom_control", v2="memory.events")


class OomCounter:
    """The kernel's count of such kills since the last `mark`; the constructor makes the first one."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._file = next((path for path in places(_COUNTER, root) if _count(path) is not None), None)
        self._before: int | None = None
        self.mark()

    def mark(self) -> None:
        """Count from now on."""
        self._before = None if self._file is None else _count(self._file)

    def limit(self) -> int | None:
        """Return the bytes that the container may use now, or None if that is unknown."""
        if self._file is None:
            return None
        name = "memory.max" if self._file.name == _COUNTER.v2 else "memory.limit_in_bytes"
        try:
            return int(self._file.with_name(name).read_text(encoding="ascii"))
        except (OSError, ValueError):  # "max"
            return None

    def changed(self) -> bool:
        """Return whether a process was killed since the last `mark`; False if that is unknown."""
        now = None if self._file is None else _count(self._file)
        return now is not None and self._before is not None and now > self._before


def _count(path: Path) -> int | None:
    try:
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None


# Threads by the container's limit of processors.
#
# TensorFlow counts the machine's processors. With a limit of 2 on a machine of 64 it starts 64 threads, and
# the kernel throttles them for most of the time (cpu.cfs_quota_us; cpu.max, kernel documentation:
# admin-guide/cgroup-v2).


_QUOTA = Controller("cpu", v1="cpu.cfs_quota_us", v2="cpu.max")
_V1_PERIOD = "cpu.cfs_period_us"
LEAST_THREADS = {"TF_NUM_INTRAOP_THREADS": 1, "TF_NUM_INTEROP_THREADS": 2, "OMP_NUM_THREADS": 1}
"""The variables that TensorFlow and NumPy's libraries read unless the program sets a number, and minima.

TensorFlow needs two inter-op threads: one may wait in a data pipeline's Python while a collective runs.
"""


def thread_variables(
    env: Mapping[str, str], *, root: Path = Path("/"), processors: int | None = None
) -> dict[str, str]:
    """Return additions to a training process's environment; none without a limit below the machine's.

    Variables that the user has set in `env` stay. Tests replace `root` and `processors`.
    """
    limit = processor_limit(root)
    if limit is None or limit >= (processors or _processors()):
        return {}
    threads = math.ceil(limit)
    return {name: str(max(least, threads)) for name, least in LEAST_THREADS.items() if not env.get(name)}


def processor_limit(root: Path = Path("/")) -> float | None:
    """Return the container's limit of processors; None if it has none or it is unknown."""
    for path in places(_QUOTA, root):
        with contextlib.suppress(OSError, ValueError):
            return _limit(path)
    return None


def _limit(path: Path) -> float | None:
    fields = path.read_text(encoding="ascii").split()
    if path.name == _QUOTA.v1:
        fields += path.with_name(_V1_PERIOD).read_text(encoding="ascii").split()
    quota, period = fields
    if quota in ("max", "-1"):
        return None
    return int(quota) / int(period) if int(quota) > 0 < int(period) else None


def _processors() -> int:
    with contextlib.suppress(AttributeError):  # it is missing on some systems
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
