"""The controller's memory: what is freed is given back, though something newer stays."""

from __future__ import annotations

import asyncio
import platform
import subprocess
import sys
from contextlib import suppress

import pytest

from support.world.jobs import build_job
from trainjob.cluster.kube.cache import Store
from trainjob.controller.operator import return_memory

PIECES, SIZE = 40_000, 2_000

SCRIPT = f"""
import asyncio, contextlib, pathlib
from trainjob.controller.operator import return_memory

def resident_kib():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])

async def for_a_while():
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(return_memory(0.01), 0.2)

pieces = [bytes({SIZE}) for _ in range({PIECES})]
newer = bytes({SIZE})
full = resident_kib()
del pieces
freed = resident_kib()
asyncio.run(for_a_while())
print(full - freed, full - resident_kib())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no malloc_trim")
def test_freed_memory_is_returned_although_something_newer_stays() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    at_once, in_the_end = map(int, done.stdout.split())
    size = PIECES * SIZE // 1024
    assert at_once < size / 2, "the test shows nothing: glibc has returned it by itself"
    assert in_the_end > 0.9 * size


async def test_what_was_read_long_ago_is_kept_in_its_small_form_only() -> None:
    """The latest objects that were read may be gone, and would stay for as long as no others are read."""
    store = Store(lambda _: None, lambda _: None)
    job = build_job()
    store.put({**job, "metadata": {**job["metadata"], "uid": "a", "resourceVersion": "1"}})
    (place,) = store.names()
    read = store.get(place)
    assert store.get(place) is read
    with suppress(TimeoutError):
        await asyncio.wait_for(return_memory(0.01), 0.2)
    assert store.get(place) is not read
    assert store.get(place) == read
