"""The folder that a job writes into: is it writable, and does nobody else train into it?"""

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

from trainjob.cluster.local.refusal import CannotRunHere

LOCK_NAME = ".trainjob.lock"


def check_writable(folder: Path) -> None:
    """Create a folder and a file in it, and take the file away again.

    Raises:
        CannotRunHere: that can't be done; the sentence says why.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".trainjob-"):
            pass
    except OSError as error:
        raise CannotRunHere([_why_not(folder, error)]) from error


def _why_not(folder: Path, error: OSError) -> str:
    way_out = "choose another one with --folder"
    file = next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)
    if file is not None:
        return f"can't write into {folder}: {file} is a file, not a folder; move it, or {way_out}"
    return f"can't write into {folder} ({error.strerror or error}): make it writable, or {way_out}"


class OutputLock:
    """Held for as long as anything of one run may write into the folder.

    The descriptor is handed on to the launchers of the replicas: should `trainjob run` be killed, the lock
    stays until the last of them has ended its replica.

    Args:
        folder: the job's output folder, which exists.

    Raises:
        CannotRunHere: another run holds it, or there can be none.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self.fd = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CannotRunHere([_why_not(folder / LOCK_NAME, error)]) from error
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self.fd, 64, 0).decode("ascii", "replace").strip()
            os.close(self.fd)
            raise CannotRunHere([_held_message(folder, holder)]) from error
        except OSError:
            return  # a file system without locks: nothing to hold, nothing to be kept from
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let others train into the folder, once all launchers have ended too."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def is_taken(folder: Path) -> bool:
    """Tell whether a run holds this folder, which need not be one."""
    try:
        with (folder / LOCK_NAME).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _held_message(folder: Path, holder: str) -> str:
    who = f"process {holder}" if holder else "another process"
    return (
        f"another `trainjob run` ({who}) trains into {folder}: wait for it or end it, "
        "or start apart from it with --fresh or another --folder"
    )
