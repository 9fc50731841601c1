"""Whether the kernel has killed a process of this container for want of memory.

Its counter is `oom_kill` in `memory.events` (cgroup v2, kernel documentation: admin-guide/cgroup-v2) or in
`memory.oom_control` (v1, since Linux 4.13) of the container's own cgroup.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_USUAL = ("sys/fs/cgroup/memory.events", "sys/fs/cgroup/memory/memory.oom_control")


class OomCounter:
    """The kernel's count of such kills, compared with an earlier look."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Find the counter below `root`, which tests replace, and take the first look."""
        self._file = next((path for path in _candidates(root) if _count(path) is not None), None)
        self._before: int | None = None
        self.mark()

    def mark(self) -> None:
        """Count from now on."""
        self._before = None if self._file is None else _count(self._file)

    def changed(self) -> bool:
        """Whether a process was killed since the last `mark`; False where that can't be known."""
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


def _candidates(root: Path) -> Iterator[Path]:
    """The counter's likely places, the surest first."""
    groups = list(_groups(root))
    for mount, mount_root, controllers in _mounts(root):
        is_v2 = controllers is None
        name = "memory.events" if is_v2 else "memory.oom_control"
        if not is_v2 and "memory" not in (controllers or ()):
            continue
        folder = root / mount.lstrip("/")
        for group_controllers, group in groups:
            if ("memory" in group_controllers) if not is_v2 else group_controllers == [""]:
                yield folder / _below(group, mount_root) / name
        yield folder / name  # a namespace of its own shows the container's cgroup as the root
    for usual in _USUAL:
        yield root / usual


def _groups(root: Path) -> Iterator[tuple[list[str], str]]:
    """This process's cgroups: controllers ([""] for v2) and path."""
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        yield controllers.split(","), path


def _mounts(root: Path) -> Iterator[tuple[str, str, list[str] | None]]:
    """The cgroup file systems: mount point, which cgroup lies there, controllers (None for v2)."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        yield _unescaped(fields[4]), fields[3], kind[2].split(",") if kind[0] == "cgroup" else None


def _below(group: str, mount_root: str) -> str:
    """Where a cgroup lies below the one that is mounted."""
    top = mount_root.rstrip("/")
    if group == top or group.startswith(f"{top}/"):
        return group[len(top) :].lstrip("/")
    return "."


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _unescaped(path: str) -> str:
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
