"""The failure of a training process, and its meaning by the table of exit codes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING, Any

from trainjob_trainer.contract.exits import EXITS, ExitCode, find_exception, meaning_of
from trainjob_trainer.contract.wire import integer
from trainjob_trainer.errors import AWAY, FULL

if TYPE_CHECKING:
    from trainjob_trainer.agent.child import ChildExit

OUT_OF_MEMORY = "OutOfMemory"
UNREACHABLE = "Unreachable"
"""An agent is lost or is being replaced; the controller knows its pod's end."""

PEER_LOST = EXITS[ExitCode.PEER_LOST].name
PREEMPTED = EXITS[ExitCode.PREEMPTED].name
STALLED = EXITS[ExitCode.STALLED].name


_SENT = frozenset([SIGKILL, SIGTERM])
"""They come from outside: the last output does not explain them."""

_ERRNO = re.compile(r"\[Errno (\d+)\]")
"""How Python begins the text of a system's error."""

_LONGEST_MESSAGE = 500
_LONGEST_TAIL = 2048


_JSON_NAMES = {
    "exit_code": "exitCode",
    "log_tail": "logTail",
    "checkpoint_step": "checkpointStep",
    "counted": "charged",
}
"""Of the fields that are called otherwise in JSON."""


@dataclass(frozen=True)
class Failure:
    """The failure of one replica.

    Attributes:
        replica: such as `worker-1`.
        attempt: the start of training that it ended.
        reason: a name of the table of exit codes, `OutOfMemory` or `Unreachable`.
        exit_code: 128+n for death by `signal` n; None if no process ended by itself.
        message: one line.
        log_tail: the end of the output.
        step: the last one reported, or None.
        checkpoint_step: that of the newest checkpoint that was reported before it, or None.
        counted: a restart for it counts against the limit.
        permanent: a restart can't help.
        repeated: it has occurred so often in a row that a restart can't help.
        alone: only this replica's process restarts for it, while the others continue.
        time: Unix seconds.
    """

    replica: str
    pod: str
    incarnation: int
    attempt: int
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    log_tail: str = ""
    step: int | None = None
    checkpoint_step: int | None = None
    counted: bool = True
    permanent: bool = False
    repeated: bool = False
    alone: bool = False
    time: float = 0.0

    @property
    def is_cascade(self) -> bool:
        """Return whether another replica's failure, or a request to stop, caused it."""
        return self.reason in (PEER_LOST, PREEMPTED)

    def is_same(self, other: Failure | None) -> bool:
        """Return whether both are one failure: an attempt ends once."""
        mine = (self.replica, self.attempt, self.reason)
        return other is not None and mine == (other.replica, other.attempt, other.reason)

    def with_log_of(self, later: Failure) -> Failure:
        """Return it with the log of the same failure, reported later: a stall's stack."""
        is_due = self.is_same(later) and not self.log_tail
        return replace(self, log_tail=later.log_tail) if is_due else self

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return {_JSON_NAMES.get(name, name): value for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Failure:
        """Read a failure leniently, so that a malformed one never breaks the reader."""
        failure = cls(
            replica=str(raw.get("replica", "")),
            pod=str(raw.get("pod", "")),
            incarnation=integer(raw.get("incarnation")) or 0,
            attempt=integer(raw.get("attempt")) or 0,
            reason=str(raw.get("reason") or "Crashed"),
            exit_code=integer(raw.get("exitCode")),
            signal=integer(raw.get("signal")),
            message=str(raw.get("message") or ""),
            log_tail=str(raw.get("logTail") or ""),
            step=integer(raw.get("step")),
            checkpoint_step=integer(raw.get("checkpointStep")),
            counted=raw.get("charged") is not False,
            permanent=raw.get("permanent") is True,
            repeated=raw.get("repeated") is True,
            alone=raw.get("alone") is True,
        )
        when = raw.get("time")
        known = isinstance(when, (int, float)) and not isinstance(when, bool)
        return _bounded(replace(failure, time=float(when) if known and when is not None else 0.0))


def describe_exit(ended: ChildExit, *, replica: str, pod: str, incarnation: int, attempt: int) -> Failure:
    """Return the failure of a training process that ended badly."""
    code = _explained_code(ended)
    meaning = meaning_of(code)
    out_of_memory = ended.out_of_memory
    return _bounded(
        Failure(
            replica=replica,
            pod=pod,
            incarnation=incarnation,
            attempt=attempt,
            reason=OUT_OF_MEMORY if out_of_memory else meaning.name,
            exit_code=code,
            signal=ended.signal,
            message="" if ended.signal in _SENT and not ended.reason else ended.message,
            log_tail=ended.log_tail,
            step=ended.step,
            counted=meaning.counted,
            permanent=meaning.permanent,
            time=ended.time,
        )
    )


def _explained_code(ended: ChildExit) -> int:
    """Return the exit code; that of an outage if Python has failed by one before the trainer could say so."""
    raised = find_exception(ended.code, ended.log_tail)
    number = _ERRNO.match(raised.text) if raised is not None else None
    if number is None or int(number[1]) not in FULL | AWAY:
        return ended.code
    return int(ExitCode.OUTPUT_FULL if int(number[1]) in FULL else ExitCode.STORAGE_UNAVAILABLE)


def _bounded(failure: Failure) -> Failure:
    line = " ".join(failure.message.split())
    return replace(failure, message=line[:_LONGEST_MESSAGE], log_tail=failure.log_tail[-_LONGEST_TAIL:])
