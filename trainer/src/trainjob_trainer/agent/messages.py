"""What agents and the controller say to each other: events for the leading agent and its orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from trainjob_trainer.agent.budget import Ledger
from trainjob_trainer.agent.failure import Failure
from trainjob_trainer.errors import ExitCode

IDLE = "idle"
RUNNING = "running"
STOPPING = "stopping"
FINISHED = "finished"
QUIET = frozenset([IDLE, FINISHED])
"""No training process is left of the last start."""

TRAINING_ROLES = ("chief", "worker", "ps")
OBSERVER = "evaluator"


@dataclass(frozen=True)
class Join:
    """A seat's agent has come, or has come back.

    Attributes:
        link: the connection; the leading agent's own seat has one too, without a network.
        seat: such as `worker-1`.
        incarnation: which of the seat's pods it is in.
        address: where its training process listens once it is started, `host:port`.
        child: as in `Beat`.
        attempt: the latest start that it has seen.
        ledger: what it knows of the job's restarts.
    """

    link: int
    seat: str
    incarnation: int
    pod: str
    address: str
    child: str = IDLE
    attempt: int = 0
    ledger: Ledger = field(default_factory=Ledger)


@dataclass(frozen=True)
class Beat:
    """An agent is there, and says what its training process does.

    Attributes:
        child: `idle`, `running`, `stopping` or `finished`.
        attempt: the latest start that it has seen.
        report: the training process's last progress report, or None.
        age: seconds since the report was last written, or None.
        stopped: the training process has been stopped by a signal, as by a debugger.
    """

    link: int
    child: str
    attempt: int
    report: Mapping[str, Any] | None = None
    age: float | None = None
    stopped: bool = False


@dataclass(frozen=True)
class Failed:
    """A training process has ended badly."""

    link: int
    attempt: int
    failure: Failure


@dataclass(frozen=True)
class Leaving:
    """An agent has been asked to end, and stays for as long as its grace allows."""

    link: int


@dataclass(frozen=True)
class Lost:
    """A connection has ended, or has been silent for too long."""

    link: int


@dataclass(frozen=True)
class Order:
    """What the controller wants; None where it says nothing.

    Attributes:
        world: how many replicas each training role is to have.
        without: seats among them that can't be had for now: training goes on without them.
        incarnations: the newest pod of each seat: older ones are being replaced.
        max_restarts: how many charged restarts are allowed.
        stall_timeout: seconds without progress that are a failure; None for no limit.
        ledger: what the controller knows of the job's restarts.
        lease: how often the controllers' Lease had changed hands when this one got it; 0 without a Lease, and
            from a version that says nothing of it.
        generation: of the job that it has seen; 0 likewise.
    """

    world: Mapping[str, int] | None = None
    without: frozenset[str] = frozenset()
    incarnations: Mapping[str, int] = field(default_factory=dict)
    max_restarts: int | None = None
    stall_timeout: float | None = None
    ledger: Ledger = field(default_factory=Ledger)
    lease: int = 0
    generation: int = 0

    @property
    def version(self) -> tuple[int, int]:
        """Return what orders are compared by: a deposed controller's are older, whatever job it has seen."""
        return self.lease, self.generation


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Union[Join, Beat, Failed, Leaving, Lost, Order, Tick]


@dataclass(frozen=True)
class Send:
    """Say this on a connection."""

    link: int
    message: Mapping[str, Any]


@dataclass(frozen=True)
class HangUp:
    """End a connection, after what has been said on it."""

    link: int


Effect = Union[Send, HangUp]


def split_seat(seat: str) -> tuple[str, int] | None:
    """Return role and index of a seat, or None if it isn't one."""
    role, _, index = seat.rpartition("-")
    if role not in (*TRAINING_ROLES, OBSERVER) or not (
        index.isascii() and index.isdigit() and len(index) < 7
    ):
        return None
    return (role, int(index)) if str(int(index)) == index else None


def count_roles(seats: Iterable[str]) -> dict[str, int]:
    """Return how many of these seats each role has, in their order."""
    return dict(Counter(seat.rpartition("-")[0] for seat in seats))


def seats_of(world: Mapping[str, int]) -> list[str]:
    """Return all seats of a world."""
    return [f"{role}-{index}" for role, count in world.items() for index in range(count)]


def welcome(beat_seconds: float, lost_seconds: float, incarnation: int) -> dict[str, Any]:
    """Return the answer to a join: how often to beat, and which of its seat's pods the leader is in."""
    policy = {"beatSeconds": beat_seconds, "lostSeconds": lost_seconds}
    return {"type": "welcome", "policy": policy, "incarnation": incarnation}


