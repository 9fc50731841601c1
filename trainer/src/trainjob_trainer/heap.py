"""Memory that a step frees is kept for the next one, instead of being given back and asked for again.

A step on CPUs allocates and frees its activations each time. What is larger than 32 MB, the C library gets
from the kernel anew whenever it is asked (mallopt(3): M_MMAP_THRESHOLD), and the kernel clears every page of
it: for convolutions over 64 images of 32x32x128 that is a fifth to a third of the whole step. Kept, it costs
memory that otherwise would be free between two steps.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""The names of glibc's malloc.h."""
KEPT_BYTES = 2**31 - 1
"""As much free memory as may lie at the heap's end; the largest number that mallopt takes."""
_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
_TUNABLES = ("glibc.malloc.mmap_max", "glibc.malloc.mmap_threshold", "glibc.malloc.trim_threshold")


def keep_freed_memory(env: Mapping[str, str] | None = None, library: Any = None) -> bool:
    """From now on let this process keep what it frees; where the C library can't do that, change nothing.

    Args:
        env: the process's environment, replaced by tests; who has set one of glibc's own variables for this
            is left alone.
        library: the C library, replaced by tests.

    Returns:
        Whether it does so now.
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
