"""What members and the controller tell the leading agent, read from the frames' JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainjob_trainer.agent.failure import Failure
from trainjob_trainer.agent.ledger import Ledger
from trainjob_trainer.agent.messages import (
    FINISHED,
    IDLE,
    RUNNING,
    STOPPING,
    TRAINING_ROLES,
    Beat,
    Event,
    Failed,
    Join,
    Leaving,
    Order,
    split_seat,
)

_CHILD_STATES = frozenset([IDLE, RUNNING, STOPPING, FINISHED])


class MalformedMessage(ValueError):
    """Somebody who knows the token says something that no version of ours says."""


def read_member_message(link: int, raw: Mapping[str, Any]) -> Event | None:
    """Return what a member says; None for a kind of message that only a later version knows.

    Raises:
        MalformedMessage: a field is missing or of a wrong type.
    """
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
    """Return a member's first message.

    Raises:
        MalformedMessage: a field is missing or of a wrong type.
    """
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
    """Return the controller's order.

    Raises:
        MalformedMessage: it is not one.
    """
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
