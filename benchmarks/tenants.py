"""How an honest tenant fares beside a hostile one, and what becomes of the controller.

    python benchmarks/tenants.py --kubeconfig FILE [--seconds S] [--attacks silent liars ...]

Needs a cluster with the CRD, no jobs, and no controller that looks after all namespaces: one runs here, with
an election, and is started again when it ends. No node runs the pods: the benchmark plays kubelet and agents.
The exit code is 1 if a promise did not hold, or if the honest tenant waits for more than --most times what it
waits alone. Progress goes to stderr, one line of JSON to stdout; docs/benchmarks.md explains it.
"""

from __future__ import annotations

import sys

# This folder comes first on the path, and operator.py in it has the name of a standard library's module.
sys.path.append(sys.path.pop(0))

import argparse
import asyncio
import base64
import json
import math
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from hostile_tenant import CONFIG_MAPS, RECURSION, add_attack_options, mounted
from measuring import GUARD_SECONDS, TRAINJOB, a_namespace, add_cluster_options, build_job, say, turn_of
from played_pods import Addresses, Agent, Kubelet, Manifest, honest_answer
from replicas import Usage
from tenant_figures import (
    MIB,
    Phase,
    Service,
    broken,
    describe,
    intervals,
    memory_bytes,
    ratios,
    too_slow,
    unclean,
)

from trainjob.cluster import ClusterError, NotFound
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access, from_kubeconfig
from trainjob.cluster.kube.resources import EVENTS, SECRETS, TRAINJOBS, Resource
from trainjob.core.agent import job_token
from trainjob.core.names import LABEL_INDEX, LABEL_JOB

VALUES = Path(__file__).parents[1] / "charts" / "trainjob" / "values.yaml"
KEY = "trainjob-agent-key"
LEASE = "trainjob-controller"
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")

EMPTY_SECONDS = 120.0
START_SECONDS = 60.0
FINISH_SECONDS = 120.0
"""How long jobs may take to complete once their pods have ended, before they count as unfinished."""

HOSTILE_SECONDS = 400.0
RESTART_SECONDS = 1.0
"""How soon the kubelet would start the controller again."""

PROBE_SECONDS = 0.2
HEALTH_TIMEOUT = 5.0
"""As the chart has it."""

LOOK_SECONDS = 0.05
WORKERS = 2


