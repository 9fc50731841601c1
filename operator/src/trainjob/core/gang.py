"""What a job's agents say of themselves, read leniently: a report never breaks a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainjob.core.lenient import integer, mapping
from trainjob.core.names import Replica
from trainjob.core.reports import Report, read_report

MEETING = "meeting"
RUNNING = "running"
STOPPING = "stopping"

IDLE = "idle"
LOST = "lost"
ABSENT = "absent"


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
        phase=str(raw.get("phase", "")),
        ledger=read_ledger(mapping(raw.get("ledger"))),
        world={role: n for role, n in mapping(raw.get("world")).items() if isinstance(n, int)},
        failure=_failure(raw.get("failure")),
        members=members,
        unreachable=_seconds(raw.get("unreachableSeconds")) or 0.0,
        leader_lost=_seconds(mapping(raw.get("witness")).get("leaderLostSeconds")),
    )


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
        attempt=_count(raw.get("attempt")),
        charged=_count(raw.get("charged")),
        uncharged=_count(raw.get("uncharged")),
        refunded=_count(raw.get("refunded")),
        since_progress=_count(raw.get("sinceProgress")),
        furthest_step=integer(raw.get("furthestStep")),
    )


def read_seat(name: object) -> Replica | None:
    """Return the seat of a name such as `worker-1`, or None."""
    role, dash, index = str(name).rpartition("-")
    return Replica(role, int(index)) if dash and role and index.isascii() and index.isdigit() else None


def _member(raw: object) -> Member:
    member = mapping(raw)
    report = member.get("report")
    return Member(
        pod=str(member.get("pod") or ""),
        state=str(member.get("state", ABSENT)),
        seconds=_seconds(member.get("seconds")) or 0.0,
        report=read_report(report) if isinstance(report, Mapping) else None,
    )


def _failure(raw: object) -> ChildFailure | None:
    failure = mapping(raw)
    seat = read_seat(failure.get("seat", ""))
    if seat is None:
        return None
    return ChildFailure(
        seat=seat,
        pod=str(failure.get("pod") or ""),
        reason=str(failure.get("reason") or "Crashed"),
        exit_code=integer(failure.get("exitCode")),
        message=str(failure.get("message") or ""),
        log_tail=str(failure.get("logTail") or ""),
        step=integer(failure.get("step")),
        charged=failure.get("charged") is not False,
        permanent=failure.get("permanent") is True,
        repeated=failure.get("repeated") is True,
        alone=failure.get("alone") is True,
    )


def _count(value: object) -> int:
    return max(integer(value) or 0, 0)


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
