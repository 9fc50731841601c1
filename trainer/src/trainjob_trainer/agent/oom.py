"""Whether the kernel has killed a process of this container for want of memory.

Its counter is `oom_kill` in `memory.events` (cgroup v2, kernel documentation: admin-guide/cgroup-v2) or in
`memory.oom_control` (v1, since Linux 4.13) of the container's own cgroup.
"""

from __future__ import annotations

from pathlib import Path

from trainjob_trainer.agent.cgroup import Controller, places

_COUNTER = Controller("memory", v1="memory.oom_control", v2="memory.events")


class OomCounter:
    """The kernel's count of such kills, compared with an earlier look."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Find the counter below `root`, which tests replace, and take the first look."""
        self._file = next((path for path in places(_COUNTER, root) if _count(path) is not None), None)
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
