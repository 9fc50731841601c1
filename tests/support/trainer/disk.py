"""File operations of a store of checkpoints that fail where a test says so."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from trainjob_trainer.checkpoint.files import Files

T = TypeVar("T")


class StillWaiting(BaseException):
    """A test has seen long enough that something waits."""


def impatient(seconds: float = 60.0) -> Callable[[float], None]:
    """Sleep for no time, and raise StillWaiting when that would have been more than `seconds` in all."""
    left = [seconds]

    def sleep(seconds: float) -> None:
        left[0] -= seconds
        if left[0] < 0:
            raise StillWaiting

    return sleep


class FaultyFiles(Files):
    """Asks before each operation, by its name, whether it fails: before it does anything, or after it."""

    def __init__(self, fault: Callable[[str, Path], Exception | None], *, is_after: bool = False) -> None:
        self._fault = fault
        self._is_after = is_after

    def _try(self, operation: Callable[..., T], path: Path, *arguments: Any) -> T:
        error = self._fault(operation.__name__, path)
        if error is not None and not self._is_after:
            raise error
        result = operation(path, *arguments)
        if error is not None:
            raise error
        return result

    def make_folder(self, path: Path) -> None:
        self._try(super().make_folder, path)

    def create_folder(self, path: Path) -> None:
        self._try(super().create_folder, path)

    def names(self, path: Path) -> list[str]:
        return self._try(super().names, path)

    def kind(self, path: Path) -> Any:
        return self._try(super().kind, path)

    def size(self, path: Path) -> int:
        return self._try(super().size, path)

    def read(self, path: Path, limit: int) -> bytes:
        return self._try(super().read, path, limit)

    def write(self, path: Path, data: bytes) -> None:
        self._try(super().write, path, data)

    def sync(self, path: Path) -> None:
        self._try(super().sync, path)

    def rename(self, source: Path, target: Path) -> None:
        self._try(super().rename, source, target)

    def remove(self, path: Path) -> None:
        self._try(super().remove, path)

    def write_tensors(self, prefix: Path, tensors: Mapping[str, Any]) -> None:
        self._try(super().write_tensors, prefix, tensors)

    def read_tensors(self, prefix: Path, dtypes: Mapping[str, str]) -> dict[str, Any]:
        return self._try(super().read_tensors, prefix, dtypes)


READS = ("names", "kind", "size", "read", "read_tensors")


class FailedReads(FaultyFiles):
    """Fails `count` reading operations in a row, of all that have been `seen`."""

    def __init__(self, error: Exception, start: int, count: float, only: str | None) -> None:
        super().__init__(self._fail)
        self.seen = 0
        self._error, self._range, self._only = error, (start, start + count), only

    def _fail(self, operation: str, _: Path) -> Exception | None:
        if operation not in READS:
            return None
        self.seen += 1
        fails = self._range[0] < self.seen <= self._range[1]
        return self._error if fails and self._only in (None, operation) else None


def fail_reads(
    error: Exception, start: int, count: float = float("inf"), only: str | None = None
) -> FailedReads:
    """Fail reading operations from the one of this number on (0 is the first), or those of one name."""
    return FailedReads(error, start, count, only)


def system_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


STALE = system_error(errno.ESTALE)
