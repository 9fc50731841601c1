"""Where the kernel says what this container may use, and has used: its control group, version 1 or 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Controller:
    """A file of one controller.

    Attributes:
        name: the controller's.
        v1: the file's name in cgroup v1.
        v2: the same in v2.
    """

    name: str
    v1: str
    v2: str


def places(controller: Controller, root: Path = Path("/")) -> Iterator[Path]:
    """The file's likely places for this process, the surest first.

    Args:
        controller: which file.
        root: where the file system begins, replaced by tests.
    """
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
        yield folder / name  # a namespace of its own shows the container's cgroup as the root
    yield root / "sys/fs/cgroup" / controller.v2
    yield root / "sys/fs/cgroup" / controller.name / controller.v1


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
