"""Reports of a job's agents and training processes, read leniently: a report never breaks a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from trainjob.api.constants import INT32_MAX
from trainjob.core.names import EVALUATOR, TRAINING_ROLES, Replica
from trainjob.core.wording import printable, quoted, reason_word

# Values from untrusted JSON: a value of an unexpected type counts as absent.


INT64_MAX = 2**63 - 1
"""The API server stores no larger number."""

LONGEST_NAME = 253
"""Characters of an object's name, by Kubernetes' rules."""


def integer(value: object) -> int | None:
    """Return a whole number that a status can hold, or None."""
    good = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= INT64_MAX
    return value if good and isinstance(value, int) else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object; an empty one for any other value."""
    return value if isinstance(value, Mapping) else {}


def count(value: object) -> int:
    """Return a count, cut to the range that a status field allows, from 0 to `INT32_MAX`."""
    return min(max(integer(value) or 0, 0), INT32_MAX)


def finite(value: object) -> float | None:
    """Return a number that JSON can hold as a float, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) > INT64_MAX:
        return None
    return float(value) if math.isfinite(value) else None


def text(value: object, longest: int = LONGEST_NAME) -> str:
    """Return the beginning of a text, on one line, without terminal control sequences."""
    if not isinstance(value, str):
        return ""
    if len(value) <= longest and value.isprintable():
        return value
    return printable(" ".join(value[: 4 * longest].splitlines()).replace("\t", " "))[:longest]


def tail(value: object, longest: int) -> str:
    """Return the end of a log, without terminal control sequences; line breaks stay."""
    return printable(value[-4 * longest :])[-longest:] if isinstance(value, str) else ""


def known(raw: Mapping[str, Any], readers: Mapping[str, Callable[[Any], object]]) -> dict[str, Any]:
    """Return the keys of a JSON object that have a reader, each with the reader's result."""
    return {key: read(raw[key]) for key, read in readers.items() if key in raw}


# Progress reports of training processes.


_MOST_METRICS = 32
_LONGEST_NAME = 128
_STATE = 64
_LONGEST_SENTENCE = 4096
"""Characters that are read."""


@dataclass(frozen=True)
class EvaluationResult:
    """The evaluator's result for one checkpoint; metric values are text, as in the status."""

    step: int
    metrics: Mapping[str, str]
    final: bool = False


@dataclass(frozen=True)
class Report:
    """The latest progress report of one training process; None for values that it didn't report.

    Attributes:
        state: `starting`, `waiting`, `preparing`, `training`, `saving`, `evaluating`, `finished` or `failed`.
        step: steps done.
        epoch: the current one, from 1.
        checkpoint_step: the step of the newest complete checkpoint.
        resumed_from: the step that this process resumed from.
        step_seconds: recent duration of a step.
        work_seconds: the part of `step_seconds` that is this replica's own work, not waiting for others.
        input_seconds: the part of `work_seconds` in which it waited for its data.
        global_batch: examples per step, of all workers together.
        stopped_early: why training ended before `total_steps`; empty if it didn't.
    """

    state: str = ""
    step: int | None = None
    total_steps: int | None = None
    epoch: int | None = None
    total_epochs: int | None = None
    loss: float | None = None
    examples_per_second: float | None = None
    step_seconds: float | None = None
    work_seconds: float | None = None
    input_seconds: float | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)
    checkpoint_step: int | None = None
    resumed_from: int | None = None
    global_batch: int | None = None
    evaluation: EvaluationResult | None = None
    stopped_early: str = ""


def read_report(raw: Mapping[str, Any]) -> Report:
    """Return the report; values of an unexpected type are left out."""
    evaluation = raw.get("evaluation")
    return Report(
        state=_state(raw.get("state")),
        step=integer(raw.get("step")),
        total_steps=integer(raw.get("totalSteps")),
        epoch=integer(raw.get("epoch")),
        total_epochs=integer(raw.get("totalEpochs")),
        loss=_number(raw.get("loss")),
        examples_per_second=finite(raw.get("examplesPerSecond")),
        step_seconds=finite(raw.get("stepSeconds")),
        work_seconds=finite(raw.get("workSeconds")),
        input_seconds=finite(raw.get("inputSeconds")),
        metrics=_metrics(raw.get("metrics")),
        checkpoint_step=integer(raw.get("checkpointStep")),
        resumed_from=integer(raw.get("resumedFrom")),
        global_batch=integer(raw.get("globalBatch")),
        evaluation=_evaluation(evaluation) if isinstance(evaluation, Mapping) else None,
        stopped_early=_sentence(raw.get("stoppedEarly")),
    )