class SupervisedController:
    """The controller as a process that is started again when it ends, as the kubelet would.

    Attributes:
        restarts: how often it ended.
        peak_bytes: the largest resident set that any of them had.
        slowest_health: the seconds of the slowest answer to a look at its health.
        kept_seconds: the most processor time that it took before such an answer.
    """

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._log: list[str] = []
        self._spent = 0.0
        self._spent_before = 0.0
        self._unanswered: float | None = None
        self.port = 0
        self.at_work = asyncio.Event()
        self.restarts = -1
        self.peak_bytes = 0
        self.slowest_health = 0.0
        self.kept_seconds = 0.0

    async def run(self) -> None:
        """Keep it running until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_at_memory())
            group.create_task(self._look_at_health())
            while True:
                self.restarts += 1
                await self._run_once()
                await asyncio.sleep(RESTART_SECONDS)

    def log(self) -> str:
        """Return all that it has said."""
        return "".join(self._log)

    def processor_seconds(self) -> float:
        """Return what all of them have taken so far."""
        return self._spent_before + self._spent

    async def _run_once(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, limit=1 << 24
        )
        assert process.stderr is not None  # noqa: S101 - it is a pipe
        self._process = process
        try:
            while line := (await process.stderr.readline()).decode(errors="replace"):
                self._log.append(line)
                if "on port " in line:
                    self.port = int(line.split()[-1])
                if "At work" in line:
                    self.at_work.set()
            await process.wait()
        finally:
            self._answer_health()
            self._process, self.port = None, 0
            self._spent_before, self._spent = self._spent_before + self._spent, 0.0
            if process.returncode is None:
                process.kill()
                await process.wait()
        say(f"the controller has ended with exit code {process.returncode}")

    async def _look_at_memory(self) -> None:
        while True:
            if self._process:
                with suppress(OSError):  # it has just ended
                    usage = Usage.of(self._process.pid)
                    self.peak_bytes = max(self.peak_bytes, usage.peak_bytes)
                    self._spent = usage.processor_seconds
            await asyncio.sleep(LOOK_SECONDS)

    async def _look_at_health(self) -> None:
        timeout = aiohttp.ClientTimeout(total=HEALTH_TIMEOUT)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                if self.port:
                    await self._ask_health(session)
                await asyncio.sleep(PROBE_SECONDS)

    async def _ask_health(self, session: aiohttp.ClientSession) -> None:
        process, began = self._process, time.perf_counter()
        if self._unanswered is None:
            self._unanswered = self._spent
        with suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(f"http://127.0.0.1:{self.port}/livez") as answer:
                await answer.read()
            if process is self._process:
                self._answer_health()
        self.slowest_health = max(self.slowest_health, time.perf_counter() - began)

    def _answer_health(self) -> None:
        """Its event loop goes on, or never will: take note of what it has worked since it was asked first."""
        if self._unanswered is not None:
            self.kept_seconds = max(self.kept_seconds, self._spent - self._unanswered)
        self._unanswered = None


class HonestTenant:
    """Creates jobs at a steady pace, in whose pods agents answer, and sees each through to its end."""

    def __init__(
        self, api: ApiClient, namespace: str, key: bytes, controller: SupervisedController, network: int
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._key = key
        self._controller = controller
        self._addresses = Addresses(network)
        self.kubelet = Kubelet(api, namespace, self._addresses, self._start_pod)
        self._agents: dict[str, Agent] = {}
        self._listening: set[str] = set()
        self._stack = AsyncExitStack()
        self._probes = 0

    async def close(self) -> None:
        """Let no agent listen any more."""
        await self._stack.aclose()

    async def live(self, name: str, seconds: float, rate: float, lifetime: float) -> Phase:
        """Create jobs for so many seconds, `rate` a second, each of which trains for `lifetime` seconds."""
        probes: list[float] = []
        creations: list[float] = []
        first_calls: list[float] = []
        waits: list[float] = []
        spent = self._controller.processor_seconds()
        probing = asyncio.ensure_future(self._probe(name, probes))
        begin, lives = time.perf_counter(), []
        for number in range(round(seconds * rate)):
            await turn_of(number, rate, begin)
            life = self._live_one(f"{name}-{number}", lifetime, creations, first_calls, waits)
            lives.append(asyncio.ensure_future(life))
        await asyncio.gather(*lives)
        probing.cancel()
        return Phase(
            creations,
            first_calls,
            waits,
            probes,
            await self._unfinished(name, FINISH_SECONDS),
            self._controller.processor_seconds() - spent,
            self._controller.peak_bytes,
        )

    async def texts(self) -> list[str]:
        """Return what is unclean of what the honest jobs are told."""
        jobs = (await self._api.list(TRAINJOBS, self._namespace))["items"]
        events = (await self._api.list(EVENTS, self._namespace))["items"]
        found = [text for job in jobs for text in unclean(job["metadata"]["name"], job.get("status") or {})]
        return found + [
            text
            for event in events
            for text in unclean("event", {"reason": event["reason"], "message": event["message"]})
        ]

    async def _live_one(
        self, job: str, lifetime: float, creations: list[float], first_calls: list[float], waits: list[float]
    ) -> None:
        """See one job through; what does not come within the time counts as the time."""
        await self._api.create(TRAINJOBS, build_job(self._namespace, job, WORKERS, evaluator={"replicas": 0}))
        accepted = time.perf_counter()
        last = await _within(FINISH_SECONDS, self.kubelet.has(job, WORKERS))
        creations.append((last or time.perf_counter()) - accepted)
        if last is None:
            return
        await _within(FINISH_SECONDS, self.kubelet.runs(job, WORKERS))
        began = time.perf_counter()
        await asyncio.sleep(lifetime)
        ended = time.perf_counter()
        calls = [call for call in self._agents[job].called_at if call <= ended] if job in self._agents else []
        first = calls[0] if calls else ended
        first_calls.append(max(0.0, first - began))
        waits += intervals(calls, first, ended) if calls else [ended - began]
        self.kubelet.end(job)

    async def _unfinished(self, phase: str, seconds: float) -> dict[str, str]:
        until = time.perf_counter() + seconds
        while True:
            jobs = (await self._api.list(TRAINJOBS, self._namespace))["items"]
            states = {job["metadata"]["name"]: (job.get("status") or {}).get("state") for job in jobs}
            open_ = {n: str(s) for n, s in states.items() if n.startswith(f"{phase}-") and s != "Complete"}
            if not open_ or time.perf_counter() > until:
                return open_
            await asyncio.sleep(0.2)

    async def _start_pod(self, pod: Manifest) -> bool:
        """Have a job's leading agent listen before its pod runs; see `Kubelet`."""
        meta = pod["metadata"]
        if meta["labels"][LABEL_INDEX] == "0" and meta["uid"] not in self._listening:
            self._listening.add(meta["uid"])
            job = meta["labels"][LABEL_JOB]
            token = job_token(self._key, meta["ownerReferences"][0]["uid"])
            agent = self._agents[job] = Agent(honest_answer(self.kubelet, job), token)
            await self._stack.enter_async_context(agent.listen(self._addresses.of(pod)))
        return True

    async def _probe(self, name: str, seconds: list[float]) -> None:
        """POST small objects: what the API server and this machine take without the controller."""
        while True:
            self._probes += 1
            meta = {"name": f"probe-{name}-{self._probes}", "namespace": self._namespace}
            manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
            began = time.perf_counter()
            with suppress(ClusterError):
                await self._api.create(CONFIG_MAPS, manifest)
            seconds.append(time.perf_counter() - began)
            await asyncio.sleep(PROBE_SECONDS)


