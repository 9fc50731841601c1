"""The job's output folder on this machine: write check, lock, and the folders of earlier runs."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import tempfile
import time
from pathlib import Path

from trainjob.cluster.local.machine import CannotRunHere
from trainjob_trainer.contract.files import find_link

LOCK_NAME = ".trainjob.lock"
MOMENTARY = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
"""Errors of a network file system that may be over at the next try."""
_RETRY_SECONDS = (0.1, 0.3)


def check_writable(folder: Path) -> None:
    """Create a folder and a temporary file in it.

    Raises:
        CannotRunHere: the folder can't be written, or has a link where a run writes; the message says so.
    """
    names = ("checkpoints", "evaluator", "logs", "logs/replicas", "logs/train")
    for delay in (*_RETRY_SECONDS, None):
        try:
            if link := find_link(folder / name for name in names):
                raise CannotRunHere([link])
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".trainjob-"):
                return
        except OSError as error:
            if delay is None or error.errno not in MOMENTARY:
                raise CannotRunHere([_why_not(folder, error)]) from error
            time.sleep(delay)


def _why_not(folder: Path, error: OSError) -> str:
    way_out = "choose another one with --folder"
    file = next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)
    if file is not None:
        return f"can't write into {folder}: {file} is a file, not a folder; move it, or {way_out}"
    return f"can't write into {folder} ({error.strerror or error}): make it writable, or {way_out}"


class OutputLock:
    """A lock that is held while any process of one run may write into the folder.

    The launchers of the replicas inherit the descriptor: if `trainjob run` is killed, the lock stays until
    the last launcher has ended its replica.

    Args:
        folder: the job's output folder, which exists.

    Raises:
        CannotRunHere: another run holds it, or its file can't be opened.
    """

    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            if (folder / LOCK_NAME).is_symlink():  # in a folder that somebody has sent: it may name any file
                (folder / LOCK_NAME).unlink()
            self.fd = os.open(folder / LOCK_NAME, flags, 0o644)
        except OSError as error:
            raise CannotRunHere([_why_not(folder / LOCK_NAME, error)]) from error
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self.fd, 64, 0).decode("ascii", "replace").strip()
            os.close(self.fd)
            who = f"process {holder}" if holder else "another process"
            message = (
                f"another `trainjob run` ({who}) trains into {folder}: wait for it, end it, or use another "
                "--folder"
            )
            raise CannotRunHere([message]) from error
        except OSError:
            return  # a file system without locks: the run goes without one
        try:
            is_same = os.path.samestat(os.fstat(self.fd), (folder / LOCK_NAME).stat())
        except OSError:
            is_same = False
        if not is_same:  # renamed between opening and locking
            os.close(self.fd)
            raise CannotRunHere([f"another `trainjob run` has just renamed {folder}: start again"])
        with contextlib.suppress(OSError):  # a full disk: the lock is held without its process id
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Release the folder for other runs, once all launchers have ended too; more calls do nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # a late write's: the lock is released all the same
                os.close(fd)


def is_taken(folder: Path) -> bool:
    """Return whether a run holds the lock of this folder, which may not exist."""
    try:
        lock = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(lock)
    return False


# The folders of a job's runs: `digits` is the job's folder; those with numbers, such as `digits.1`, are of
# earlier runs and of other requests.


def set_aside(folder: Path) -> Path | None:
    """Rename a job's folder to the next number, such as `digits.2`.

    Returns:
        The new folder, or None if there was nothing to keep.

    Raises:
        CannotRunHere: a run holds the folder, or it can't be renamed.
    """
    if not has_content(folder):
        return None
    with contextlib.closing(OutputLock(folder)):
        aside = _next_number(folder)
        _rename(folder, aside)
    return aside


def bring_back(earlier: Path, folder: Path) -> Path | None:
    """Make the folder of an earlier run the job's folder, and set the present one aside.

    Args:
        earlier: a folder beside the job's folder, such as `digits.1`.
        folder: the job's folder, which may not exist.

    Returns:
        The new name of the present folder, or None if there was nothing to keep.

    Raises:
        CannotRunHere: `earlier` is no such folder, a run holds one of the two, or one can't be renamed.
    """
    if not earlier.is_dir():
        raise CannotRunHere([f"there is no folder {earlier}: `trainjob list` shows those of earlier runs"])
    if folder.exists() and earlier.samefile(folder):
        return None
    if earlier.resolve().parent != folder.resolve().parent:
        raise CannotRunHere(
            [f"{earlier} isn't beside the job's folder {folder}: move it there, or choose its --folder"]
        )
    with contextlib.closing(OutputLock(earlier)):
        aside = set_aside(folder)
        if aside is None and folder.exists():
            remove_folder(folder)
        _rename(earlier, folder)
    return aside


def remove_folder(folder: Path) -> None:
    """Remove a run's folder; it disappears as a whole.

    Raises:
        CannotRunHere: a run holds the folder, or it can't be removed.
    """
    with contextlib.closing(OutputLock(folder)):
        going = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.deleted")
        _rename(folder, going)
        try:
            shutil.rmtree(going)
        except OSError as error:
            raise CannotRunHere([f"can't remove {going} as a whole: {error}"]) from error


def has_content(folder: Path) -> bool:
    """Return whether a run has left anything in its folder."""
    return bool(_names_in(folder))


def has_saved(folder: Path) -> bool:
    """Return whether there is something that a later start would continue from, or find."""
    saved = any(not path.name.startswith(".") for path in (folder / "checkpoints").glob("*"))
    return saved or not {"checkpoints", "logs", "evaluator"}.issuperset(_names_in(folder))


def _names_in(folder: Path) -> list[str]:
    """Return the names in the folder, without files of the run itself, which need not be kept."""
    try:
        return [path.name for path in folder.iterdir() if not path.name.startswith(".trainjob")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def folders_of(folder: Path) -> list[Path]:
    """Return the folders that runs of the job have: its own one, then those with numbers."""
    return [folder, *(folder.with_name(f"{folder.name}.{number}") for number in _numbers(folder))]


def add_folder(folder: Path) -> Path:
    """Create the job's folder, or if it exists one with the next number, such as `digits.2`, and return it.

    Raises:
        CannotRunHere: it can't be created.
    """
    while True:
        place = _next_number(folder, first=2) if folder.exists() else folder
        try:
            place.mkdir(parents=True)
        except FileExistsError:  # another run has just taken it
            continue
        except OSError as error:
            raise CannotRunHere([_why_not(place, error)]) from error
        return place


def _next_number(folder: Path, first: int = 1) -> Path:
    return folder.with_name(f"{folder.name}.{max([first - 1, *_numbers(folder)]) + 1}")


def _numbers(folder: Path) -> list[int]:
    numbered = re.compile(rf"{re.escape(folder.name)}\.(\d+)")
    names = (path.name for path in folder.parent.glob("*"))
    return sorted(int(match[1]) for match in map(numbered.fullmatch, names) if match)


def _rename(folder: Path, to: Path) -> None:
    try:
        folder.rename(to)
    except OSError as error:
        raise CannotRunHere([f"can't rename {folder} to {to}: {error.strerror or error}"]) from error