def project_progress(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a report that is kept: known keys, with values cut to their limits."""
    return known(raw, _PROGRESS)


def _evaluation(raw: Mapping[str, Any]) -> EvaluationResult | None:
    step = integer(raw.get("step"))
    if step is None:
        return None
    return EvaluationResult(step, _metrics(raw.get("metrics")), final=raw.get("final") is True)


def _number(value: object) -> float | None:
    """Return a float; JSON has no NaN or infinity, so reports write them as text."""
    if isinstance(value, float):
        return value
    if isinstance(value, str):
        return float(value) if value in ("nan", "inf", "-inf") else None
    return finite(value)


def _metrics(value: object) -> dict[str, str]:
    return {name: f"{_number(number):.6g}" for name, number in _known_metrics(value).items()}


def _known_metrics(value: object) -> dict[str, Any]:
    """Return the first `_MOST_METRICS` metrics, as they were reported."""
    numbers = ((name, _figure(n)) for name, n in mapping(value).items() if _is_name(name))
    return dict(islice(((name, n) for name, n in numbers if n is not None), _MOST_METRICS))


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isprintable() and len(name) <= _LONGEST_NAME


def _state(value: object) -> str:
    return text(value, _STATE)


def _sentence(value: object) -> str:
    return quoted(value[:_LONGEST_SENTENCE]) if isinstance(value, str) else ""


def _figure(value: object) -> object:
    """Return a number as it was reported, or None; NaN and infinities become text."""
    number = _number(value)
    if number is None:
        return None
    return value if math.isfinite(number) else str(number)


def _known_evaluation(value: object) -> dict[str, Any] | None:
    return known(value, _EVALUATION) if isinstance(value, Mapping) else None


def _known_error(value: object) -> dict[str, Any] | None:
    return known(value, _ERROR) if isinstance(value, Mapping) else None


def _error_message(value: object) -> str:
    return printable(value[:_LONGEST_SENTENCE]) if isinstance(value, str) else ""


_ERROR: Mapping[str, Callable[[Any], object]] = {"reason": text, "message": _error_message}
_EVALUATION: Mapping[str, Callable[[Any], object]] = {
    "step": integer,
    "metrics": _known_metrics,
    "final": lambda value: value is True,
}
_PROGRESS: Mapping[str, Callable[[Any], object]] = {
    "state": _state,
    **dict.fromkeys(("step", "totalSteps", "epoch", "totalEpochs", "globalBatch"), integer),
    **dict.fromkeys(("checkpointStep", "resumedFrom", "evaluatedBatches"), integer),
    **dict.fromkeys(("loss", "examplesPerSecond", "stepSeconds", "workSeconds", "inputSeconds"), _figure),
    "metrics": _known_metrics,
    "evaluation": _known_evaluation,
    "stoppedEarly": _sentence,
    "error": _known_error,
    "time": finite,
}


# Reports of a job's agents.
#
# An agent runs in the user's image, so its reports are untrusted: they are cut to the known keys, replicas
# and lengths before they are kept, and their texts are cleaned of terminal control sequences.


MEETING = "meeting"
REPLICA_RUNNING = "running"
STOPPING = "stopping"

IDLE = "idle"
LOST = "lost"
ABSENT = "absent"

LOG_TAIL = 2048
"""Characters that are kept of the end of a log; agents send the same number."""

_WORD = 32
_MESSAGE = 500
_MOST_DIGITS = 6


@dataclass(frozen=True)
class ChildFailure:
    """The failure of a training process, as its agent reports it.

    Attributes:
        reason: a name from the table of exit codes, `OutOfMemory` or `Stalled`.
        exit_code: 128+n for death by signal n; None if the process was stopped because it stalled.
        message: one line.
        charged: the restart counts against `maxRestarts`.
        permanent: its agent reports that a restart can't help.
        repeated: the same failure has come several times in a row, and the agents have given up.
        alone: only this process restarts, while the others continue training.
    """

    seat: Replica
    pod: str
    reason: str
    exit_code: int | None = None
    message: str = ""
    log_tail: str = ""
    step: int | None = None
    charged: bool = True
    permanent: bool = False
    repeated: bool = False
    alone: bool = False


@dataclass(frozen=True)
class Ledger:
    """Restart counts of the training; every value but `since_progress` only grows."""

    attempt: int = 0
    charged: int = 0
    uncharged: int = 0
    refunded: int = 0
    since_progress: int = 0
    furthest_step: int | None = None

    @property
    def restarts(self) -> int:
        """Return all restarts, counted and uncounted."""
        return self.charged + self.uncharged


@dataclass(frozen=True)
class Member:
    """One replica as the leading agent sees it.

    Attributes:
        state: `absent`, `idle`, `running`, `stopping`, `finished` or `lost`.
        seconds: how long it has been in that state.
    """

    pod: str = ""
    state: str = ABSENT
    seconds: float = 0.0
    report: Report | None = None


@dataclass(frozen=True)
class Gang:
    """The leading agent's latest report.

    Attributes:
        phase: `meeting`, `running`, `stopping`, `finished` or `failed`.
        world: replicas of each training role in the current attempt.
        failure: the cause of the latest restart, or of the end.
        unreachable: seconds for which no agent has answered the controller.
        leader_lost: seconds for which another agent hasn't reached the leading one, or None.
    """

    phase: str = ""
    ledger: Ledger = field(default_factory=Ledger)
    world: Mapping[str, int] = field(default_factory=dict)
    failure: ChildFailure | None = None
    members: Mapping[Replica, Member] = field(default_factory=dict)
    unreachable: float = 0.0
    leader_lost: float | None = None


@dataclass(frozen=True)
class AgentWords:
    """The termination message of an agent that has failed.

    Attributes:
        gave_up: the agents have decided not to restart training.
        failure: the cause.
    """

    gave_up: bool
    failure: ChildFailure | None
    ledger: Ledger
    report: Report | None


def read_gang(raw: Mapping[str, Any]) -> Gang:
    """Return the report of a job's agents; values of an unexpected type are left out."""
    members = {
        seat: _member(value)
        for name, value in mapping(raw.get("members")).items()
        if (seat := read_seat(name)) is not None
    }
    return Gang(
        phase=_word(raw.get("phase")),
        ledger=read_ledger(mapping(raw.get("ledger"))),
        world=_world(raw.get("world")),
        failure=_failure(raw.get("failure")),
        members=members,
        unreachable=finite(raw.get("unreachableSeconds")) or 0.0,
        leader_lost=finite(mapping(raw.get("witness")).get("leaderLostSeconds")),
    )


def project_report(raw: Mapping[str, Any], replicas: Container[str]) -> dict[str, Any]:
    """Return the part of an agent report that is kept: known keys and replicas, values cut to their limits.

    Args:
        raw: as the agent has sent it.
        replicas: names of the replicas that the job has, or has pods of.
    """
    members = mapping(raw.get("members"))
    kept = {name: known(mapping(member), _MEMBER) for name, member in members.items() if name in replicas}
    return {**known(raw, _REPORT), **({"members": kept} if "members" in raw else {})}


def replica_names(world: Mapping[str, int]) -> Iterator[str]:
    """Yield the names of all replicas of a world, such as `worker-1`."""
    return (Replica(role, index).name for role, number in world.items() for index in range(number))


def read_agent_words(raw: Mapping[str, Any]) -> AgentWords | None:
    """Return an agent's termination message, or None if another program wrote it."""
    if raw.get("agent") != 1:
        return None
    report = raw.get("report")
    return AgentWords(
        gave_up=raw.get("gaveUp") is True,
        failure=_failure(raw.get("failure")),
        ledger=read_ledger(mapping(raw.get("ledger"))),
        report=read_report(report) if isinstance(report, Mapping) else None,
    )


def read_ledger(raw: Mapping[str, Any]) -> Ledger:
    """Return the restart counts; missing ones are 0."""
    return Ledger(
        attempt=count(raw.get("attempt")),
        charged=count(raw.get("charged")),
        uncharged=count(raw.get("uncharged")),
        refunded=count(raw.get("refunded")),
        since_progress=count(raw.get("sinceProgress")),
        furthest_step=integer(raw.get("furthestStep")),
    )


def read_seat(name: object) -> Replica | None:
    """Return the replica of a name such as `worker-1`, or None."""
    role, _, index = str(name).rpartition("-")
    if role not in (*TRAINING_ROLES, EVALUATOR) or not index.isascii() or not index.isdigit():
        return None
    return Replica(role, int(index)) if len(index) <= _MOST_DIGITS else None


def _member(raw: object) -> Member:
    member = mapping(raw)
    report = member.get("report")
    return Member(
        pod=text(member.get("pod")),
        state=_word(member.get("state")) or ABSENT,
        seconds=finite(member.get("seconds")) or 0.0,
        report=read_report(report) if isinstance(report, Mapping) else None,
    )


def _failure(raw: object) -> ChildFailure | None:
    failure = mapping(raw)
    seat = read_seat(failure.get("seat", ""))
    if seat is None:
        return None
    return ChildFailure(
        seat=seat,
        pod=text(failure.get("pod")),
        reason=_reason(failure.get("reason")),
        exit_code=integer(failure.get("exitCode")),
        message=_message(failure.get("message")),
        log_tail=_log_tail(failure.get("logTail")),
        step=integer(failure.get("step")),
        charged=failure.get("charged") is not False,
        permanent=failure.get("permanent") is True,
        repeated=failure.get("repeated") is True,
        alone=failure.get("alone") is True,
    )


def _word(value: object) -> str:
    return text(value, _WORD)


def _reason(value: object) -> str:
    return reason_word(value, "Crashed")


def _message(value: object) -> str:
    return text(value, _MESSAGE)


def _log_tail(value: object) -> str:
    return tail(value, LOG_TAIL)


def _world(value: object) -> dict[str, int]:
    counts = {role: integer(mapping(value).get(role)) for role in (*TRAINING_ROLES, EVALUATOR)}
    return {role: n for role, n in counts.items() if n is not None}


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _part(readers: Mapping[str, Callable[[Any], object]]) -> Callable[[Any], object]:
    """Return a reader of an object that may be null."""
    return lambda value: known(value, readers) if isinstance(value, Mapping) else None


def _progress(value: object) -> dict[str, Any] | None:
    return project_progress(value) if isinstance(value, Mapping) else None


_LEDGER: Mapping[str, Callable[[Any], object]] = {
    **dict.fromkeys(("attempt", "charged", "uncharged", "refunded", "sinceProgress"), count),
    "furthestStep": integer,
}
_FAILURE: Mapping[str, Callable[[Any], object]] = {
    **dict.fromkeys(("seat", "pod"), text),
    **dict.fromkeys(("incarnation", "attempt", "exitCode", "signal", "step"), integer),
    "reason": _reason,
    "message": _message,
    "logTail": _log_tail,
    **dict.fromkeys(("charged", "permanent", "repeated", "alone"), _flag),
    "time": finite,
}
_MEMBER: Mapping[str, Callable[[Any], object]] = {
    "pod": text,
    "incarnation": integer,
    "state": _word,
    "seconds": finite,
    "report": _progress,
}
_REPORT: Mapping[str, Callable[[Any], object]] = {
    **dict.fromkeys(("type", "role", "phase", "child"), _word),
    **dict.fromkeys(("phaseSeconds", "leaderLostSeconds", "beatAge"), finite),
    **dict.fromkeys(("seat", "pod"), text),
    **dict.fromkeys(("attempt", "incarnation"), integer),
    "stopped": _flag,
    "report": _progress,
    "world": _world,
    "ledger": _part(_LEDGER),
    "failure": _part(_FAILURE),
}
"""Keys of an agent report, the leading agent's or another's, except `members`."""
