"""The controller process: its parts, the order in which they start and stop, and its exit codes."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace

from trainjob.cluster.agents.bundle import build_bundle
from trainjob.cluster.agents.poller import AgentPolling
from trainjob.cluster.kube.cache import forget_unpickled
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.cluster import KubeCluster
from trainjob.cluster.kube.resources import TRAINJOBS
from trainjob.cluster.protocol import allow_deep_objects
from trainjob.controller import Controller
from trainjob.controller.agent_key import InvalidKey, KeyStore
from trainjob.controller.election import ANSWER_SECONDS, ApiLeases, Elector, LeaseLost
from trainjob.controller.health import Check, Health, check_caches, check_key, check_watch, check_work, serve
from trainjob.controller.kopf_watch import JobWatch
from trainjob.controller.metrics import Metrics
from trainjob.controller.process_settings import ExitCode, OperatorSettings, leave_within
from trainjob.core.agent import job_token
from trainjob.core.settings import Bundle

_log = logging.getLogger(__name__)

# The parts of a process: when one ends or a stop is requested, all stop in order.


Part = asyncio.Task[None]


def start(name: str, work: Coroutine[None, None, None]) -> Part:
    """Start a part that runs until it is cancelled."""
    return asyncio.create_task(work, name=name)


async def first_end(parts: Collection[Part], stop: asyncio.Event) -> ExitCode:
    """Wait for a stop request or the end of a part, and return the exit code."""
    asked = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait({asked, *parts}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        asked.cancel()
    ends = [_log_end(part) for part in parts if part in done]
    return max(ends, default=ExitCode.STOPPED)


async def cancel(*parts: Part) -> None:
    """Cancel the parts and wait until they have ended; their exceptions are ignored."""
    for part in parts:
        part.cancel()
    await asyncio.gather(*parts, return_exceptions=True)


def _log_end(part: Part) -> ExitCode:
    error = None if part.cancelled() else part.exception()
    if isinstance(error, LeaseLost):
        _log.error("The lease is lost: %s. Leaving, so that only one replica works", error)
        return ExitCode.LEASE_LOST
    if isinstance(error, InvalidKey):
        _log.error("%s: stopping", error)
        return ExitCode.FAILED
    if error is None:
        _log.error("%s has ended by itself: stopping", part.get_name())
    else:
        _log.error("%s has failed: stopping", part.get_name(), exc_info=error)
    return ExitCode.FAILED


# The guard, which ends the process when its lease has expired and the event loop hangs.


CHECK_SECONDS = 0.5

SLACK_SECONDS = 1.0
"""Lets the event loop notice first; other replicas wait longer than this and the deadline together."""


def leave() -> None:
    """End the process at once."""
    _log.critical("The lease has ended and the event loop hangs: leaving")
    logging.shutdown()
    os._exit(ExitCode.LEASE_LOST)


@contextmanager
def guarded(
    until: Callable[[], float | None], clock: Callable[[], float], leave: Callable[[], None] = leave
) -> Iterator[None]:
    """Check the deadline in a thread while in the context.

    Args:
        until: returns the time at which the leadership ends unless it is renewed; None before it begins.
        clock: the clock that `until` uses.
        leave: called once, from the thread, when the deadline has passed.
    """
    done = threading.Event()

    def look() -> None:
        while not done.wait(CHECK_SECONDS):
            deadline = until()
            if deadline is not None and clock() > deadline + SLACK_SECONDS:
                leave()
                return

    thread = threading.Thread(target=look, name="lease guard", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


# The memory of a process that lives for months: small while little is there, whatever has been there.


TRIM_SECONDS = 60.0


def spare_lasting_objects() -> None:
    """Let full garbage collections pass over what is there now and stays: each takes up to 0.1 s."""
    gc.collect()
    gc.freeze()


async def return_memory(seconds: float = TRIM_SECONDS) -> None:
    """Return freed memory to the kernel, until cancelled: glibc keeps what isn't at the end of its heap."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _keep: None)  # other C libraries have none
    while True:
        await asyncio.sleep(seconds)
        forget_unpickled()
        trim(0)


# The process: its parts, and the order in which they start and stop.


GRACE_SECONDS = 8.0
"""How long stopping may take before the process exits anyway."""

LOST_GRACE_SECONDS = 2.0
"""The same, once another replica may lead."""


