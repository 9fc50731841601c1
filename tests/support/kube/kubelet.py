"""A kubelet for a fake API server: it runs pods and ends them; and the agents that would be in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from support.kube.apiserver import FakeApiServer
from trainjob.cluster.agents.poller import AgentIntervals, AgentPolling
from trainjob.cluster.agents.wire import AgentUnreachable

Manifest = dict[str, Any]


class Kubelet:
    """Sees to each pod now and then; `exit_code` is asked each time, and None lets the pod run on."""

    def __init__(self, server: FakeApiServer, exit_code: Callable[[Manifest], int | None]) -> None:
        self._server = server
        self.exit_code = exit_code

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            self._server.collect_garbage()
            for place, pod in list(self._server.objects.items()):
                if place[0] == "Pod":
                    self._see_to(pod)
            await asyncio.sleep(0.01)

    def _see_to(self, pod: Manifest) -> None:
        meta, phase = pod["metadata"], pod.get("status", {}).get("phase", "Pending")
        if "deletionTimestamp" in meta:
            self._server.remove("Pod", meta["name"], meta["namespace"])
        elif phase == "Pending":
            self.set(pod, "Running", {"running": {"startedAt": self._server.now()}}, ready=True)
        elif phase == "Running" and (code := self.exit_code(pod)) is not None:
            self.end(pod, code)

    def end(self, pod: Manifest, code: int) -> None:
        ended = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "finishedAt": self._server.now(),
        }
        self.set(pod, "Failed" if code else "Succeeded", {"terminated": ended})

    def set(self, pod: Manifest, phase: str, state: Manifest, *, ready: bool = False) -> None:
        status = {
            "phase": phase,
            "podIP": pod["metadata"]["uid"],
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": str(ready)},
            ],
            "containerStatuses": [{"name": "trainer", "state": state}],
        }
        self._server.put({**pod, "status": status})


class GhostAgents:
    """What the agents of a job would answer whose pods run, without any network: they train.

    Each pod has an address of its own. Answers hold `more` beside that, or instead. `targets` are the last
    ones, by job.
    """

    def __init__(self, pods: Callable[[], list[Manifest]]) -> None:
        self._pods = pods
        self.more: Manifest = {}
        self.targets: dict[str, Mapping[str, Any]] = {}

    @property
    def polling(self) -> AgentPolling:
        """How they are asked: often."""
        return AgentPolling(sync=self, intervals=AgentIntervals(steady=0.05, hasty=0.05))

    async def __call__(
        self, host: str, _port: int, _token: str, target: Mapping[str, Any], **_timeout: float
    ) -> Mapping[str, Any]:
        pods = self._pods()
        leader = next((pod for pod in pods if _host(pod) == host), None)
        if leader is None:
            raise AgentUnreachable("no such pod")
        job = leader["metadata"]["labels"]["trainjob.dev/job"]
        self.targets[job] = target
        mine = [pod for pod in pods if pod["metadata"]["labels"]["trainjob.dev/job"] == job]
        members = dict(map(_member, mine))
        attempt = max(member["incarnation"] for member in members.values())
        return {
            "type": "report",
            "role": "leader",
            "phase": "running" if all(m["state"] != "idle" for m in members.values()) else "meeting",
            "attempt": attempt,
            "world": target["world"],
            "restarts": {"attempt": attempt},
            "members": members,
            **self.more,
        }


def _host(pod: Manifest) -> str | None:
    host: str | None = pod.get("status", {}).get("podIP")
    return host


def _member(pod: Manifest) -> tuple[str, Manifest]:
    labels = pod["metadata"]["labels"]
    state = {"Running": "running", "Succeeded": "finished"}.get(pod["status"]["phase"], "idle")
    member = {
        "pod": pod["metadata"]["name"],
        "incarnation": int(labels["trainjob.dev/incarnation"]),
        "state": state,
        "seconds": 1.0,
    }
    return f"{labels['trainjob.dev/role']}-{labels['trainjob.dev/index']}", member
