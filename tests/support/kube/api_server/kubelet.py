"""A kubelet for the fake API server: it runs pods and ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from support.kube.api_server.server import FakeApiServer

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
