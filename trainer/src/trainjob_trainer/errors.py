"""The errors of the trainer, distinguished by what has to happen next.

    TrainerError
    ├── InvalidConfiguration   80  a setting, the environment or the data is wrong
    ├── OutputFinished         81  the output folder holds a finished training
    ├── OutputUnwritable       82  a file could not be written
    │   ├── CheckpointUnreadable   a checkpoint is damaged or gone: another one may be used
    │   └── CheckpointUnavailable  the content is unknown: nothing may be changed
    ├── OutputFull             83  no space left
    ├── PortInUse              84  this replica's address is in use
    ├── PeerLost               85  another replica is gone
    ├── Preempted              86  asked to stop
    ├── CheckpointMismatch     87  the checkpoint belongs to another model
    ├── Stalled                88  a step did not end
    ├── Fenced                 89  a newer start of the job writes the output
    ├── NotFinite              90  a loss, a gradient or a weight is NaN or infinite
    ├── WeightsDiverged        91  the workers' weights are no longer the same
    ├── StorageUnavailable     92  files or data are away, and may come back
    ├── NcclFailed             93  NVIDIA's collectives can't work as they are set up
    └── OutputTaken            94  another job writes the output

Each has the exit code of the process.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from socket import EAI_AGAIN
from typing import ClassVar

from trainjob_trainer.contract.exits import ExitCode


class TrainerError(Exception):
    """A failure with a known cause; `str(error)` is a message for the user, without a traceback.

    Attributes:
        exit_code: of the process if the error is not caught.
        reason: the name of the class, for status and events.
        replicas: those that the failure is about, if not only the one that raises it.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.INVALID_CONFIGURATION
    reason: ClassVar[str] = "TrainerError"
    replicas: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        cls.reason = cls.__name__


class InvalidConfiguration(TrainerError):
    """A setting, the environment or the data is wrong; starting again changes nothing."""

    exit_code = ExitCode.INVALID_CONFIGURATION


class OutputFinished(TrainerError):
    """The output folder holds a finished training, and no more steps are requested."""

    exit_code = ExitCode.OUTPUT_FINISHED


class OutputUnwritable(TrainerError):
    """A file below the output folder could not be written."""

    exit_code = ExitCode.OUTPUT_UNWRITABLE


class CheckpointUnreadable(OutputUnwritable):
    """A checkpoint is incomplete, corrupt or gone: reading it again would not help."""


class CheckpointUnavailable(OutputUnwritable):
    """The folder of checkpoints can't be read now, or not by this version: its content is unknown."""


class OutputFull(TrainerError):
    """The volume of the output folder has no space (or quota) left."""

    exit_code = ExitCode.OUTPUT_FULL


class StorageUnavailable(TrainerError):
    """Files or data can't be reached now: their server, volume or network is away, and may come back."""

    exit_code = ExitCode.STORAGE_UNAVAILABLE


class PortInUse(TrainerError):
    """The address that TF_CONFIG gives this replica is in use by another process."""

    exit_code = ExitCode.PORT_IN_USE


class PeerLost(TrainerError):
    """Another replica ended or can't be reached: this is never the original failure."""

    exit_code = ExitCode.PEER_LOST


class Preempted(TrainerError):
    """The process was asked to stop (SIGTERM); the writer saves a checkpoint before it exits."""

    exit_code = ExitCode.PREEMPTED


class CheckpointMismatch(TrainerError):
    """The checkpoint holds other variables than the model, or the workers' weights differ."""

    exit_code = ExitCode.CHECKPOINT_MISMATCH


class Stalled(TrainerError):
    """A step did not end within the time allowed."""

    exit_code = ExitCode.STALLED


class Fenced(TrainerError):
    """A newer start of this job has claimed the output folder: this process writes nothing more."""

    exit_code = ExitCode.FENCED


class NotFinite(TrainerError):
    """A loss, a gradient or a weight is NaN or infinite, and would be so again after a restart."""

    exit_code = ExitCode.NOT_FINITE


class WeightsDiverged(TrainerError):
    """This worker's weights differ from the others', or it is unknown whose are right: `replicas` has all."""

    exit_code = ExitCode.WEIGHTS_DIVERGED

    def __init__(self, message: str, replicas: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.replicas = tuple(replicas)


class NcclFailed(TrainerError):
    """NVIDIA's library for collectives reports an error of its own: no other replica has caused it."""

    exit_code = ExitCode.NCCL_FAILED


class OutputTaken(TrainerError):
    """Another job writes the output folder; a restart would take it away from that one."""

    exit_code = ExitCode.OUTPUT_TAKEN


# What another machine can heal: decided by types and numbers, never by a message's text.


FULL = frozenset([errno.ENOSPC, errno.EDQUOT])
_AWAY = (
    "EIO ESTALE ETIMEDOUT ENODEV ENXIO EREMOTEIO ENOTCONN ECONNREFUSED ECONNRESET ECONNABORTED ESHUTDOWN "
    "EHOSTDOWN EHOSTUNREACH ENETDOWN ENETUNREACH ENETRESET EAGAIN EINTR EBUSY ENOLCK ENOLINK ENOMEDIUM "
    "EUCLEAN EKEYEXPIRED"
)
AWAY = frozenset([getattr(errno, name) for name in _AWAY.split() if hasattr(errno, name)] + [EAI_AGAIN])
"""Numbers of the system for a file, a volume or a server that can't be reached now."""
_AWAY_BY_TYPE = frozenset(["ConnectionError", "TimeoutError", "Timeout"])
"""Types without a number, such as those of `urllib`, `requests` and cloud libraries."""
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}
_IN_TENSORFLOW = re.compile(r"; ([^;\n]+?)(?: \[Op:.*)?$|^\w+: \[Errno (\d+)\]", re.MULTILINE)
"""`PATH; Input/output error`, or the last line of a traceback, if a pipeline has called Python."""
_OF_PYTHON = re.compile(
    r"Traceback \(most recent call last\):.*^([A-Za-z]\w+)(?::.*?)?$", re.MULTILINE | re.DOTALL
)


def is_tensorflows(error: BaseException) -> bool:
    """Return whether the error is TensorFlow's; this package works without TensorFlow."""
    return type(error).__module__.startswith("tensorflow")


def system_number(error: BaseException) -> int | None:
    """Return the system's number of an error, or None; TensorFlow's have the system's message instead."""
    if not is_tensorflows(error):
        return error.errno if isinstance(error, OSError) else None
    found = [
        int(digits) if digits else _NUMBERS.get(text) for text, digits in _IN_TENSORFLOW.findall(str(error))
    ]
    return next((number for number in reversed(found) if number is not None), None)


def is_outage(error: BaseException | None) -> bool:
    """Return whether an error of any library says that files, data or a server are away, and may come back.

    A lack of the process's own (memory, descriptors), what isn't there and what isn't allowed are mistakes.
    """
    if error is None:
        return False
    number, names = system_number(error), {kind.__name__ for kind in type(error).__mro__}
    if number is not None:
        return number in AWAY
    if "HTTPError" in names:
        status = getattr(getattr(error, "response", None), "status_code", getattr(error, "code", None))
        return isinstance(status, int) and (status >= 500 or status in (408, 425, 429))
    if is_tensorflows(error):
        return "UnavailableError" in names or not _AWAY_BY_TYPE.isdisjoint(_OF_PYTHON.findall(str(error)))
    reason = getattr(error, "reason", None)  # of a URLError
    inner = reason if isinstance(reason, BaseException) else error.__cause__
    return not names.isdisjoint(_AWAY_BY_TYPE) or is_outage(inner)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; its type if the message is empty."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
