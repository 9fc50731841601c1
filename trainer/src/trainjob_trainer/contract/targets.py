"""The agent target, which the controller sends to a job's leading agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainjob_trainer.contract.replicas import TRAINING_ROLES
from trainjob_trainer.contract.restarts import RestartCounts
from trainjob_trainer.contract.wire import integer


@dataclass(frozen=True)
class Target:
    """The controller's target for the worker group; None for what it leaves open.

    Attributes:
        world: the number of replicas of each training role.
        without: replicas among them that are unavailable: training continues without them.
        incarnations: the newest pod of each replica: older ones are being replaced.
        max_restarts: the limit of counted restarts.
        stall_timeout: seconds without progress that are a failure; None for no limit.
        counts: the job's restarts, as the controller knows them.
        lease: the transitions of the controllers' Lease when this controller acquired it; 0 without a Lease,
            and from a version that doesn't send it.
        generation: the job's `metadata.generation` that it has seen; 0 likewise.
        memory_grows: workers get more memory after an out-of-memory kill, which doesn't count then.
    """

    world: Mapping[str, int] | None = None
    without: frozenset[str] = frozenset()
    incarnations: Mapping[str, int] = field(default_factory=dict)
    max_restarts: int | None = None
    stall_timeout: float | None = None
    counts: RestartCounts = field(default_factory=RestartCounts)
    lease: int = 0
    generation: int = 0
    memory_grows: bool = False

    @property
    def version(self) -> tuple[int, int]:
        """Return the key that orders targets: the Lease comes first, so a deposed controller's are older."""
        return self.lease, self.generation

    @classmethod
    def from_json(cls, raw: object) -> Target:
        """Read a target; MalformedMessage if no version of the controller sends such a one."""
        if not isinstance(raw, Mapping):
            raise MalformedMessage("order: not an object")
        world, without = _read_numbers(raw, "world"), raw.get("without")
        without = without if isinstance(without, list) else []
        return cls(
            world={role: n for role, n in world.items() if n > 0 and role in TRAINING_ROLES} or None,
            without=frozenset(one for one in without if isinstance(one, str)),
            incarnations=_read_numbers(raw, "incarnations"),
            max_restarts=integer(raw.get("maxRestarts"), 0),
            stall_timeout=read_seconds(raw.get("stallTimeoutSeconds")),
            counts=RestartCounts.from_json(raw.get("restarts")),
            lease=read_number({"lease": 0, **raw}, "lease"),
            generation=read_number({"generation": 0, **raw}, "generation"),
            memory_grows=raw.get("memoryGrows") is True,
        )

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return {
            "lease": self.lease,
            "generation": self.generation,
            "world": self.world,
            "without": sorted(self.without),
            "incarnations": self.incarnations,
            "maxRestarts": self.max_restarts,
            "stallTimeoutSeconds": self.stall_timeout,
            "restarts": self.counts.to_json(),
            "memoryGrows": self.memory_grows,
        }


class MalformedMessage(ValueError):
    """A peer with the token has sent a message that no version of the agent sends."""


def read_number(raw: Mapping[str, Any], key: str) -> int:
    """Return a number from 0; MalformedMessage if the value of this key is none."""
    value = integer(raw.get(key), 0)
    if value is None:
        raise MalformedMessage(f"{key}: not a number from 0")
    return value


def read_seconds(value: object) -> float | None:
    """Return seconds, from 0; None for any other value."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9:
        return float(value)
    return None


def _read_numbers(raw: Mapping[str, Any], key: str) -> dict[str, int]:
    value = raw.get(key, {})
    if not isinstance(value, Mapping) or any(integer(count, 0) is None for count in value.values()):
        raise MalformedMessage(f"{key}: not an object of numbers")
    return dict(value)
