"""Memory of this process: it keeps what it frees."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping
from typing import Any

from trainjob_trainer.environment import is_without

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
