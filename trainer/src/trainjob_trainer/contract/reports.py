"""What agents report: the states of training, and failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainjob_trainer.contract.exits import EXITS, ExitCode
from trainjob_trainer.contract.wire import integer

# Limits of what is kept.


MOST_NOTICES, LONGEST_NOTICE = 8, 300
LONGEST_MESSAGE = 500
LONGEST_LOG_TAIL = 2048
"""Characters."""

LARGEST_TERMINATION_MESSAGE = 3072
"""ASCII characters; the kubelet keeps the last 4,096 bytes, and a cut JSON text is invalid."""

# States of a replica: of its training process, or of its agent's connection.


IDLE = "idle"
RUNNING = "running"
STOPPING = "stopping"
FINISHED = "finished"
LOST = "lost"
ABSENT = "absent"

# Phases of the worker group, beside `running`, `stopping` and `finished`.


MEETING = "meeting"
FAILED = "failed"

# Failures, by a reason of the table of exit codes or one of these.


OUT_OF_MEMORY = "OutOfMemory"
UNREACHABLE = "Unreachable"
"""An agent is lost or is being replaced; the controller knows its pod's end."""

PEER_LOST = EXITS[ExitCode.PEER_LOST].name
PREEMPTED = EXITS[ExitCode.PREEMPTED].name
STALLED = EXITS[ExitCode.STALLED].name

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
        return replace(failure, time=float(when) if known and when is not None else 0.0).bounded()

    def bounded(self) -> Failure:
        """Return the failure with a message of one line, and texts of limited lengths."""
        line = " ".join(self.message.split())
        return replace(self, message=line[:LONGEST_MESSAGE], log_tail=self.log_tail[-LONGEST_LOG_TAIL:])
