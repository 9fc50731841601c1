"""What the C library is told, by whom, and that it does so."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from trainjob_trainer.reporting.machine import M_MMAP_MAX, M_TRIM_THRESHOLD, keep_freed_memory

BLOCK = 64 * 2**20
FAULTS = f"""
import resource, sys
from trainjob_trainer.reporting.machine import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory({{}})
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytearray({BLOCK})
before = faults()
for _ in range(5):
    block = bytearray({BLOCK})
    del block
print(faults() - before)
"""


def faults_of_five_blocks(how: str) -> int:
    return int(subprocess.check_output([sys.executable, "-c", FAULTS, how]))


def test_a_block_that_was_freed_is_taken_again_without_asking_the_kernel() -> None:
    pages = 5 * BLOCK // 4096
    assert faults_of_five_blocks("given back") > pages / 2 > 100 * faults_of_five_blocks("kept")


class Library:
    def __init__(self, answer: int) -> None:
        self.told: dict[int, int] = {}
        self._answer = answer

    def mallopt(self, name: int, value: int) -> int:
        self.told[name] = value
        return self._answer


def test_it_is_told_once_for_each_of_the_two() -> None:
    library = Library(1)
    assert keep_freed_memory({}, library)
    assert library.told == {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1}


@pytest.mark.parametrize("library", [Library(0), SimpleNamespace()])
def test_a_c_library_that_can_not_changes_nothing(library: Any) -> None:
    assert not keep_freed_memory({}, library)


@pytest.mark.parametrize(
    "env",
    [
        {"MALLOC_MMAP_THRESHOLD_": "65536"},
        {"MALLOC_TRIM_THRESHOLD_": "65536"},
        {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=10"},
        {"TRAIN_WITHOUT": "exit, memory"},
    ],
)
def test_who_has_decided_is_left_alone(env: dict[str, str]) -> None:
    library = Library(1)
    assert not keep_freed_memory(env, library)
    assert not library.told
