"""This container's limits and usage, from the kernel's control groups, version 1 or 2."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path

from trainjob_trainer.contract.cgroup import MEMORY_LIMIT, OOM_KILLS, Controller, count_kills, places


class OomCounter:
    """Whether the kernel has killed a process for the container's memory since the last `mark`.

    The constructor makes the first one.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._file = next((path for path in places(OOM_KILLS, root) if count_kills(path) is not None), None)
        self._before: int | None = None
        self.mark()

    def mark(self) -> None:
        """Count from now on."""
        self._before = None if self._file is None else count_kills(self._file)

    def limit(self) -> int | None:
        """Return the bytes that the container may use now, or None if that is unknown."""
        if self._file is None:
            return None
        name = MEMORY_LIMIT.v2 if self._file.name == OOM_KILLS.v2 else MEMORY_LIMIT.v1
        try:
            return int(self._file.with_name(name).read_text(encoding="ascii"))
        except (OSError, ValueError):  # "max"
            return None

    def changed(self) -> bool:
        """Return whether a process was killed since the last `mark`; False if that is unknown."""
        now = None if self._file is None else count_kills(self._file)
        return now is not None and self._before is not None and now > self._before


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
