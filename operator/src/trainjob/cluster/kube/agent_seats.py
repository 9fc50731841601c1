"""Which of a job's agents can be asked, and which one leads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.api import TRAINER_CONTAINER
from trainjob.cluster.protocol import Manifest
from trainjob.core.names import LABEL_INCARNATION, LABEL_INDEX, LABEL_LIVE, LABEL_ROLE

_ROLES = ("chief", "worker", "ps", "evaluator")
"""In the order in which members are asked for what the leading agent doesn't tell."""


@dataclass(frozen=True, slots=True)
class AgentSeat:
    """An agent that runs.

    Attributes:
        pod: its pod's uid.
        host: its pod's address.
    """

    pod: str
    host: str


@dataclass(frozen=True, slots=True)
class AgentSeats:
    """The agents of one job.

    Attributes:
        leader: the leading one, or None while it doesn't run.
        others: those of the other seats that run.
    """

    leader: AgentSeat | None
    others: tuple[AgentSeat, ...]


def find_agents(pods: Iterable[Manifest], world: Mapping[str, Any]) -> AgentSeats:
    """Return the agents of these pods.

    Args:
        pods: of the job; of two in one seat the later one counts.
        world: replicas of each training role: a job with a chief is led by the chief's agent.
    """
    leading = ("chief" if "chief" in world else "worker", 0)
    newest: dict[tuple[str, int], tuple[int, Manifest]] = {}
    for pod in pods:
        seat = _seat_of(pod)
        if seat is None:
            continue
        place, incarnation = seat
        if place not in newest or newest[place][0] < incarnation:
            newest[place] = incarnation, pod
    running = {place: agent for place, (_, pod) in newest.items() if (agent := _agent_of(pod)) is not None}
    leader = running.pop(leading, None)
    return AgentSeats(leader, tuple(running[place] for place in sorted(running, key=_rank)))


def _seat_of(pod: Manifest) -> tuple[tuple[str, int], int] | None:
    """Return role and index, and the incarnation, of a pod that the job still counts on."""
    labels = pod["metadata"].get("labels") or {}
    if labels.get(LABEL_LIVE) != "true":
        return None
    try:
        return (labels[LABEL_ROLE], int(labels[LABEL_INDEX])), int(labels[LABEL_INCARNATION])
    except (KeyError, ValueError):
        return None


def _agent_of(pod: Manifest) -> AgentSeat | None:
    status = pod.get("status") or {}
    host = status.get("podIP")
    is_running = any(
        container.get("name") == TRAINER_CONTAINER and "running" in (container.get("state") or {})
        for container in status.get("containerStatuses") or ()
    )
    return AgentSeat(pod["metadata"]["uid"], host) if host and is_running else None


def _rank(place: tuple[str, int]) -> tuple[int, int]:
    role, index = place
    return (_ROLES.index(role) if role in _ROLES else len(_ROLES)), index


def names_of(pods: Iterable[Manifest]) -> Iterator[str]:
    """Yield the name of each pod's replica, such as `worker-1`."""
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        yield f"{labels.get(LABEL_ROLE)}-{labels.get(LABEL_INDEX)}"
