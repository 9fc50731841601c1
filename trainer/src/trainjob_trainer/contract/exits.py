"""The exit codes of a training process, and the mistakes that a log shows.

All other codes are those of the user's program; 128+n is death by signal n, as shells report it.
"""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """One code for each error of the trainer; `EXITS` has their meanings."""

    SUCCESS = 0
    INVALID_CONFIGURATION = 80
    OUTPUT_FINISHED = 81
    OUTPUT_UNWRITABLE = 82
    OUTPUT_FULL = 83
    PORT_IN_USE = 84
    PEER_LOST = 85
    PREEMPTED = 86
    CHECKPOINT_MISMATCH = 87
    STALLED = 88
    FENCED = 89
    NOT_FINITE = 90
    WEIGHTS_DIVERGED = 91
    STORAGE_UNAVAILABLE = 92
    NCCL_FAILED = 93
    OUTPUT_TAKEN = 94


@dataclass(frozen=True)
class ExitMeaning:
    """One row of the table.

    Attributes:
        name: the trainer's name for the code, in CamelCase; becomes the reason in conditions.
        permanent: whether a restart can't help, so that the job fails at once.
        counted: whether a restart for it counts against `maxRestarts`.
        text: what happened, to follow the name of a replica.
    """

    name: str
    text: str
    permanent: bool = False
    counted: bool = True


EXITS: dict[int, ExitMeaning] = {
    ExitCode.INVALID_CONFIGURATION: ExitMeaning(
        "InvalidConfiguration", "was configured wrongly", permanent=True
    ),
    ExitCode.OUTPUT_FINISHED: ExitMeaning(
        "OutputFinished", "found a finished run in its output", permanent=True
    ),
    ExitCode.OUTPUT_UNWRITABLE: ExitMeaning("OutputUnwritable", "can't use its output folder"),
    ExitCode.OUTPUT_FULL: ExitMeaning("OutputFull", "found no space left", counted=False),
    ExitCode.PORT_IN_USE: ExitMeaning("PortInUse", "found its port in use"),
    ExitCode.PEER_LOST: ExitMeaning("PeerLost", "lost the connection to another replica", counted=False),
    ExitCode.PREEMPTED: ExitMeaning("Preempted", "was asked to stop and left", counted=False),
    ExitCode.CHECKPOINT_MISMATCH: ExitMeaning(
        "CheckpointMismatch", "found a checkpoint of another model", permanent=True
    ),
    ExitCode.STALLED: ExitMeaning("Stalled", "made no progress for too long"),
    ExitCode.FENCED: ExitMeaning(
        "Fenced", "found a newer start of this job writing its output", counted=False
    ),
    ExitCode.NOT_FINITE: ExitMeaning(
        "NotFinite", "got a loss or gradients that are NaN or infinite", permanent=True
    ),
    ExitCode.WEIGHTS_DIVERGED: ExitMeaning(
        "WeightsDiverged", "found that its weights differ from the others'"
    ),
    ExitCode.STORAGE_UNAVAILABLE: ExitMeaning(
        "StorageUnavailable", "can't reach its files or data", counted=False
    ),
    ExitCode.NCCL_FAILED: ExitMeaning("NcclFailed", "got an error from NCCL"),
    ExitCode.OUTPUT_TAKEN: ExitMeaning("OutputTaken", "found another job writing its output", permanent=True),
}

_PROGRAM_FAILED = ExitMeaning("Crashed", "crashed")
_KILLED = ExitMeaning("Killed", "was killed")
_LAST_SIGNAL = 64

UNCAUGHT = 1
"""Python's exit code after an uncaught exception."""

_USAGE = 2
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127
_MISTAKES = frozenset(
    [
        *("SyntaxError", "IndentationError", "TabError", "NameError", "UnboundLocalError", "AttributeError"),
        *("ImportError", "ModuleNotFoundError", "FileNotFoundError", "TypeError"),
    ]
)
_WRONG_VALUES = (
    ValueError,
    LookupError,
    ArithmeticError,
    AssertionError,
    NotImplementedError,
    RecursionError,
)
_NO_FILE = "No such file or directory"
_NO_SCRIPT = re.compile(
    r"\S*python[\w.]*: (?:can't open file '|No module named |Error while finding module )"
)
_FRAME = re.compile(r' *File "([^"]+)", line (\d+)')
_LAST_LINE = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?$")
_ASIDE = ("Exception ignored ", "Exception in thread ")


def meaning_of(exit_code: int) -> ExitMeaning:
    """Return the meaning of an exit code other than 0."""
    if exit_code in EXITS:
        return EXITS[exit_code]
    return _KILLED if 128 < exit_code <= 128 + _LAST_SIGNAL else _PROGRAM_FAILED


@dataclass(frozen=True)
class Raised:
    """The exception that ended a Python program.

    Attributes:
        kind: its class, with the module unless it is builtin.
        place: `file:line` of the innermost frame.
        text: its message.
    """

    kind: str
    place: str
    text: str


def find_exception(exit_code: int | None, log: str) -> Raised | None:
    """Return the uncaught exception at the end of a log; None without one or with another exit code.

    Tracebacks of other threads and of Python's cleanup are left out.
    """
    found, place, is_aside = None, "", False
    for line in log.splitlines() if exit_code == UNCAUGHT else ():
        frame = _FRAME.match(line)
        if frame is not None:
            place = f"{frame[1]}:{frame[2]}"
        elif line.startswith(_ASIDE):
            is_aside = True
        elif place and line[:1].strip():
            last = _LAST_LINE.match(line)
            if last is not None and not is_aside:
                found = Raised(last[1], place, last[2] or "")
            place, is_aside = "", False
    return found


def is_mistake(exit_code: int | None, log: str) -> bool:
    """Return whether a program that hasn't made a step yet ended by a mistake that each start repeats.

    Such are code or files that Python can't read, import, open or call, and a missing command. After a first
    step, the same errors may come from a volume that is briefly unavailable.
    """
    if exit_code in (_NOT_EXECUTABLE, _NOT_FOUND):
        return True
    lines = log.rstrip().splitlines()
    if exit_code in (UNCAUGHT, _USAGE) and lines and _NO_SCRIPT.match(lines[-1]):
        return True
    raised = find_exception(exit_code, log)
    if raised is None:
        return False
    return raised.kind in _MISTAKES or (raised.kind.endswith(".NotFoundError") and _NO_FILE in raised.text)


def is_wrong_value(exit_code: int | None, log: str) -> bool:
    """Return whether an exception ended the program that nothing outside it heals, such as a KeyError.

    A missing file or module isn't one: it may be on a volume that is briefly unavailable.
    """
    raised = find_exception(exit_code, log)
    kind = getattr(builtins, raised.kind, None) if raised is not None else None
    return isinstance(kind, type) and issubclass(kind, _WRONG_VALUES)
