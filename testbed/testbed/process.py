"""A process of ours, known by its number and its start time.

A number alone is not enough to end a process by: after a crash it may have gone to someone else's.
"""

import contextlib
import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from testbed.waiting import until


@dataclass(frozen=True)
class Process:
    """A process on this machine, unmistakably."""

    pid: int
    started: int  # clock ticks since boot: field 22 of /proc/<pid>/stat
    boot: str  # the machine's boot: start times count from it

    @classmethod
    def of(cls, pid: int) -> Self:
        """The living process of that number."""
        return cls(pid, _started(pid) or 0, _boot())

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """What `write` wrote; None if there is no such file or only half of one."""
        try:
            return cls(**json.loads(file.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, file: Path) -> None:
        """Remembers it in a file."""
        file.write_text(json.dumps(asdict(self)))

    @property
    def alive(self) -> bool:
        """Whether it still runs. A zombie doesn't."""
        return self.boot == _boot() and _started(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        """Signals it, if it still runs."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once; returns when it is gone."""
        self.send(signal.SIGKILL)
        until(self._gone, what=f"the end of process {self.pid} after SIGKILL", seconds=30, every=0.01)

    def _gone(self) -> bool:
        with contextlib.suppress(ChildProcessError):  # it may be another's child
            os.waitpid(self.pid, os.WNOHANG)  # ours: leave no zombie
        return not self.alive


def _started(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may contain anything
    is_gone = fields[0] == "X" or (fields[0] == "Z" and int(fields[17]) <= 1)  # other threads keep its ports
    return None if is_gone else int(fields[19])


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
