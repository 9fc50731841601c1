"""A fake cluster with a clock of its own and a controller that is driven by hand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from support.world.fake_cluster import FakeCluster
from trainjob.api import TrainJobStatus
from trainjob.cluster.protocol import ClusterError
from trainjob.controller import Reconciler
from trainjob.core.names import LABEL_INCARNATION, LABEL_INDEX, LABEL_ROLE
from trainjob.core.settings import Settings

START = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """One job on a fake cluster; nothing happens but what the test asks for."""

    def __init__(self, job: dict[str, Any], settings: Settings | None = None) -> None:
        self.now = START
        self.settings = settings
        self.cluster = FakeCluster(lambda: self.now)
        self.restart_controller()
        self.key = self.cluster.apply(job)
        self.source = job

    def restart_controller(self) -> None:
        """A new controller, which remembers nothing."""
        self.reconciler = Reconciler(self.cluster, lambda: self.now, self.settings)

    async def settle(self, *, passes: int = 30) -> timedelta | None:
        """Reconcile until a pass writes nothing, and return when the controller wants to look again."""
        for _ in range(passes):
            before = len(self.cluster.writes)
            again = await self._reconcile()
            if len(self.cluster.writes) == before and (again is None or again > timedelta(seconds=0.1)):
                return again
        raise AssertionError(f"still writing after {passes} passes: {self.cluster.writes[-10:]}")

    async def _reconcile(self) -> timedelta | None:
        try:
            return await self.reconciler.reconcile(self.key)
        except ClusterError:
            return timedelta(0)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, reconciling whenever the controller wants to."""
        end = self.now + timedelta(seconds=seconds)
        again = await self.settle()
        while again is not None and self.now + again <= end:
            self.now += again
            again = await self.settle()
        self.now = end
        await self.settle()

    @property
    def status(self) -> TrainJobStatus:
        return TrainJobStatus.model_validate(self.cluster.job(self.key).get("status", {}))

    @property
    def pods(self) -> list[dict[str, Any]]:
        return self.cluster.pods(self.key)

    def pod(self, role: str, index: int = 0) -> dict[str, Any]:
        """The newest pod of a replica."""
        found = [p for p in self.pods if _replica(p) == (role, index)]
        return max(found, key=lambda p: int(p["metadata"]["labels"][LABEL_INCARNATION]))

    def each(self, change: Callable[[dict[str, Any]], None], role: str | None = None) -> None:
        """Do something to every pod (of a role)."""
        for pod in self.pods:
            if role is None or _replica(pod)[0] == role:
                change(pod)

    def edit(self, **spec: Any) -> None:
        self.source = {**self.source, "spec": {**self.source["spec"], **spec}}
        self.cluster.apply(self.source)

    def let_go(self) -> None:
        """Processes of terminating pods end."""
        for pod in self.pods:
            if "deletionTimestamp" in pod["metadata"]:
                self.cluster.end_pod(pod, 143)

    def cut_off(self, pod: dict[str, Any], node: str = "gpu-3") -> None:
        """The pod's node hears of nothing any more; the cluster asks for the pod's end."""
        stored = self.cluster.at_node(pod, node)
        self.cluster.ask_to_end(stored)

    async def started(self) -> World:
        """Take the job to where all its replicas run."""
        await self.settle()
        self.each(self.cluster.run_pod)
        await self.settle()
        return self


def _replica(pod: dict[str, Any]) -> tuple[str, int]:
    labels = pod["metadata"]["labels"]
    return labels[LABEL_ROLE], int(labels[LABEL_INDEX])
