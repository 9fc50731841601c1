"""The few file operations that checkpoints need, so that tests can interrupt each of them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from trainjob_trainer.errors import (
    FULL,
    CheckpointUnavailable,
    OutputFull,
    OutputUnwritable,
    StorageUnavailable,
    first_line,
    is_outage,
    is_tensorflows,
    system_number,
)
from trainjob_trainer.reporting.progress import report_storage

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Kind = Literal["file", "folder", "other"]
NOT_THERE = (FileNotFoundError, NotADirectoryError)
"""The only errors that prove that nothing is there."""
TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
"""Error numbers for a name that is already in use."""
RETRY_SECONDS = (0.1, 0.3, 1.0)
"""Delays between tries to read or write what may fail for a moment."""
WAITING_SECONDS = (2.0, 4.0, 8.0, 10.0)
"""Delays between further tries while the storage is away, the last one as often as needed."""
WAITED_FOR = (OutputFull, StorageUnavailable)
"""The failures that another machine can heal."""
_PART = 1 << 20
T = TypeVar("T")


class NotAFile(ValueError):
    """What should be a small regular file is something else."""


class Files:
    """Durable writes: what `rename` has published survives a power cut, all else is ignored.

    Every disk operation of checkpoints is one of these calls, including TensorFlow's.

    Attributes:
        keeps_all: whether what lies beside the checkpoints is on the same volume.
    """

    keeps_all = True

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents, durably; an existing one is fine.

        An existing one is synced as well: its creator may have been killed before the sync.
        """
        path.mkdir(parents=True, exist_ok=True)
        volume = path.stat().st_dev
        for folder in path.parents:
            if folder.stat().st_dev != volume:
                break
            with contextlib.suppress(PermissionError):  # a parent may be searchable but not readable
                self.sync(folder)

    def create_folder(self, path: Path) -> None:
        """Create a folder in an existing one; raises FileExistsError or FileNotFoundError if it can't."""
        path.mkdir()

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, none if there is no such folder; OSError if they are unknown."""
        try:
            return [entry.name for entry in path.iterdir()]
        except NOT_THERE:
            return []

    def kind(self, path: Path) -> Kind | None:
        """Return what is there, without following a link, None if nothing is; OSError if unknown."""
        try:
            mode = path.lstat().st_mode
        except NOT_THERE:
            return None
        if stat.S_ISDIR(mode):
            return "folder"
        return "file" if stat.S_ISREG(mode) else "other"

    def touch(self, path: Path) -> None:
        """Set a folder's time of modification to now; OSError if it isn't there."""
        os.utime(path)

    def changed(self, path: Path) -> int | None:
        """Return a folder's time of modification in ns, None if it isn't there; OSError if it is unknown.

        NFS asks the server when a folder is opened, and may else return what it has in its cache.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except NOT_THERE:
            return None
        try:
            return os.fstat(descriptor).st_mtime_ns
        finally:
            os.close(descriptor)

    def size(self, path: Path) -> int:
        """Return the size of a file in bytes; OSError if it is missing or can't be examined."""
        return path.lstat().st_size

    def read(self, path: Path, limit: int) -> bytes:
        """Return all of a regular file; refuse anything else: a FIFO would block, a link lead elsewhere.

        Raises NotAFile if it is something else or has more than `limit` bytes, OSError if it can't be read.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
                raise NotAFile(f"{path} is not a regular file") from error
            raise
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NotAFile(f"{path} is not a regular file")
            data = bytearray()
            while part := os.read(descriptor, _PART):
                data += part
                if len(data) > limit:
                    raise NotAFile(f"{path} has more than {limit} bytes")
        finally:
            os.close(descriptor)
        return bytes(data)

    def write(self, path: Path, data: bytes) -> None:
        """Write a new file, durably; it replaces an old one, and a link without following it."""
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)

    def sync(self, path: Path) -> None:
        """Force a file or folder to disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Publish: atomic within one volume; replaces a file."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file or folder, if it is there.

        After an OSError a part may be left, such as what an NFS client keeps for a file in use.
        """
        with contextlib.suppress(*NOT_THERE):
            if not stat.S_ISDIR(path.lstat().st_mode):
                path.unlink()
                return
            for inner in path.iterdir():
                Files.remove(self, inner)
            path.rmdir()

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder, if it is there; OSError if something is in it."""
        with contextlib.suppress(FileNotFoundError):
            path.rmdir()

    def tidy(self, claim: Path) -> None:
        """Remove what writers before the holder of this claim have left where no listing shows it."""

    def write_tensors(self, prefix: Path, tensors: Mapping[str, Array]) -> None:
        """Write a TensorFlow tensor bundle: `<prefix>.index` and `<prefix>.data-00000-of-00001`."""
        import tensorflow as tf  # noqa: PLC0415 - the rest of the package works without it

        with tf.device("/CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=str(prefix),
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=list(tensors.values()),
            )

    def read_tensors(self, prefix: Path, dtypes: Mapping[str, str]) -> dict[str, Array]:
        """Read tensors (at least one) of a bundle by key and dtype, checked by its CRCs.

        Raises tf.errors.OpError if one is missing or can't be read.
        """
        import tensorflow as tf  # noqa: PLC0415 - as above

        with tf.device("/CPU:0"):
            tensors = tf.raw_ops.RestoreV2(
                prefix=str(prefix),
                tensor_names=list(dtypes),
                shape_and_slices=[""] * len(dtypes),
                dtypes=[tf.as_dtype(dtype) for dtype in dtypes.values()],
            )
        return {key: tensor.numpy() for key, tensor in zip(dtypes, tensors, strict=True)}


