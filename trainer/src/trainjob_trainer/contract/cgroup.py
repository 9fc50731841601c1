"""Where a process finds the files of its kernel control groups, version 1 or 2."""

from __future__ import annotations

from collections.abc import Iterator
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


MEMORY_LIMIT = Controller("memory", v1="memory.limit_in_bytes", v2="memory.max")
OOM_KILLS = Controller("memory", v1="memory.oom_control", v2="memory.events")
"""The file with a group's count of processes that the kernel killed for its limit (v1: since Linux 4.13)."""


def count_kills(path: Path) -> int | None:
    """Return the count, or None if the file has none."""
    try:
        for line in _lines(path):
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except ValueError:
        pass
    return None
