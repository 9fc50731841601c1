"""Whatever happens to a job in a queue: it has pods only by Kueue's leave, keeps Kueue's rules, and ends."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.world.kueue import QueueWorld, build_queued_job
from trainjob.cluster import Conflict, Unavailable

Manifest = dict[str, Any]

STEPS = (
    *("admit", "admit fewer", "evict", "run", "run", "crash", "let go", "let go", "succeed"),
    *("suspend", "resume", "scale up", "scale down", "delete workload", "restart controller", "lose a write"),
)
SCHEDULES = st.lists(st.sampled_from(STEPS), min_size=3, max_size=15)
LIVES = settings().max_examples // 5


class Life(QueueWorld):
    """A job with up to four workers, one step after the other; Kueue follows a deactivation at once."""

    def __init__(self, strategy: str) -> None:
        self.workers = 3
        role = {"replicas": self.workers, "minReplicas": 1} if strategy == "InPlace" else {"replicas": 3}
        super().__init__(build_queued_job(worker=role, restartStrategy=strategy, maxRestarts=50))
        self._role = role
        self._seen: Manifest = {}

    async def step(self, name: str) -> None:
        found = self.cluster.workload(self.key)
        is_asking = found is not None and _asks(found)
        match name:
            case "admit" | "admit fewer" if is_asking:
                least = 1 if name == "admit fewer" and "minReplicas" in self._role else None
                await self.admit({"worker": least} if least else None)
            case "evict" if found is not None and _is_true(found, "Admitted"):
                await self.evict()
            case "run":
                self.each(lambda pod: self.cluster.run_pod(pod) if _is_pending(pod) else None)
            case "crash" | "succeed":
                running = [pod for pod in self.pods if pod["status"]["phase"] == "Running"]
                for pod in running if name == "succeed" else running[:1]:
                    self.cluster.end_pod(pod, int(name == "crash"))
            case "let go":
                self.let_go()
            case "suspend" | "resume":
                self.edit(suspend=name == "suspend")
            case "scale up" | "scale down":
                self.workers = 4 if name == "scale up" else 2
                self.edit(worker={**self._role, "replicas": self.workers})
            case "delete workload" if found is not None and found["metadata"].get("finalizers"):
                self.cluster.change(found, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
            case "restart controller":
                self.restart_controller()
            case "lose a write":
                errors: list[Exception] = [Conflict("changed"), Unavailable("no answer")]
                self.cluster.fault = lambda _operation, _manifest: errors.pop() if errors else None
        await self.pass_time(5)
        await self._follow()
        self._check()

    async def _follow(self) -> None:
        """Do as Kueue, which evicts what was deactivated."""
        found = self.cluster.workload(self.key)
        if found is None or found["spec"].get("active", True) or _is_true(found, "Evicted"):
            return
        self.tell(("Evicted", True, "Deactivated", "The workload is deactivated"))
        await self.settle()

    def _check(self) -> None:
        found = self.cluster.workload(self.key)
        allowed = _allowed(found) if found is not None else {}
        living = [p for p in self.pods if "deletionTimestamp" not in p["metadata"] and not _has_ended(p)]
        there = Counter(pod["metadata"]["labels"]["trainjob.dev/role"] for pod in living)
        assert all(count <= allowed.get(role, 0) for role, count in there.items()), (there, allowed)
        running = [pod for pod in self.pods if not _has_ended(pod)]
        assert not running or (found is not None and _is_true(found, "QuotaReserved"))
        if found is not None and self._seen and found["metadata"]["uid"] == self._seen["metadata"]["uid"]:
            _keeps_rules(self._seen, found)
        self._seen = deepcopy(found or {})

    async def to_the_end(self) -> None:
        """Everybody does what is asked of them."""
        self.edit(suspend=False)
        for _ in range(20):
            for name in ("let go", "admit", "run", "succeed"):
                await self.step(name)
            if self.status.state in ("Complete", "Failed"):
                return
        raise AssertionError(f"still {self.status.state}: {self.status.message}")


def _is_true(workload: Manifest, kind: str) -> bool:
    conditions = workload.get("status", {}).get("conditions", ())
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def _asks(workload: Manifest) -> bool:
    waits = not _is_true(workload, "QuotaReserved") and not _is_true(workload, "Finished")
    return waits and workload["spec"].get("active", True) and "deletionTimestamp" not in workload["metadata"]


def _allowed(workload: Manifest) -> dict[str, int]:
    is_over = _is_true(workload, "Evicted") or "deletionTimestamp" in workload["metadata"]
    if is_over or not _is_true(workload, "Admitted"):
        return {}
    status = workload["status"]
    free = {each["name"]: each["count"] for each in status.get("reclaimablePods", ())}
    asked = {each["name"]: each["count"] for each in workload["spec"]["podSets"]}
    assigned = {each["name"]: each["count"] for each in status["admission"]["podSetAssignments"]}
    return {role: min(count, asked[role] - free.get(role, 0)) for role, count in assigned.items()}


def _keeps_rules(before: Manifest, after: Manifest) -> None:
    if not (_is_true(before, "QuotaReserved") and _is_true(after, "QuotaReserved")):
        return
    assert before["spec"]["podSets"] == after["spec"]["podSets"]
    free = {each["name"]: each["count"] for each in after["status"].get("reclaimablePods", ())}
    for each in before["status"].get("reclaimablePods", ()):
        assert each["count"] <= free.get(each["name"], 0)


def _is_pending(pod: Manifest) -> bool:
    return pod["status"]["phase"] == "Pending" and "deletionTimestamp" not in pod["metadata"]


def _has_ended(pod: Manifest) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


@settings(max_examples=LIVES)
@given(SCHEDULES, st.sampled_from(["InPlace", "Recreate"]))
async def test_a_job_in_a_queue_keeps_to_it_and_ends(schedule: list[str], strategy: str) -> None:
    life = Life(strategy)
    await life.settle()
    for name in ("admit", "run", *schedule):
        await life.step(name)
    await life.to_the_end()
    assert life.status.state == "Complete"
    found = life.cluster.workload(life.key)
    assert found is None or (_is_true(found, "Finished") and not found["metadata"]["finalizers"])