def gone(folder: Path) -> StorageUnavailable:
    """Return the error for a folder that has disappeared, for instance with its volume."""
    return StorageUnavailable(
        f"{folder} is gone: it has been deleted while this job was writing, or its volume isn't mounted "
        "any more"
    )


class Patience:
    """Makes a file operation, which is safe to repeat, until it succeeds or is sure to fail.

    What fails for a moment is tried again: a failed read proves nothing about what is there. After that, what
    another machine can heal is waited for, and the process reports so; any other failure is raised.

    Attributes:
        sleep: waits for so many seconds.
        was_writable: this job has written there before, so that a refusal is no wrong setting.
    """

    def __init__(
        self,
        sleep: Callable[[float], None] = time.sleep,
        *,
        was_writable: bool = False,
    ) -> None:
        self.sleep = sleep
        self.was_writable = was_writable
        self._waiting: set[object] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether a call waits now; the process has several threads."""
        return bool(self._waiting)

    def __call__(
        self,
        call: Callable[[], T],
        explain: Callable[[Exception], Exception],
        answers: tuple[type[OSError], ...] = (),
    ) -> T:
        """Return the call's result, or raise its failure as `explain` has it.

        `answers` are errors that are results for a reader and are raised at once. A writer passes none: a
        successor may remove its half-made files, and then it must look again.
        """
        delays = chain(RETRY_SECONDS, WAITING_SECONDS, repeat(WAITING_SECONDS[-1]))
        failed, this = 0, object()
        try:
            while True:
                try:
                    return call()
                except Exception as error:
                    is_of_the_disk = isinstance(error, OSError) or is_tensorflows(error)
                    if isinstance(error, answers) or not (is_of_the_disk or isinstance(error, WAITED_FOR)):
                        raise
                    failed += 1
                    if failed > len(RETRY_SECONDS):
                        known = explain(error)
                        if not isinstance(known, WAITED_FOR):
                            raise known from error
                        self._waiting.add(this)
                        report_storage(str(known))
                self.sleep(next(delays))
        finally:
            if this in self._waiting:
                self._waiting.discard(this)
                report_storage(None)

    def write(self, change: Callable[[], T], path: Path) -> T:
        """Make a change below `path`; raises OutputUnwritable if waiting would not help."""
        return self(change, lambda error: explain_write_error(error, path, was_writable=self.was_writable))


def explain_read_error(error: Exception, path: Path) -> Exception:
    """Return the error for something that may exist but could not be read."""
    if is_outage(error) or system_number(error) in FULL:
        return StorageUnavailable(f"cannot read {path}: {_reason(error)}")
    return CheckpointUnavailable(
        f"cannot read {path}: {_reason(error)}. Nothing has been changed there, and the next start tries "
        "again; if it persists, check the output's volume and how it is mounted"
    )


def explain_write_error(error: Exception, path: Path, *, was_writable: bool = False) -> Exception:
    """Return the error that says what to do about a failed write; the error itself if it is no disk's."""
    number = system_number(error)
    if number in FULL:
        return OutputFull(f"no space left for {path}: free some, or give the output a larger volume")
    if number is None and not is_tensorflows(error):
        return error
    has_changed = was_writable and number in (errno.EACCES, errno.EPERM, errno.EROFS)
    kind = StorageUnavailable if has_changed or is_outage(error) else OutputUnwritable
    return kind(f"cannot write {path}: {_reason(error)}")


def _reason(error: Exception) -> str:
    number = system_number(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # of a bucket it says more than its number
    return first_line(error) if number is None else os.strerror(number)
