"""Memory use of this process, and use of its GPUs as NVIDIA's driver reports it."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainjob_trainer.environment import is_without

_KIBIBYTE = 1024
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Machine:
    """Reads memory and GPU use; figures that are not available are left out without a message."""

    def __init__(self, env: Mapping[str, str] = os.environ, load: Callable[[], Any] | None = None) -> None:
        self._nvml: Any = None
        self._gpus: list[Any] = []
        with contextlib.suppress(Exception):  # no package, no driver or no GPU
            self._nvml = load() if load else importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._gpus = list(_visible(self._nvml, env.get(_VISIBLE)))

    def figures(self) -> dict[str, float]:
        """Return the available figures by name.

        `host_memory_bytes` is the peak memory of the process. For each GPU, `gpu_0/memory_bytes` are in use
        by all processes, `gpu_0/memory_share` is their share of its memory, and `gpu_0/utilization` the share
        of the time in which it computed anything. Shares are from 0 to 1.
        """
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        figures = {"host_memory_bytes": float(most) * (1 if sys.platform == "darwin" else _KIBIBYTE)}
        for number, gpu in enumerate(self._gpus):
            figures.update({f"gpu_{number}/{name}": value for name, value in self._of(gpu)})
        return figures

    def _of(self, gpu: Any) -> Iterator[tuple[str, float]]:
        with contextlib.suppress(Exception):  # the driver is being replaced
            memory = self._nvml.nvmlDeviceGetMemoryInfo(gpu)
            yield "memory_bytes", float(memory.used)
            yield "memory_share", memory.used / memory.total
        with contextlib.suppress(Exception):  # a MIG instance has no such figure
            yield "utilization", self._nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100


def _visible(nvml: Any, visible: str | None) -> Iterator[Any]:
    """Yield the GPUs visible to CUDA, in its order: all, or those named by number or UUID."""
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
            return  # like CUDA, which stops at an invalid entry such as -1


# Freed memory is kept for the next step.
#
# Each step on CPUs allocates and frees its activations. The C library requests each block larger than 32 MB
# from the kernel (mallopt(3): M_MMAP_THRESHOLD), and the kernel clears every page of it. For convolutions
# over 64 images of 32x32x128 that takes a fifth to a third of the whole step. In return, kept memory is not
# free between two steps.


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Named as in glibc's malloc.h."""
KEPT_BYTES = 2**31 - 1
"""Free memory that may stay at the end of the heap; the largest number that mallopt takes."""
_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
_TUNABLES = ("glibc.malloc.mmap_max", "glibc.malloc.mmap_threshold", "glibc.malloc.trim_threshold")


def keep_freed_memory(env: Mapping[str, str] | None = None, library: Any = None) -> bool:
    """Make this process keep the memory that it frees, and return whether it does.

    Nothing changes if the C library can't do that, or if the user has set one of glibc's own variables for
    it (mallopt(3), ENVIRONMENT VARIABLES) or has switched it off.
    """
    env = os.environ if env is None else env
    tunables = env.get("GLIBC_TUNABLES", "")
    is_chosen = any(env.get(name) for name in _VARIABLES) or any(name in tunables for name in _TUNABLES)
    if is_chosen or is_without("memory", env):
        return False
    with contextlib.suppress(OSError, AttributeError):
        mallopt = (library or ctypes.CDLL(None)).mallopt  # only glibc has it
        return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
    return False
