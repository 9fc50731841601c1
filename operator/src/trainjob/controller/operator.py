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
from collections.abc import Callable, Collection, Iterator
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
from trainjob.controller.agent_key import InvalidKey, need_key
from trainjob.controller.election import ANSWER_SECONDS, Elector, LeaseLost
from trainjob.controller.health import check_watch, check_work, serve
from trainjob.controller.kopf_watch import JobWatch
from trainjob.controller.metrics import Metrics
from trainjob.controller.process_settings import ExitCode, OperatorSettings
from trainjob.core.agent import job_token
from trainjob.core.settings import Bundle

_log = logging.getLogger(__name__)

GRACE_SECONDS = 8.0
"""How long stopping may take before the process exits anyway."""

LOST_GRACE_SECONDS = 2.0
"""The same, once another replica may lead."""

CHECK_SECONDS = 0.5

SLACK_SECONDS = 1.0
"""Lets the event loop notice first; other replicas wait longer than this and the deadline together."""

TRIM_SECONDS = 60.0


async def first_end(parts: Collection[asyncio.Task[None]], stop: asyncio.Event) -> ExitCode:
    """Wait for a stop request or the end of a part, and return the exit code."""
    stopping = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait({stopping, *parts}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    code = ExitCode.STOPPED
    for part in parts:
        if part not in done:
            continue
        code = max(code, ExitCode.FAILED)
        match None if part.cancelled() else part.exception():
            case LeaseLost() as error:
                _log.error("The lease is lost: %s. Leaving, so that only one replica works", error)
                code = ExitCode.LEASE_LOST
            case InvalidKey() as error:
                _log.error("%s: stopping", error)
            case None:
                _log.error("%s has ended by itself: stopping", part.get_name())
            case error:
                _log.error("%s has failed: stopping", part.get_name(), exc_info=error)
    return code


async def cancel(*parts: asyncio.Task[None]) -> None:
    """Cancel the parts and wait until they have ended; their exceptions are ignored."""
    for part in parts:
        part.cancel()
    await asyncio.gather(*parts, return_exceptions=True)


def _leave(why: str, code: ExitCode) -> None:
    _log.critical("%s: leaving with exit code %d", why, code)
    logging.shutdown()
    os._exit(code)


def leave_within(seconds: float, code: ExitCode) -> threading.Timer:
    """End the process after `seconds`, from a thread, because the event loop itself may hang."""
    timer = threading.Timer(seconds, _leave, (f"Still not stopped after {seconds:g} s", code))
    timer.daemon = True
    timer.start()
    return timer


@contextmanager
def guarded(
    until: Callable[[], float | None],
    clock: Callable[[], float],
    leave: Callable[[str, ExitCode], object] = _leave,
) -> Iterator[None]:
    """End the process when its lease has expired and the event loop hangs, by a thread, while in the context.

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
                leave("The lease has ended and the event loop hangs", ExitCode.LEASE_LOST)
                return

    threading.Thread(target=look, name="lease guard", daemon=True).start()
    try:
        yield
    finally:
        done.set()


async def return_memory(seconds: float = TRIM_SECONDS) -> None:
    """Return freed memory to the kernel, until cancelled: glibc keeps what isn't at the end of its heap."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _keep: None)  # other C libraries have none
    while True:
        await asyncio.sleep(seconds)
        forget_unpickled()
        trim(0)


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
        self, settings: OperatorSettings, leave_within: Callable[[float, ExitCode], object] = leave_within
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
        self._elector: Elector | None = None
        if settings.election is not None:
            self._elector = Elector(
                self._lease_api, settings.election, identity=settings.identity, clock=clock
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
        self._has_bundle = asyncio.Event()
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
        self._controller: Controller | None = None
        self._metrics.jobs = self._cluster.jobs

    async def run(self) -> ExitCode:
        """Run until a stop is requested or a part ends, and return the exit code.

        Raises:
            OSError: the address to serve on isn't available.
        """
        allow_deep_objects()
        self._hear_signals()
        self._metrics.tasks.set_function(lambda: len(asyncio.all_tasks()))
        host, port = self._settings.host, self._settings.port
        page = serve(host, port, self._check_alive, self._check_ready, self._metrics)
        async with self._api, self._lease_api, page:
            return await self._run_parts()

    async def _run_parts(self) -> ExitCode:
        work = asyncio.create_task(self._work(), name="The work loop")
        election = asyncio.create_task(self._compete(), name="The election")
        reading = (
            asyncio.create_task(self._cluster.run(), name="The cache loop"),
            asyncio.create_task(self._jobs.run(), name="The watch of TrainJobs"),
            asyncio.create_task(return_memory(), name="The return of memory"),
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
        await self._has_bundle.wait()
        if self._elector is None:
            await asyncio.Event().wait()
        else:
            with guarded(self._elector.leads_until, clock):
                await self._elector.run()

    async def _work(self) -> None:
        settings = self._settings
        agent_key = await need_key(self._api, settings.key_namespace, settings.key_name)
        self._bundle = bundle = Bundle(build_bundle(), agent_key)
        self._has_bundle.set()
        await self._cluster.synced()
        # Full garbage collections, each of up to 0.1 s, pass over what is there now and stays.
        gc.collect()
        gc.freeze()
        if self._elector is not None:
            _log.info("All caches are filled; waiting for the lease")
            await self._elector.won.wait()
        _log.info("At work on the TrainJobs of %s", settings.namespace or "all namespaces")
        lease = self._elector.transitions if self._elector is not None else 0
        controller = self._controller = Controller(
            self._cluster,
            workers=settings.workers,
            settings=replace(
                settings.plan, bundle=bundle, lease=lease, integrations=self._cluster.integrations
            ),
            on_reconciled=self._metrics.count_reconcile,
            on_taken=self._metrics.count_wait,
            on_written=self._metrics.count_changes,
        )
        self._metrics.leader.set(1)
        self._metrics.depth.set_function(lambda: controller.load().waiting)
        for key in self._cluster.job_keys():
            controller.add(key)
        # One group: when it is cancelled, no agent is called after the release of the lease.
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cluster.ask_agents())
            group.create_task(controller.run())
            group.create_task(self._cluster.collect_programs(bundle))

    def _token_of(self, uid: str) -> str:
        if self._bundle is None:
            raise RuntimeError("agents are asked before the key is known")
        return job_token(self._bundle.key, uid)

    async def _is_served(self) -> None:
        """Return once TrainJobs can be listed: kopf looks for their kind only when it starts."""
        await self._cluster.synced()
        await self._api.list(TRAINJOBS, self._settings.namespace, limit=1, metadata_only=True)

    def _check_alive(self) -> dict[str, str]:
        patience = 3 * self._settings.timeouts.inactivity
        watches = self._cluster.health().silent.items()
        return {
            **{resource: check_watch(seconds, patience) for resource, seconds in watches},
            TRAINJOBS.plural: check_watch(self._jobs.silent_seconds(), 2 * self._jobs.patience_seconds),
            "work": check_work(self._controller.load() if self._controller is not None else None),
        }

    def _check_ready(self) -> dict[str, str]:
        return {
            "caches": "" if self._cluster.health().synced else "not filled for the first time yet",
            # Without it agents get no tokens and can't be called.
            "agent key": "" if self._has_bundle.is_set() else "not read yet",
            "process": "stopping" if self._stop.is_set() else "",
        }

    def _hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._hear, number)

    def _hear(self, number: signal.Signals) -> None:
        if not self._stop.is_set():
            _log.info("Got %s: stopping", number.name)
        self._stop.set()
