"""Agents that say what a test wants: one that listens as real ones do, and all pods' without a network."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from trainjob.cluster.agents.poller import AgentIntervals, AgentPolling
from trainjob.cluster.agents.wire import AgentUnreachable
from trainjob_trainer.contract.restarts import RestartCounts
from trainjob_trainer.contract.wire import (
    GREETING,
    LARGEST_FIRST_FRAME,
    LENGTH_BYTES,
    NONCE_BYTES,
    InvalidFrame,
    Opener,
    Sealer,
    read_length,
    session_key,
)

Manifest = dict[str, Any]
Report = dict[str, Any]


def build_report(phase: str = "running", *, attempt: int = 1, step: int = 10, **more: Any) -> Report:
    """Return what a leading agent of two workers says."""
    return {
        "type": "report",
        "role": "leader",
        "phase": phase,
        "phaseSeconds": 1.0,
        "attempt": attempt,
        "world": {"worker": 2},
        "restarts": RestartCounts(attempt, counted=attempt - 1).to_json(),
        "failure": None,
        "members": {
            f"worker-{index}": {
                "pod": f"digits-worker-{index}-0",
                "incarnation": 1,
                "state": "running",
                "seconds": 1.0,
                "report": {"state": "training", "step": step},
            }
            for index in range(2)
        },
        **more,
    }


def build_witness(lost: float | None, replica: str = "worker-1") -> Report:
    """Return what a member says."""
    return {
        "type": "report",
        "role": "member",
        "replica": replica,
        "child": "running",
        "leaderLostSeconds": lost,
    }


class FakeAgent:
    """An agent that answers with `report`; one that `is_mute` takes connections and says nothing."""

    def __init__(self, token: str, report: Report | None = None) -> None:
        self.token = token
        self.report = report or build_report()
        self.is_mute = False
        self.targets: list[Any] = []
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def serve(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, host, port)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if not self.is_mute:
                await self._answer(reader, writer)
            else:
                await reader.read()
        except (InvalidFrame, asyncio.IncompleteReadError, ConnectionError):
            pass  # as a real one does: the connection is closed, nothing else happens
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonce = os.urandom(NONCE_BYTES)
        writer.write(GREETING + nonce)
        key = session_key(self.token, nonce, await reader.readexactly(NONCE_BYTES))
        length = read_length(await reader.readexactly(LENGTH_BYTES), LARGEST_FIRST_FRAME)
        self.targets.append(Opener(key, b"C").open(await reader.readexactly(length))["order"])
        writer.write(Sealer(key, b"S").seal(self.report))
        await writer.drain()


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
