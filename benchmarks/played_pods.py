"""Pods that no node runs: somebody who plays the kubelet, and the agents that would be in them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from typing import Any

from measuring import Manifest, Mirror

from trainjob.api import AGENT_PORT
from trainjob.cluster import ClusterError
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import PODS
from trainjob.core.names import LABEL_INCARNATION, LABEL_INDEX, LABEL_JOB, LABEL_ROLE
from trainjob_trainer.contract.wire import (
    GREETING,
    LARGEST_FIRST_FRAME,
    LENGTH_BYTES,
    NONCE_BYTES,
    InvalidFrame,
    Opener,
    read_length,
    session_key,
)

Answer = Callable[[Mapping[str, Any]], bytes]
"""What an agent says to an order: JSON."""

WRITES = 8
"""Statuses of pods that are written at once."""


class Addresses:
    """Loopback addresses, one a pod, all below `127.<network>`."""

    def __init__(self, network: int) -> None:
        self._network = network
        self._taken: dict[str, str] = {}

    def of(self, pod: Manifest) -> str:
        """Return the pod's own address."""
        number = len(self._taken) + 1
        place = f"127.{self._network}.{number >> 8}.{number & 255}"
        return self._taken.setdefault(pod["metadata"]["uid"], place)


class Pods(Mirror):
    """The pods of one namespace, by the jobs whose labels they have."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        super().__init__(api, PODS, namespace)
        self._of_jobs: dict[str, dict[str, Manifest]] = {}
        self._arrivals: dict[str, list[float]] = {}

    def see(self, kind: str, thing: Manifest) -> None:
        """See `Mirror`."""
        name, job = thing["metadata"]["name"], job_of(thing)
        pods = self._of_jobs.setdefault(job, {})
        if kind == "DELETED":
            pods.pop(name, None)
            return
        if name not in pods:
            self._arrivals.setdefault(job, []).append(time.perf_counter())
        pods[name] = thing

    async def has(self, job: str, count: int) -> float:
        """Return the moment at which the job's last of so many pods was seen; replacements come later."""
        arrivals = self._arrivals.setdefault(job, [])
        await self.until(lambda: len(arrivals) >= count)
        return arrivals[count - 1]

    async def runs(self, job: str, count: int) -> None:
        """Return once so many of the job's pods run."""
        await self.until(lambda: self._running(job) >= count)

    def of_job(self, job: str) -> list[Manifest]:
        """Return the pods with the label of this job."""
        return list(self._of_jobs.get(job, {}).values())

    def _running(self, job: str) -> int:
        return sum(pod["status"].get("phase") == "Running" for pod in self.of_job(job))


