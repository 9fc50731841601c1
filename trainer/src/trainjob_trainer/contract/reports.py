"""What is reported: the progress of a training process, the states of replicas, and failures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from trainjob_trainer.contract.exits import EXITS, ExitCode
from trainjob_trainer.contract.replicas import read_names
from trainjob_trainer.contract.wire import integer, key_of

# Limits of what is kept.


MOST_NOTICES, LONGEST_NOTICE = 8, 300
LONGEST_MESSAGE = 500
LONGEST_LOG_TAIL = 2048
"""Characters."""

LARGEST_TERMINATION_MESSAGE = 3072
"""ASCII characters; the kubelet keeps the last 4,096 bytes, and a cut JSON text is invalid."""


def shorten(text: str, most: int, *, in_bytes: bool = False) -> str:
    """Return the text in at most so many characters, or bytes of UTF-8.

    Its middle is left out: a sentence about an error begins with where it happened, and ends with why.
    """
    if not in_bytes:
        end = (most - 1) // 2
        return text if len(text) <= most else f"{text[: most - 1 - end]}…{text[len(text) - end :]}"
    data = text.encode(errors="replace")
    if len(data) <= most:
        return data.decode()
    room = most - len("…".encode())
    kept = data[: room - room // 2], data[len(data) - room // 2 :]
    return "…".join(part.decode(errors="ignore") for part in kept)


# Progress of a training process.


@dataclass(frozen=True)
class Report:
    """The last progress report of a replica; None means unknown.

    Attributes:
        state: starting (before that the import hook reports importing, then running), waiting,
            preparing, rereading, training, saving, evaluating, finished or failed.
        step: optimizer steps done, of `total_steps`.
        epoch: the current one, from 1, of `total_epochs`.
        loss: the last one reported; on a worker its own share of it.
        examples_per_second: over all workers.
        step_seconds: recent average duration of a step.
        work_seconds: the part of it in which this replica itself worked: input, forward and backward pass.
        input_seconds: the part of `work_seconds` in which it waited for its input.
        global_batch: examples a step over all workers; with parameter servers, those of one worker.
        checkpoint_step: step of the newest whole checkpoint.
        resumed_from: the step at which this process started, if not 0.
        evaluated_batches: batches done in the current evaluation.
        reread_batches: batches trained before a restart that have been read again.
        evaluation: `step`, `metrics` and `final` of the evaluator's last result, as JSON has them.
        curves: of the writer's metrics or the evaluator's results, as texts (`contract/curves.py`).
        already_finished: whether an earlier job with the same spec had finished in the output.
        waiting_for_storage: why files can't be read or written now, while this process waits for that.
        error: `reason` and `message`, one sentence for a person; `replicas` that it is about, if not this.
        notices: lines that say what was computed otherwise than the script says, each once.
        trains_alone: whether each of several workers trains the whole model by itself.
        meets: the call of Keras's in which this worker waits for the others; empty if it doesn't.
        log_line: from the agent, the last line of the log, once the process takes no steps for long.
        time: Unix seconds.
    """

    state: str = ""
    step: int | None = None
    total_steps: int | None = None
    epoch: int | None = None
    total_epochs: int | None = None
    loss: float | None = None
    metrics: Mapping[str, float] | None = None
    examples_per_second: float | None = None
    step_seconds: float | None = None
    work_seconds: float | None = None
    input_seconds: float | None = None
    global_batch: int | None = None
    checkpoint_step: int | None = None
    resumed_from: int | None = None
    evaluated_batches: int | None = None
    reread_batches: int | None = None
    evaluation: Mapping[str, Any] | None = None
    curves: Mapping[str, str] | None = None
    already_finished: bool | None = None
    waiting_for_storage: str | None = None
    error: Mapping[str, Any] | None = None
    notices: tuple[str, ...] | None = None
    trains_alone: bool | None = None
    meets: str | None = None
    log_line: str | None = None
    time: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the known fields, by their keys."""
        known = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {key_of(name): as_json(value) for name, value in known if value is not None}


def as_json(value: Any) -> Any:
    """Return a value as JSON has it: NaN and infinities as strings, what NumPy and TensorFlow have as lists.

    Raises TypeError for anything else.
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        odd = next((key for key in value if not isinstance(key, (str, int))), None)
        if odd is not None:
            raise TypeError(f"a key is a {type(odd).__qualname__}")
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    listed = getattr(value, "tolist", None) or getattr(value, "numpy", None)
    if callable(listed):  # a number or an array of NumPy, or a tensor of TensorFlow
        return as_json(listed())
    raise TypeError(f"there is a {type(value).__qualname__} in it")


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
        replicas: those that the failure is about, if not only `replica`: whose weights have diverged.
        memory: the bytes that its container could use when it was killed for memory, or None.
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
    replicas: tuple[str, ...] = ()
    memory: int | None = None

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
        return {key_of(name): as_json(value) for name, value in vars(self).items()}

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
            replicas=read_names(raw.get("replicas")),
            step=integer(raw.get("step")),
            checkpoint_step=integer(raw.get("checkpointStep")),
            counted=raw.get("counted") is not False,
            permanent=raw.get("permanent") is True,
            repeated=raw.get("repeated") is True,
            alone=raw.get("alone") is True,
            memory=integer(raw.get("memory")),
        )
        when = raw.get("time")
        known = isinstance(when, (int, float)) and not isinstance(when, bool)
        return replace(failure, time=float(when) if known and when is not None else 0.0).bounded()

    def bounded(self) -> Failure:
        """Return the failure with a message of one line, and texts of limited lengths."""
        line = " ".join(self.message.split())
        return replace(
            self, message=shorten(line, LONGEST_MESSAGE), log_tail=self.log_tail[-LONGEST_LOG_TAIL:]
        )
