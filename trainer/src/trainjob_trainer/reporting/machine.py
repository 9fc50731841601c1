"""What this process uses of its machine: memory, and its GPUs as NVIDIA's driver sees them."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_KIBIBYTE = 1024
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Machine:
    """Read now and then; what can't be had is left out, without a word."""

    def __init__(self, env: Mapping[str, str] = os.environ, load: Callable[[], Any] | None = None) -> None:
        self._nvml: Any = None
        self._gpus: list[Any] = []
        with contextlib.suppress(Exception):  # no package, no driver, no GPU: nothing to tell of
            self._nvml = (load or _load)()
            self._nvml.nvmlInit()
            self._gpus = list(_visible(self._nvml, env.get(_VISIBLE)))

    def figures(self) -> dict[str, float]:
        """Return what is known, by name.

        `host_memory_bytes` is the most that the process has had. Of each GPU, `gpu_0/memory_bytes` are in
        use, by whomever, `gpu_0/memory_share` is that part of its memory, and `gpu_0/utilization` the part
        of the time in which it computed anything. Shares are from 0 to 1.
        """
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        figures = {"host_memory_bytes": float(most) * (1 if sys.platform == "darwin" else _KIBIBYTE)}
        for number, gpu in enumerate(self._gpus):
            figures.update({f"gpu_{number}/{name}": value for name, value in self._of(gpu)})
        return figures

    def _of(self, gpu: Any) -> Iterator[tuple[str, float]]:
        with contextlib.suppress(Exception):  # a driver that is being replaced
            memory = self._nvml.nvmlDeviceGetMemoryInfo(gpu)
            yield "memory_bytes", float(memory.used)
            yield "memory_share", memory.used / memory.total
        with contextlib.suppress(Exception):  # a part of a GPU (MIG) has no such figure
            yield "utilization", self._nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100


def resident_bytes() -> int:
    """Return the memory that this process has now; 0 where there is no `/proc`."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize()
    return 0


def _load() -> Any:
    return importlib.import_module("pynvml")


def _visible(nvml: Any, visible: str | None) -> Iterator[Any]:
    """The GPUs that CUDA shows this process, in its order: all, or those named by number or UUID."""
    if visible is None:
        for index in range(nvml.nvmlDeviceGetCount()):
            yield nvml.nvmlDeviceGetHandleByIndex(index)
        return
    for name in filter(None, (part.strip() for part in visible.split(","))):
        if name.startswith(("GPU-", "MIG-")):
            yield nvml.nvmlDeviceGetHandleByUUID(name)
        elif name.isdigit():
            yield nvml.nvmlDeviceGetHandleByIndex(int(name))
        else:
            return  # as CUDA does at -1 and the like


# Memory that a step frees is kept for the next one, instead of being given back and asked for again.
#
# A step on CPUs allocates and frees its activations each time. What is larger than 32 MB, the C library
# gets from the kernel anew whenever it is asked (mallopt(3): M_MMAP_THRESHOLD), and the kernel clears every
# page of it: for convolutions over 64 images of 32x32x128 that is a fifth to a third of the whole step.
# Kept, it costs memory that otherwise would be free between two steps.


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""The names of glibc's malloc.h."""
KEPT_BYTES = 2**31 - 1
"""As much free memory as may lie at the heap's end; the largest number that mallopt takes."""
_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
_TUNABLES = ("glibc.malloc.mmap_max", "glibc.malloc.mmap_threshold", "glibc.malloc.trim_threshold")


def keep_freed_memory(env: Mapping[str, str] | None = None, library: Any = None) -> bool:
    """From now on let this process keep what it frees; where the C library can't do that, change nothing.

    If the user has set one of glibc's own variables for this, nothing is changed either. Returns whether it
    keeps memory now.
    """
    if is_set_by_user(os.environ if env is None else env):
        return False
    with contextlib.suppress(OSError, AttributeError):
        mallopt = (library or ctypes.CDLL(None)).mallopt  # glibc's; others have none
        return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
    return False


def give_back(library: Any = None) -> None:
    """Give back what is kept, once: after something that needs more than any step does."""
    with contextlib.suppress(OSError, AttributeError):
        (library or ctypes.CDLL(None)).malloc_trim(0)


def is_set_by_user(env: Mapping[str, str]) -> bool:
    """Whether the environment says by itself how glibc is to do it (mallopt(3), ENVIRONMENT VARIABLES)."""
    tunables = env.get("GLIBC_TUNABLES", "")
    return any(env.get(name) for name in _VARIABLES) or any(name in tunables for name in _TUNABLES)
