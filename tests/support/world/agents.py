"""A job's agents on the fake cluster: what they would answer, without any process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from support.world.world import World


@dataclass
class Agents:
    """Agents that start training once all are there, restart it in place, and report to the controller.

    `failure` started the latest restart. Training continues without a pod for the replicas `away`. The
    leading agent can't reach those `lost`, for so many seconds.
    """

    world: World
    phase: str = "meeting"
    attempt: int = 0
    counted: int = 0
    not_counted: int = 0
    reset: int = 0
    failure: dict[str, Any] | None = None
    lost: dict[str, float] = field(default_factory=dict)
    state_of_lost: str = "lost"
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    unreachable: float = 0.0
    witness: dict[str, Any] | None = None
    without: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)
    notices: list[str] = field(default_factory=list)

    def meet(self, without: Collection[str] = ()) -> None:
        """All that are wanted are there: training starts, and reports of the attempt before are dropped."""
        self.without = set(without)
        self.reports = {name: report for name, report in self.reports.items() if name == "evaluator-0"}
        incarnations = [int(p["metadata"]["labels"]["trainjob.dev/incarnation"]) for p in self._pods()]
        self.attempt = max(self.attempt + 1, *incarnations)
        self.phase = "running"
        self.tell()

    def fail(
        self, replica: str, *, code: int = 1, message: str = "", counted: bool = True, **more: Any
    ) -> None:
        """A training process ends badly, and all are stopped to meet again."""
        self.phase = "meeting"
        self._count(replica, code=code, message=message, counted=counted, **more)

    def fail_alone(self, replica: str, *, code: int = 1, message: str = "", **more: Any) -> None:
        """A worker's training process ends badly, and is started again while the others train on."""
        self.attempt += 1
        self._count(replica, code=code, message=message, counted=True, alone=True, **more)

    def _count(self, replica: str, *, code: int, message: str, counted: bool, **more: Any) -> None:
        self.counted += int(counted)
        self.not_counted += int(not counted)
        self.failure = {
            "replica": replica,
            "pod": self._pod_of(replica)["metadata"]["name"],
            "attempt": self.attempt,
            "reason": "Crashed",
            "exitCode": code,
            "message": message,
            "counted": counted,
            **more,
        }
        self.tell()

    def report(self, replica: str, **report: Any) -> None:
        self.reports[replica] = report
        self.tell()

    def tell(self) -> None:
        """The leading agent answers the controller."""
        members = {_replica(pod): self._member(pod) for pod in self._pods()}
        self.world.cluster.answer(
            self.world.key,
            {
                "type": "report",
                "role": "leader",
                "phase": self.phase,
                "attempt": self.attempt,
                "world": dict(Counter(s.rpartition("-")[0] for s in self._trainees(members))),
                "restarts": self.restarts,
                "failure": self.failure,
                "notices": self.notices,
                "members": members,
                "unreachableSeconds": self.unreachable,
                "witness": self.witness,
            },
        )

    def _trainees(self, members: Collection[str]) -> list[str]:
        """Those of the attempt: beside parameter servers a worker that is away still belongs to it."""
        training = {replica for replica in members if not replica.startswith("evaluator")}
        if self.phase != "running" or not any(replica.startswith("ps-") for replica in members):
            return sorted(training - self.without)
        return sorted({*training, *self.away} - self.without)

    def words(self, *, gave_up: bool = True) -> dict[str, Any]:
        """What every agent leaves behind when all have given up."""
        return {"agent": 1, "gaveUp": gave_up, "failure": self.failure, "restarts": self.restarts}

    @property
    def restarts(self) -> dict[str, int]:
        """What they know of restarts."""
        counts = {"counted": self.counted, "notCounted": self.not_counted, "reset": self.reset}
        return {"attempt": self.attempt, **counts}

    def _member(self, pod: dict[str, Any]) -> dict[str, Any]:
        replica = _replica(pod)
        trains = self.phase == "running" and replica not in self.without
        state = self.state_of_lost if replica in self.lost else "running" if trains else "idle"
        return {
            "pod": pod["metadata"]["name"],
            "incarnation": int(pod["metadata"]["labels"]["trainjob.dev/incarnation"]),
            "state": state,
            "seconds": self.lost.get(replica, 1.0),
            "report": self.reports.get(replica),
        }

    def _pod_of(self, replica: str) -> dict[str, Any]:
        role, _, index = replica.rpartition("-")
        return self.world.pod(role, int(index))

    def _pods(self) -> list[dict[str, Any]]:
        pods = [p for p in self.world.pods if p["metadata"]["labels"].get("trainjob.dev/live")]
        return [p for p in pods if _replica(p) in self.lost or not _replica(p).startswith("evaluator")]


def _replica(pod: dict[str, Any]) -> str:
    labels = pod["metadata"]["labels"]
    return f"{labels['trainjob.dev/role']}-{labels['trainjob.dev/index']}"


async def training(job: dict[str, Any]) -> tuple[World, Agents]:
    """Take a job with agents to where it trains."""
    world = World(job)
    agents = Agents(world)
    await world.settle()
    world.each(world.cluster.run_pod)
    agents.tell()
    await world.settle()
    agents.meet()
    await world.settle()
    return world, agents
