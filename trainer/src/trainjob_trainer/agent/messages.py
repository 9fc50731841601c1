"""The messages of agents and the controller: the leading agent's events and its answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from trainjob_trainer.contract.exits import ExitCode
from trainjob_trainer.contract.replicas import NAME
from trainjob_trainer.contract.reports import FAILED, FINISHED, IDLE, RUNNING, STOPPING, Failure
from trainjob_trainer.contract.restarts import RestartCounts
from trainjob_trainer.contract.targets import MalformedMessage, Target, read_number, read_seconds

QUIET = frozenset([IDLE, FINISHED])
"""No training process of the last start is left."""


@dataclass(frozen=True)
class Join:
    """A replica's agent has connected, for the first time or again.

    Attributes:
        link: the connection; the leading agent's own replica has one too, without a network.
        address: where its training process will listen, `host:port`.
        child: as in `Beat`.
        attempt: the latest start that it knows.
        counts: the job's restarts, as it knows them.
    """

    link: int
    replica: str
    incarnation: int
    pod: str
    address: str
    child: str = IDLE
    attempt: int = 0
    counts: RestartCounts = field(default_factory=RestartCounts)


@dataclass(frozen=True)
class Beat:
    """An agent's heartbeat, with the state of its training process.

    Attributes:
        child: `idle`, `running`, `stopping` or `finished`.
        attempt: the latest start that it knows.
        report: the training process's last progress report, or None.
        age: seconds since the report was last written, or None.
        stopped: a signal or a debugger has stopped the training process.
    """

    link: int
    child: str
    attempt: int
    report: Mapping[str, Any] | None = None
    age: float | None = None
    stopped: bool = False


@dataclass(frozen=True)
class Failed:
    """A training process has failed."""

    link: int
    attempt: int
    failure: Failure


@dataclass(frozen=True)
class Leaving:
    """An agent must end, at the latest after its grace."""

    link: int


@dataclass(frozen=True)
class Lost:
    """A connection has ended or timed out."""

    link: int


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Union[Join, Beat, Failed, Leaving, Lost, Target, Tick]


@dataclass(frozen=True)
class Send:
    """Send a message on a connection."""

    link: int
    message: Mapping[str, Any]


@dataclass(frozen=True)
class HangUp:
    """Close a connection after its messages are sent."""

    link: int


Effect = Union[Send, HangUp]


def count_roles(replicas: Iterable[str]) -> dict[str, int]:
    """Return the number of these replicas in each role, in their order."""
    return dict(Counter(replica.rpartition("-")[0] for replica in replicas))


def welcome(beat_seconds: float, lost_seconds: float, incarnation: int) -> dict[str, Any]:
    """Return the answer to a join: the heartbeat policy, and the number of the leader's pod."""
    policy = {"beatSeconds": beat_seconds, "lostSeconds": lost_seconds}
    return {"type": "welcome", "policy": policy, "incarnation": incarnation}


def start(
    attempt: int, generation: str, tf_config: Mapping[str, Any], counts: RestartCounts
) -> dict[str, Any]:
    """Return the message that starts training; only the highest `generation` may write the output."""
    known = counts.to_json()
    return {
        "type": "start",
        "attempt": attempt,
        "epoch": generation,
        "tfConfig": tf_config,
        "restarts": known,
    }


def stop(attempt: int, *, graceful: bool, stacks: bool = False) -> dict[str, Any]:
    """Return the message that ends the training process; with `stacks`, it prints its stacks first."""
    return {"type": "stop", "attempt": attempt, "graceful": graceful, "stacks": stacks}


def end(code: int, verdict: str, failure: Failure | None, counts: RestartCounts) -> dict[str, Any]:
    """Return the message that ends an agent; the verdict is `finished`, `failed` or `dismissed`."""
    cause = failure.to_json() if failure else None
    return {"type": "end", "code": code, "verdict": verdict, "failure": cause, "restarts": counts.to_json()}


def farewell(pod: str, failure: Failure | None, counts: RestartCounts) -> dict[str, Any]:
    """Return the end message: 0 without a failure, the failure's code for its own pod, else PEER_LOST."""
    if failure is None:
        return end(int(ExitCode.SUCCESS), FINISHED, None, counts)
    own = ExitCode.STALLED if failure.exit_code is None else failure.exit_code
    code = int(own if failure.pod == pod else ExitCode.PEER_LOST)
    return end(code, FAILED, failure, counts)


# Reading the messages of members and the controller from the frames' JSON.


_CHILD_STATES = frozenset([IDLE, RUNNING, STOPPING, FINISHED])


def read_member_message(link: int, raw: Mapping[str, Any]) -> Event | None:
    """Return a member's event; None for a message type of a later version."""
    kind = raw.get("type")
    if kind == "beat":
        return _beat(link, raw)
    if kind == "failed":
        failure = raw.get("failure")
        if not isinstance(failure, Mapping):
            raise MalformedMessage("failed: without a failure")
        return Failed(link, read_number(raw, "attempt"), Failure.from_json(failure))
    return Leaving(link) if kind == "leaving" else None


def read_join(link: int, raw: Mapping[str, Any]) -> Join:
    """Return a member's first message."""
    replica = _text(raw, "replica")
    if not NAME.fullmatch(replica):
        raise MalformedMessage(f"join: no replica is called {replica[:40]!r}")
    return Join(
        link,
        replica,
        read_number(raw, "incarnation"),
        _text(raw, "pod"),
        _text(raw, "address"),
        _child(raw),
        read_number(raw, "attempt"),
        RestartCounts.from_json(raw.get("restarts")),
    )


def _beat(link: int, raw: Mapping[str, Any]) -> Beat:
    report = raw.get("report")
    return Beat(
        link,
        _child(raw),
        read_number(raw, "attempt"),
        report if isinstance(report, Mapping) else None,
        read_seconds(raw.get("beatAge")),
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
