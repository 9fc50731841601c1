"""What a job's agents say of themselves, read leniently: a report never breaks a job.

The image that an agent runs in is its author's: whatever it says is cut to the known keys, replicas and
lengths before it is kept, and no text of it reaches a terminal uncleaned.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainjob.core.lenient import count, finite, integer, known, mapping, tail, text
from trainjob.core.names import Replica
from trainjob.core.reports import Report, project_progress, read_report
from trainjob.core.topology import EVALUATOR, TRAINING_ROLES
from trainjob.core.wording import reason_word

MEETING = "meeting"
RUNNING = "running"
STOPPING = "stopping"

IDLE = "idle"
LOST = "lost"
ABSENT = "absent"

LOG_TAIL = 2048
"""Characters of a log's end that are kept; agents send as many."""

_WORD = 32
_MESSAGE = 500
_MOST_DIGITS = 6


@dataclass(frozen=True)
class ChildFailure:
    """How a training process ended badly, as its agent saw it.

    Attributes:
        reason: the word of the table of exit codes, `OutOfMemory` or `Stalled`.
        exit_code: 128+n for a death by signal n; None when it was ended for a stall.
        message: one line.
        charged: the restart for it counts against `maxRestarts`.
        permanent: starting again can't help, by the word of its agent.
        repeated: the same failure has come several times in a row, and the agents have given up.
        alone: this process alone is started again, while the others train on.
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
    """How often training was restarted, in whichever way; every figure but `since_progress` only grows."""

    attempt: int = 0
    charged: int = 0
    uncharged: int = 0
    refunded: int = 0
    since_progress: int = 0
    furthest_step: int | None = None

    @property
    def restarts(self) -> int:
        """Return all of them."""
        return self.charged + self.uncharged


@dataclass(frozen=True)
class Member:
    """One seat as the leading agent sees it.

    Attributes:
        state: `absent`, `idle`, `running`, `stopping`, `finished` or `lost`.
        seconds: since when it has been in that state.
    """

    pod: str = ""
    state: str = ABSENT
    seconds: float = 0.0
    report: Report | None = None


@dataclass(frozen=True)
class Gang:
    """The leading agent's latest answer.

    Attributes:
        phase: `meeting`, `running`, `stopping`, `finished` or `failed`.
        world: replicas of each training role in the current attempt.
        failure: what started the latest restart, or the end.
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
    """The termination message of an agent that has ended badly.

    Attributes:
        gave_up: the agents have decided that training isn't started again.
        failure: what began it.
    """

    gave_up: bool
    failure: ChildFailure | None
    ledger: Ledger
    report: Report | None


def read_gang(raw: Mapping[str, Any]) -> Gang:
    """Return the answer of a job's agents; values of an unexpected type are left out."""
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
    """Return what is kept of an agent's report: known keys of known replicas, no value too large.

    Args:
        raw: as the agent has sent it.
        replicas: names of those that the job has, or has pods of.
    """
    members = mapping(raw.get("members"))
    kept = {name: known(mapping(member), _MEMBER) for name, member in members.items() if name in replicas}
    return {**known(raw, _REPORT), **({"members": kept} if "members" in raw else {})}


def replica_names(world: Mapping[str, int]) -> Iterator[str]:
    """Yield the names of all replicas of a world, such as `worker-1`."""
    return (Replica(role, index).name for role, number in world.items() for index in range(number))


def read_agent_words(raw: Mapping[str, Any]) -> AgentWords | None:
    """Return what an agent left behind, or None when these are another program's words."""
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
    """Return the ledger; what is missing is 0."""
    return Ledger(
        attempt=count(raw.get("attempt")),
        charged=count(raw.get("charged")),
        uncharged=count(raw.get("uncharged")),
        refunded=count(raw.get("refunded")),
        since_progress=count(raw.get("sinceProgress")),
        furthest_step=integer(raw.get("furthestStep")),
    )


def read_seat(name: object) -> Replica | None:
    """Return the seat of a name such as `worker-1`, or None."""
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
    """Return what reads an object that may be null."""
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
"""Of the leading agent's report, `members` aside, and of another one's."""