class Kubelet(Pods):
    """Has the pods of one namespace run, and end when it is told to.

    Args:
        api: may do everything.
        namespace: whose pods.
        addresses: where they are.
        starts: called with a pod before it runs; one for which it returns False stays Pending.
    """

    def __init__(
        self,
        api: ApiClient,
        namespace: str,
        addresses: Addresses,
        starts: Callable[[Manifest], Awaitable[bool]],
    ) -> None:
        super().__init__(api, namespace)
        self._addresses = addresses
        self._starts = starts
        self._places = asyncio.Semaphore(WRITES)
        self._ending: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def see(self, kind: str, thing: Manifest) -> None:
        """See `Mirror`."""
        super().see(kind, thing)
        if kind != "DELETED":
            self._see_to(thing)

    def end(self, job: str) -> None:
        """Let the job's pods end well, those to come included."""
        self._ending.add(job)
        for pod in self.of_job(job):
            self._see_to(pod)

    def _see_to(self, pod: Manifest) -> None:
        task = asyncio.ensure_future(self._write(pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, pod: Manifest) -> None:
        phase = pod["status"].get("phase")
        if phase == "Pending" and await self._starts(pod):
            await self._set(pod, "Running", {"running": {"startedAt": _now()}})
        elif phase == "Running" and job_of(pod) in self._ending:
            ended = {"exitCode": 0, "reason": "Completed", "startedAt": _now(), "finishedAt": _now()}
            await self._set(pod, "Succeeded", {"terminated": ended})

    async def _set(self, pod: Manifest, phase: str, state: Manifest) -> None:
        running, host = phase == "Running", self._addresses.of(pod)
        trainer = {"name": "trainer", "image": "example.com/none:1", "imageID": "", "restartCount": 0}
        status = {
            **pod["status"],
            "phase": phase,
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": str(running)},
            ],
            "containerStatuses": [{**trainer, "ready": running, "state": state}],
            "podIP": host,
            "podIPs": [{"ip": host}],
        }
        changed = {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"], "status": status}
        with suppress(ClusterError):  # it has changed, or gone: the watch tells
            async with self._places:
                await self._api.replace(PODS, changed, subresource="status")


class Agent:
    """Listens at one pod's address.

    Attributes:
        called_at: the moment of each connection.
        answered: orders that were answered.
    """

    def __init__(
        self, answer: Answer | None, token: str = "", *, delay: float = 0.0, trickles: bool = False
    ) -> None:
        """Make an agent.

        Args:
            answer: what it says; None says nothing, and keeps the connection.
            token: the job's.
            delay: how long it thinks before it answers, in seconds.
            trickles: it says a byte a second.
        """
        self._answer = answer
        self._token = token
        self._delay = delay
        self._trickles = trickles
        self._writers: set[asyncio.StreamWriter] = set()
        self.called_at: list[float] = []
        self.answered = 0

    @asynccontextmanager
    async def listen(self, host: str) -> AsyncIterator[None]:
        """Listen while in the context."""
        server = await asyncio.start_server(self._serve, host, AGENT_PORT, limit=1 << 21)
        try:
            yield
        finally:
            server.close()
            for writer in set(self._writers):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.called_at.append(time.perf_counter())
        self._writers.add(writer)
        try:
            if self._answer is not None:
                await self._say(reader, writer, self._answer)
            elif self._trickles:
                await _trickle(writer)
            else:
                await reader.read()
        except (InvalidFrame, asyncio.IncompleteReadError, ConnectionError):
            pass  # as a real one does: the connection is closed, nothing else happens
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _say(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
        nonce = os.urandom(NONCE_BYTES)
        writer.write(GREETING + nonce)
        key = session_key(self._token, nonce, await reader.readexactly(NONCE_BYTES))
        length = read_length(await reader.readexactly(LENGTH_BYTES), LARGEST_FIRST_FRAME)
        order = Opener(key, b"C").open(await reader.readexactly(length))["order"]
        if self._delay:
            await asyncio.sleep(self._delay)
        writer.write(_frame(key, answer(order)))
        await writer.drain()
        self.answered += 1


def _frame(key: bytes, payload: bytes) -> bytes:
    """Return the first frame of an agent, also of what a true one would never say (docs/contract.md)."""
    tag = hmac.new(key, b"S" + bytes(8) + payload, hashlib.sha256).digest()
    return (len(tag) + len(payload)).to_bytes(LENGTH_BYTES, "big") + tag + payload


async def _trickle(writer: asyncio.StreamWriter) -> None:
    for byte in GREETING + os.urandom(NONCE_BYTES):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(1)


@asynccontextmanager
async def a_black_hole(host: str) -> AsyncIterator[None]:
    """Let nobody connect there, and refuse nobody: the queue of a listening socket is full."""
    with socket.create_server((host, AGENT_PORT), backlog=0) as listening:
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            for _ in range(2):
                filling = stack.enter_context(socket.socket())
                filling.setblocking(False)
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await loop.sock_connect(filling, listening.getsockname())
            yield


def job_of(pod: Manifest) -> str:
    """Return the name of the job whose label a pod has; empty if it has none."""
    return (pod["metadata"].get("labels") or {}).get(LABEL_JOB, "")


def honest_answer(pods: Pods, job: str, *, moves: bool = True, restart_at: int = 0) -> Answer:
    """Return what the leading agent of a job says whose training goes on.

    Args:
        pods: those of the job among others.
        job: its name.
        moves: whether each call brings another step; else there is nothing new to report.
        restart_at: the number of the call that first reports a restart of worker 1 in place; 0 for none.
    """
    calls = count(1)

    def answer(order: Mapping[str, Any]) -> bytes:
        call = next(calls)
        members = dict(map(_member, pods.of_job(job)))
        leader = members.get("worker-0", {})
        leader["report"] = {"state": "training", "step": call if moves else 1, "totalSteps": 1 << 30}
        attempt = max((member["incarnation"] for member in members.values()), default=1)
        running = all(member["state"] != "idle" for member in members.values())
        restarts = int(0 < restart_at <= call)
        failure = {"replica": "worker-1", "incarnation": 1, "attempt": 1, "reason": "Killed", "exitCode": 137}
        report = {
            "type": "report",
            "role": "leader",
            "phase": "running" if running else "meeting",
            "phaseSeconds": 1.0,
            "attempt": attempt + restarts,
            "world": order["world"],
            "restarts": {"attempt": attempt + restarts, "counted": restarts},
            "failure": failure if restarts else None,
            "members": members,
        }
        return json.dumps(report).encode()

    return answer


def _member(pod: Manifest) -> tuple[str, Manifest]:
    labels = pod["metadata"]["labels"]
    state = {"Running": "running", "Succeeded": "finished"}.get(pod["status"].get("phase", ""), "idle")
    name, incarnation = pod["metadata"]["name"], int(labels[LABEL_INCARNATION])
    member = {"pod": name, "incarnation": incarnation, "state": state, "seconds": 1.0}
    return f"{labels[LABEL_ROLE]}-{labels[LABEL_INDEX]}", member


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
