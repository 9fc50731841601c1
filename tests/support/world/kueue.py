"""What Kueue does with the Workload of a job, step by step."""

from __future__ import annotations

from typing import Any

from support.world.jobs import build_plain_job
from support.world.world import World
from trainjob.core.integrations.kueue import Kueue
from trainjob.core.settings import Settings

Manifest = dict[str, Any]

QUEUE = {"kueue.x-k8s.io/queue-name": "research"}


def build_queued_job(labels: dict[str, str] | None = None, **changes: Any) -> Manifest:
    """Return a job that names a queue; without agents, unless `restartStrategy` says otherwise."""
    return build_plain_job(metadata={"labels": {**QUEUE, **(labels or {})}}, **changes)


class QueueWorld(World):
    """A job in a queue, on a fake cluster with a Kueue that does only what the test asks for."""

    def __init__(self, job: Manifest | None = None, kueue: str | None = "v1beta2") -> None:
        served = {"kueue.x-k8s.io": (kueue,), "scheduling.k8s.io": ("v1",)}
        integrations = () if kueue is None else (Kueue.find(served),)
        super().__init__(job or build_queued_job(), Settings(integrations=integrations))
        self.add("ResourceFlavor", "default", spec={})

    def add(self, kind: str, name: str, **fields: Any) -> None:
        """Create a cluster-wide object."""
        self.cluster.put({"kind": kind, "metadata": {"name": name}, **fields})

    @property
    def workload(self) -> Manifest:
        found = self.cluster.workload(self.key)
        assert found is not None
        return found

    def condition(self, kind: str) -> tuple[str, str] | None:
        """Return status and reason of a condition of the Workload."""
        conditions = self.workload.get("status", {}).get("conditions", ())
        return next(((c["status"], c["reason"]) for c in conditions if c["type"] == kind), None)

    def tell(self, *conditions: tuple[str, bool, str, str], **status: Any) -> None:
        """Kueue writes conditions (type, value, reason, message), and other fields of the status."""
        known = {c["type"]: c for c in self.workload.get("status", {}).get("conditions", ())}
        for kind, value, reason, message in conditions:
            known[kind] = {"type": kind, "status": str(value), "reason": reason, "message": message}
            known[kind]["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        patch = {"status": {"conditions": list(known.values()), **status}}
        self.cluster.change(self.workload, patch)

    async def admit(self, counts: dict[str, int] | None = None, **assigned: Any) -> None:
        """Kueue admits the job, or so many pods of a role; `assigned` adds to each role's assignment."""
        sets = self.workload["spec"]["podSets"]
        assignments = [
            {
                "name": pods["name"],
                "flavors": {"cpu": "default"},
                "count": (counts or {}).get(pods["name"], pods["count"]),
                **assigned,
            }
            for pods in sets
        ]
        self.tell(
            ("QuotaReserved", True, "QuotaReserved", "Quota reserved in ClusterQueue all"),
            ("Admitted", True, "Admitted", "The workload is admitted"),
            ("Evicted", False, "QuotaReserved", ""),
            admission={"clusterQueue": "all", "podSetAssignments": assignments},
        )
        await self.settle()

    async def evict(self, reason: str = "Preempted", message: str = "preempted by UID 7") -> None:
        """Kueue asks for the quota back."""
        self.tell(("Evicted", True, reason, message))
        await self.settle()

    async def started(self) -> QueueWorld:
        """Take the job to where it is admitted and all its replicas run."""
        await self.settle()
        await self.admit()
        self.each(self.cluster.run_pod)
        await self.settle()
        return self
