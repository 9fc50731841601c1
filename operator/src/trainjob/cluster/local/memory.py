"""Memory limits on this machine: a control group for each pod, where the caller may make some (Linux).

The kernel then kills what uses more, and the agents see it as in a container. A group of cgroup v1 is made
below the caller's own; of v2 beside it, since a group with processes has no limits for groups below it.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from trainjob_trainer.contract.cgroup import MEMORY_LIMIT, OOM_KILLS, Controller, count_kills, places

_PROCESSES = Controller("memory", v1="cgroup.procs", v2="cgroup.procs")
_NAME = re.compile(r"trainjob-([1-9][0-9]{0,9})-.+")


def find_folder(root: Path = Path("/")) -> Path | None:
    """Return the folder in which groups can be made, or None; tests replace `root`.

    Groups that killed processes have left there are removed.
    """
    own = next((path.parent for path in places(_PROCESSES, root) if path.is_file()), None)
    if own is None:
        return None
    folder = own
    if (own / "cgroup.controllers").exists():
        folder = own.parent
        try:
            lent = (folder / "cgroup.subtree_control").read_text(encoding="ascii").split()
        except OSError:  # the root of what this process sees
            return None
        if "memory" not in lent:
            return None
    if not os.access(folder, os.W_OK) or not os.access(folder / "cgroup.procs", os.W_OK):
        return None
    for group in folder.iterdir():
        named = _NAME.fullmatch(group.name)
        if named is not None and not Path(f"/proc/{named[1]}").exists():
            with suppress(OSError):
                group.rmdir()
    return folder


class MemoryGroup:
    """The group of one pod; a process enters it by writing 0 to its `cgroup.procs`.

    Args:
        folder: see `find_folder`.
        pod: the pod's name.
        limit: the bytes that its processes may use.

    Raises:
        OSError: it can't be made.
    """

    def __init__(self, folder: Path, pod: str, limit: int) -> None:
        self.folder = folder / f"trainjob-{os.getpid()}-{pod}"
        self.folder.mkdir()
        for name in ("memory.swap.max", "memory.swappiness"):  # of v2 and v1: no swapping instead of a kill
            with suppress(OSError):
                self._write(name, 0)
        self.set_limit(limit)

    def set_limit(self, limit: int) -> None:
        """Let its processes use so many bytes."""
        is_v1 = (self.folder / MEMORY_LIMIT.v1).exists()
        self._write(MEMORY_LIMIT.v1 if is_v1 else MEMORY_LIMIT.v2, limit)

    def has_killed(self) -> bool:
        """Return whether the kernel has killed one of its processes for the limit."""
        return any(count_kills(self.folder / name) for name in (OOM_KILLS.v1, OOM_KILLS.v2))

    def remove(self) -> None:
        """Remove it; a group with processes stays."""
        with suppress(OSError):
            self.folder.rmdir()

    def _write(self, name: str, value: int) -> None:
        with (self.folder / name).open("r+", encoding="ascii") as file:
            file.write(str(value))
