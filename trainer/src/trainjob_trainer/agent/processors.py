"""As many threads as the container may use processors.

TensorFlow counts the machine's. In a container with a limit of 2 on a machine of 64 it starts 64 threads, and
the kernel stops all of them for most of the time (cpu.cfs_quota_us; cpu.max, kernel documentation:
admin-guide/cgroup-v2).
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path

from trainjob_trainer.agent.cgroup import Controller, places

_QUOTA = Controller("cpu", v1="cpu.cfs_quota_us", v2="cpu.max")
_V1_PERIOD = "cpu.cfs_period_us"
LEAST_THREADS = {"TF_NUM_INTRAOP_THREADS": 1, "TF_NUM_INTEROP_THREADS": 2, "OMP_NUM_THREADS": 1}
"""What TensorFlow and NumPy's libraries read when the program sets nothing, and how many it takes at least.

Between operations there have to be two: one may wait in a data pipeline's Python while a collective goes on.
"""


def thread_variables(
    env: Mapping[str, str], *, root: Path = Path("/"), processors: int | None = None
) -> dict[str, str]:
    """Return what to add to a training process's environment; nothing without a limit below the machine.

    Args:
        env: its environment; what the user has set stays.
        root: where the file system begins, replaced by tests.
        processors: that the process may run on, replaced by tests.
    """
    limit = processor_limit(root)
    if limit is None or limit >= (processors or _processors()):
        return {}
    threads = math.ceil(limit)
    return {name: str(max(least, threads)) for name, least in LEAST_THREADS.items() if not env.get(name)}


def processor_limit(root: Path = Path("/")) -> float | None:
    """Return how many processors' time the container may use, or None: all there are, or nobody says."""
    for path in places(_QUOTA, root):
        with contextlib.suppress(OSError, ValueError):
            return _limit(path)
    return None


def _limit(path: Path) -> float | None:
    words = path.read_text(encoding="ascii").split()
    if path.name == _QUOTA.v1:
        words += path.with_name(_V1_PERIOD).read_text(encoding="ascii").split()
    quota, period = words
    if quota in ("max", "-1"):
        return None
    return int(quota) / int(period) if int(quota) > 0 < int(period) else None


def _processors() -> int:
    with contextlib.suppress(AttributeError):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