def start(attempt: int, epoch: str, tf_config: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Return the order to start the training process; the highest `epoch` may write the output."""
    told = ledger.to_json()
    return {"type": "start", "attempt": attempt, "epoch": epoch, "tfConfig": tf_config, "ledger": told}


def stop(attempt: int, *, graceful: bool, stacks: bool = False) -> dict[str, Any]:
    """Return the order to end the training process; `stacks`: it shows first where it stands."""
    return {"type": "stop", "attempt": attempt, "graceful": graceful, "stacks": stacks}


def end(code: int, verdict: str, failure: Failure | None, ledger: Ledger) -> dict[str, Any]:
    """Return the order to leave with this exit code, because of `finished`, `failed` or `dismissed`."""
    told = failure.to_json() if failure else None
    return {"type": "end", "code": code, "verdict": verdict, "failure": told, "ledger": ledger.to_json()}


def farewell(pod: str, failure: Failure | None, ledger: Ledger) -> dict[str, Any]:
    """Return the order to leave: 0 without a failure, the failure's own code for its pod, else PEER_LOST."""
    if failure is None:
        return end(int(ExitCode.SUCCESS), FINISHED, None, ledger)
    code = failure.code_to_exit_with if failure.pod == pod else int(ExitCode.PEER_LOST)
    return end(code, "failed", failure, ledger)


# What members and the controller tell the leading agent, read from the frames' JSON.


_CHILD_STATES = frozenset([IDLE, RUNNING, STOPPING, FINISHED])


class MalformedMessage(ValueError):
    """A `read_` function has got what no version of ours says, from somebody who knows the token."""


def read_member_message(link: int, raw: Mapping[str, Any]) -> Event | None:
    """Return what a member says; None for a kind of message that only a later version knows."""
    kind = raw.get("type")
    if kind == "beat":
        return _beat(link, raw)
    if kind == "failed":
        failure = raw.get("failure")
        if not isinstance(failure, Mapping):
            raise MalformedMessage("failed: without a failure")
        return Failed(link, _integer(raw, "attempt"), Failure.from_json(failure))
    return Leaving(link) if kind == "leaving" else None


def read_join(link: int, raw: Mapping[str, Any]) -> Join:
    """Return a member's first message."""
    seat = _text(raw, "seat")
    if split_seat(seat) is None:
        raise MalformedMessage(f"join: no seat is called {seat[:40]!r}")
    return Join(
        link,
        seat,
        _integer(raw, "incarnation"),
        _text(raw, "pod"),
        _text(raw, "address"),
        _child(raw),
        _integer(raw, "attempt"),
        Ledger.from_json(raw.get("ledger")),
    )


def read_order(raw: object) -> Order:
    """Return the controller's order."""
    if not isinstance(raw, Mapping):
        raise MalformedMessage("order: not an object")
    world = _counts(raw, "world")
    limit = raw.get("stallTimeoutSeconds")
    restarts = raw.get("maxRestarts")
    return Order(
        world={role: n for role, n in world.items() if n > 0 and role in TRAINING_ROLES} or None,
        without=frozenset(_seats(raw.get("without"))),
        incarnations=_counts(raw, "incarnations"),
        max_restarts=restarts if _is_int(restarts) else None,
        stall_timeout=_seconds(limit),
        ledger=Ledger.from_json(raw.get("ledger")),
        lease=_integer(raw, "lease") if "lease" in raw else 0,
        generation=_integer(raw, "generation") if "generation" in raw else 0,
    )


def _beat(link: int, raw: Mapping[str, Any]) -> Beat:
    report = raw.get("report")
    return Beat(
        link,
        _child(raw),
        _integer(raw, "attempt"),
        report if isinstance(report, Mapping) else None,
        _seconds(raw.get("beatAge")),
        raw.get("stopped") is True,
    )


def _child(raw: Mapping[str, Any]) -> str:
    state = raw.get("child")
    if not isinstance(state, str) or state not in _CHILD_STATES:
        raise MalformedMessage("child: neither idle, running, stopping nor finished")
    return state


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= 512:
        raise MalformedMessage(f"{key}: not a short text")
    return value


def _integer(raw: Mapping[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise MalformedMessage(f"{key}: not a number from 0")
    return value


def _counts(raw: Mapping[str, Any], key: str) -> dict[str, int]:
    value = raw.get(key, {})
    if not isinstance(value, Mapping) or not all(_is_int(count) for count in value.values()):
        raise MalformedMessage(f"{key}: not an object of numbers")
    return dict(value)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _seats(value: object) -> list[str]:
    return [seat for seat in value if isinstance(seat, str)] if isinstance(value, list) else []


def _seconds(value: object) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9:
        return float(value)
    return None