@asynccontextmanager
async def a_hostile_tenant(
    options: argparse.Namespace, arguments: list[str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the other tenant as a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("hostile_tenant.py")), *arguments]
    command += ["--kubeconfig", str(options.kubeconfig), "--attacks", *options.attacks]
    command += ["--lies", *options.lies]
    command += ["--context", options.context] if options.context else []
    for name in ("seed", "silent", "liars", "giant", "wrong", "hoarded", "storm_rate", "storm_jobs"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 26)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


class Bench:
    """The whole run, in three namespaces and one for the victim of what is planted by name."""

    def __init__(self, api: ApiClient, options: argparse.Namespace, places: Mapping[str, str]) -> None:
        self._api = api
        self._options = options
        self._places = places
        self._network = options.network or 100 + os.getpid() % 70
        command = [TRAINJOB, "controller", "--kubeconfig", str(options.kubeconfig)]
        command += ["--lease-namespace", places["operator"], "--http-address", "127.0.0.1:0"]
        command += [] if options.leader_elect else ["--no-leader-elect"]
        self.controller = SupervisedController(
            command + (["--context", options.context] if options.context else [])
        )

    async def run(self) -> dict[str, Any]:
        """Return what is measured."""
        await self._is_empty()
        for place in self._places.values():
            await self._has_account(place)
        running = asyncio.ensure_future(self.controller.run())
        try:
            await _until_first(asyncio.wait_for(self.controller.at_work.wait(), START_SECONDS), running)
            return await self._measure()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _measure(self) -> dict[str, Any]:
        options, key = self._options, await self._read_key()
        honest = HonestTenant(self._api, self._places["honest"], key, self.controller, self._network)
        kubelet = asyncio.ensure_future(honest.kubelet.run())
        try:
            say("warm up")
            await honest.live("warm", 1.0, 2.0, 1.0)
            shape = (options.seconds, options.rate, options.lifetime)
            transitions = await self._transitions()
            say("the honest tenant alone")
            alone = await honest.live("alone", *shape)
            arguments = ["--namespace", self._places["hostile"], "--victim", self._places["victim"]]
            arguments += ["--network", str(self._network + 75), "--plant", *_foreseen(honest.kubelet)]
            async with a_hostile_tenant(options, arguments) as hostile:
                say("the hostile tenant prepares")
                await _tell(hostile, base64.b64encode(key).decode())
                await _hear(hostile)
                say("both")
                await _tell(hostile, "attack")
                beside = await honest.live("beside", *shape)
                await _tell(hostile, "stop")
                came_of_it = json.loads(await _hear(hostile))
            service = self._service(await self._transitions() - transitions)
            came_of_it["unclean"] += await honest.texts()
            self._keep_log()
            return self._result(alone, beside, service, came_of_it)
        finally:
            kubelet.cancel()
            await honest.close()

    def _result(
        self, alone: Phase, beside: Phase, service: Service, hostile: Mapping[str, Any]
    ) -> dict[str, Any]:
        grown = ratios(alone, beside)
        states: dict[str, int] = {}
        for job in hostile["jobs"].values():
            states[str(job["state"])] = states.get(str(job["state"]), 0) + 1
        figures = asdict(service)
        limit, peak = figures.pop("limit_bytes"), figures.pop("peak_bytes")
        del figures["patience_seconds"]
        return {
            "benchmark": "tenants",
            "attacks": self._options.attacks,
            "alone": describe(alone),
            "beside": describe(beside),
            "ratio_of_p99": grown,
            "controller": {
                **figures,
                "slowest_health": round(service.slowest_health, 2),
                "kept_seconds": round(service.kept_seconds, 2),
                "peak_mib": round(peak / MIB, 1),
                "limit_mib": limit // MIB,
            },
            "hostile": {
                "deeds": hostile["deeds"],
                "refused": len(hostile["refused"]),
                "states": states,
                "largest_status_bytes": hostile["largest_status"],
            },
            "broken": broken(service, (alone, beside), hostile),
            "too_slow": too_slow(grown, self._options.most),
        }

    def _service(self, transitions: int) -> Service:
        log, controller = self.controller.log(), self.controller
        limit = yaml.safe_load(VALUES.read_text())["resources"]["limits"]["memory"]
        return Service(
            memory_bytes(limit),
            controller.peak_bytes,
            controller.restarts,
            transitions,
            controller.slowest_health,
            controller.kept_seconds,
            HEALTH_TIMEOUT,
            log.count("Traceback"),
            len(log),
        )

    def _keep_log(self) -> None:
        if self._options.log:
            self._options.log.write_text(self.controller.log())

    async def _read_key(self) -> bytes:
        secret = await self._api.get(SECRETS, self._places["operator"], KEY)
        return base64.b64decode(secret["data"]["key"])

    async def _transitions(self) -> int:
        if not self._options.leader_elect:
            return 0
        lease = await self._api.get(LEASES, self._places["operator"], LEASE)
        return int(lease["spec"].get("leaseTransitions") or 0)

    async def _is_empty(self) -> None:
        """Return once there are no jobs: those of an earlier run, whose namespaces are being deleted, go."""
        until = time.perf_counter() + EMPTY_SECONDS
        while jobs := (await self._api.list(TRAINJOBS, None, limit=1, metadata_only=True))["items"]:
            if time.perf_counter() > until:
                place = jobs[0]["metadata"]["namespace"]
                raise SystemExit(f"namespace {place} has TrainJobs, which this controller would look after")
            await asyncio.sleep(0.5)

    async def _has_account(self, namespace: str) -> None:
        """Return once pods can be made there."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                with suppress(NotFound):
                    await self._api.get(ACCOUNTS, namespace, "default")
                    return
                await asyncio.sleep(0.1)


def _foreseen(kubelet: Kubelet) -> list[str]:
    """Return the names of what pods mount that aren't made of the job's own name."""
    found = {
        name
        for pod in kubelet.objects.values()
        for _, name in mounted(pod)
        if not name.startswith(pod["metadata"]["labels"][LABEL_JOB])
    }
    return sorted(found - {"kube-root-ca.crt"})


async def _tell(process: asyncio.subprocess.Process, line: str) -> None:
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    process.stdin.write(f"{line}\n".encode())
    await process.stdin.drain()


async def _hear(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    async with asyncio.timeout(HOSTILE_SECONDS):
        line = await process.stdout.readline()
    if not line:
        raise SystemExit("the hostile tenant has ended")
    return line.decode()


async def _within(seconds: float, waiting: Any) -> Any:
    """Return what it waits for, or None when time is over."""
    try:
        async with asyncio.timeout(seconds):
            return await waiting
    except TimeoutError:
        return None


async def _until_first(wanted: Any, running: asyncio.Future[None]) -> None:
    """Return once this has come; what runs meanwhile may fail."""
    waiting = asyncio.ensure_future(wanted)
    done, _ = await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def run(options: argparse.Namespace, access: Access) -> dict[str, Any]:
    """Return what is measured; the namespaces and the processes are gone afterwards."""
    sys.setrecursionlimit(RECURSION)
    async with ApiClient(access, timeout=GUARD_SECONDS, connections=32) as api, AsyncExitStack() as stack:
        names = ("operator", "honest", "hostile", "victim")
        places = {name: await stack.enter_async_context(a_namespace(api)) for name in names}
        return await Bench(api, options, places).run()


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_cluster_options(parser)
    add_attack_options(parser)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="in which the honest tenant creates jobs, each time"
    )
    parser.add_argument("--rate", type=float, default=3.0, metavar="JOBS_A_SECOND")
    parser.add_argument(
        "--lifetime", type=float, default=20.0, metavar="SECONDS", help="of an honest job's training"
    )
    parser.add_argument(
        "--most", type=float, default=2.0, metavar="TIMES", help="longer than alone; inf: as it comes"
    )
    parser.add_argument("--network", type=int, help="pods are below 127.NETWORK and 127.(NETWORK+75)")
    parser.add_argument("--leader-elect", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--log", type=Path, metavar="FILE", help="for what the controller says")
    return parser.parse_args()


def main() -> int:
    """Run it, and return the exit code."""
    options = read_options()
    result = asyncio.run(run(options, from_kubeconfig(options.kubeconfig, options.context)))
    print(json.dumps(result, allow_nan=False))
    return int(bool(result["broken"] or (math.isfinite(options.most) and result["too_slow"])))


if __name__ == "__main__":
    sys.exit(main())