def clock() -> float:
    """Return monotonic seconds that include the machine's sleep, unlike those of the event loop."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Operator:
    """The controller process.

    Args:
        settings: the settings of the process.
        leave_within: called once stopping begins; ends the process after so many seconds, even if it hangs.

    Raises:
        InvalidAccess: a certificate or key can't be read.
    """

    def __init__(
        self,
        settings: OperatorSettings,
        leave_within: Callable[[float, ExitCode], object] = leave_within,
    ) -> None:
        self._settings = settings
        self._leave_within = leave_within
        self._metrics = Metrics()
        self._stop = asyncio.Event()
        self._api = ApiClient(settings.access, on_call=self._metrics.count_call)
        # Separate connections: a lease renewal must not wait behind a thousand creations.
        self._lease_api = ApiClient(
            settings.access, on_call=self._metrics.count_call, timeout=ANSWER_SECONDS, connections=2
        )
        self._cluster = KubeCluster(
            self._api,
            namespace=settings.namespace,
            on_restart=self._metrics.count_restart,
            timeouts=settings.timeouts,
            polling=AgentPolling(token_of=self._token_of, on_call=self._metrics.count_agent_call),
            use=settings.integrations,
        )
        self._bundle: Bundle | None = None
        self._is_equipped = asyncio.Event()
        self._jobs = JobWatch(
            settings.access,
            self._cluster.take_job_event,
            namespace=settings.namespace,
            timeouts=settings.timeouts,
            is_served=self._is_served,
            on_call=self._metrics.count_call,
            on_begin=self._cluster.compare_jobs,
            on_restart=lambda: self._metrics.count_restart(TRAINJOBS.plural),
            on_started=self._hear_signals,
        )
        self._elector = self._build_elector()
        self._controller: Controller | None = None
        self._metrics.show_jobs(self._cluster.jobs)

    async def run(self) -> ExitCode:
        """Run until a stop is requested or a part ends, and return the exit code.

        Raises:
            OSError: the address to serve on isn't available.
        """
        allow_deep_objects()
        self._hear_signals()
        self._metrics.show_tasks(lambda: len(asyncio.all_tasks()))
        health = Health(live=self._check_alive, ready=self._check_ready)
        page = serve(self._settings.host, self._settings.port, health, self._metrics)
        async with self._api, self._lease_api, page:
            return await self._run_parts()

    async def _run_parts(self) -> ExitCode:
        work = start("The work loop", self._work())
        election = start("The election", self._compete())
        reading = (
            start("The cache loop", self._cluster.run()),
            start("The watch of TrainJobs", self._jobs.run()),
            start("The return of memory", return_memory()),
        )
        try:
            code = await first_end((work, election, *reading), self._stop)
            self._leave_within(LOST_GRACE_SECONDS if code is ExitCode.LEASE_LOST else GRACE_SECONDS, code)
            # Release the lease after the last write and agent call, and before steps that may take time.
            await cancel(work, election)
            if self._elector is not None and code is not ExitCode.LEASE_LOST:
                await self._elector.release()
        finally:
            await cancel(work, election, *reading)
        return code

    async def _compete(self) -> None:
        # A replica must not lead before it can read from the API server and call agents.
        await self._cluster.synced()
        await self._is_equipped.wait()
        if self._elector is None:
            await asyncio.Event().wait()
        else:
            with guarded(self._elector.leads_until, clock):
                await self._elector.run()

    async def _work(self) -> None:
        bundle = await self._need_bundle()
        await self._cluster.synced()
        spare_lasting_objects()
        if self._elector is not None:
            _log.info("All caches are filled; waiting for the lease")
            await self._elector.won.wait()
        _log.info("At work on the TrainJobs of %s", self._settings.namespace or "all namespaces")
        lease = self._elector.transitions if self._elector is not None else 0
        controller = self._controller = Controller(
            self._cluster,
            workers=self._settings.workers,
            settings=replace(
                self._settings.plan,
                bundle=bundle,
                lease=lease,
                integrations=self._cluster.integrations,
            ),
            on_reconciled=self._metrics.count_reconcile,
            on_taken=self._metrics.count_wait,
            on_written=self._metrics.count_changes,
        )
        self._metrics.show_leader()
        self._metrics.show_depth(lambda: controller.load().waiting)
        for key in self._cluster.job_keys():
            controller.add(key)
        # One group: when it is cancelled, no agent is called after the release of the lease.
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cluster.ask_agents())
            group.create_task(controller.run())
            group.create_task(self._cluster.collect_programs(bundle))

    async def _need_bundle(self) -> Bundle:
        key = await KeyStore(self._api, self._settings.key).need()
        self._bundle = Bundle(build_bundle(), key)
        self._is_equipped.set()
        return self._bundle

    def _token_of(self, uid: str) -> str:
        if self._bundle is None:
            raise RuntimeError("agents are asked before the key is known")
        return job_token(self._bundle.key, uid)

    def _build_elector(self) -> Elector | None:
        election = self._settings.election
        if election is None:
            return None
        leases = ApiLeases(self._lease_api, election.namespace, election.name)
        return Elector(leases, identity=self._settings.identity, durations=election.durations, clock=clock)

    async def _is_served(self) -> None:
        """Return once TrainJobs can be listed: kopf looks for their kind only when it starts."""
        await self._cluster.synced()
        await self._api.list(TRAINJOBS, self._settings.namespace, limit=1, metadata_only=True)

    def _check_alive(self) -> list[Check]:
        patience = 3 * self._settings.timeouts.inactivity
        silent = self._cluster.health().silent
        return [
            *(check_watch(resource, seconds, patience) for resource, seconds in silent.items()),
            check_watch(TRAINJOBS.plural, self._jobs.silent_seconds(), 2 * self._jobs.patience_seconds),
            check_work(self._controller.load() if self._controller is not None else None),
        ]

    def _check_ready(self) -> list[Check]:
        stopping = Check("process", "stopping" if self._stop.is_set() else "")
        return [check_caches(self._cluster.health().synced), check_key(self._is_equipped.is_set()), stopping]

    def _hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._hear, number)

    def _hear(self, number: signal.Signals) -> None:
        if not self._stop.is_set():
            _log.info("Got %s: stopping", number.name)
        self._stop.set()
