"""One process: what runs in it, in which order it starts and stops."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import replace

from trainjob.cluster.agents.bundle import build_bundle
from trainjob.cluster.depth import allow_deep_objects
from trainjob.cluster.kube.agents import Asking
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.cluster import KubeCluster
from trainjob.cluster.kube.resources import TRAINJOBS
from trainjob.controller import Controller
from trainjob.core.settings import Bundle
from trainjob.core.token import job_token
from trainjob.operator.agent_key import KeyStore
from trainjob.operator.elector import ANSWER_SECONDS, Elector
from trainjob.operator.exits import ExitCode, leave_within
from trainjob.operator.guard import guarded
from trainjob.operator.health import Check, Health, check_caches, check_key, check_watch, check_work
from trainjob.operator.job_watch import JobWatch
from trainjob.operator.leases import ApiLeases
from trainjob.operator.lifetime import cancel, first_end, start
from trainjob.operator.metrics import Metrics
from trainjob.operator.server import serve
from trainjob.operator.settings import OperatorSettings

_log = logging.getLogger(__name__)

GRACE_SECONDS = 8.0
"""How long stopping may take before the process ends anyway."""

LOST_GRACE_SECONDS = 2.0
"""The same once another replica may be at work."""


def clock() -> float:
    """Return seconds that go on while the machine sleeps, unlike those of the event loop."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Operator:
    """Everything in one process; see the module.

    Args:
        settings: what whoever starts the process decides.
        leave_within: called once stopping begins: ends the process after so many seconds, whatever hangs.

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
        # Connections of its own: a renewal must not wait behind a thousand creations.
        self._lease_api = ApiClient(
            settings.access, on_call=self._metrics.count_call, timeout=ANSWER_SECONDS, connections=2
        )
        self._cluster = KubeCluster(
            self._api,
            namespace=settings.namespace,
            on_restart=self._metrics.count_restart,
            pace=settings.pace,
            asking=Asking(token_of=self._token_of, on_call=self._metrics.count_agent_call),
        )
        self._bundle: Bundle | None = None
        self._is_equipped = asyncio.Event()
        self._jobs = JobWatch(
            settings.access,
            self._cluster.take_job_event,
            namespace=settings.namespace,
            pace=settings.pace,
            is_served=self._is_served,
            on_call=self._metrics.count_call,
            on_restart=lambda: self._metrics.count_restart(TRAINJOBS.plural),
            on_started=self._hear_signals,
        )
        self._elector = self._build_elector()
        self._controller: Controller | None = None
        self._metrics.show_jobs(self._cluster.jobs)

    async def run(self) -> ExitCode:
        """Run until asked to stop, or until a part fails, and return why it ended.

        Raises:
            OSError: the address to serve on can't be had.
        """
        allow_deep_objects()
        self._hear_signals()
        health = Health(live=self._look_alive, ready=self._look_ready)
        page = serve(self._settings.host, self._settings.port, health, self._metrics)
        async with self._api, self._lease_api, page:
            return await self._run_parts()

    async def _run_parts(self) -> ExitCode:
        work = start("The work loop", self._work())
        election = start("The election", self._compete())
        reading = (
            start("The cache loop", self._cluster.run()),
            start("The watch of TrainJobs", self._jobs.run()),
        )
        try:
            code = await first_end((work, election, *reading), self._stop)
            self._leave_within(LOST_GRACE_SECONDS if code is ExitCode.LEASE_LOST else GRACE_SECONDS, code)
            # The lease is given back once nothing is written and nobody is told anything any more, and before
            # all that may take time.
            await cancel(work, election)
            if self._elector is not None and code is not ExitCode.LEASE_LOST:
                await self._elector.release()
        finally:
            await cancel(work, election, *reading)
        return code

    async def _compete(self) -> None:
        # A replica that can't read must not lead, nor one that can't speak to agents.
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
        if self._elector is not None:
            _log.info("All caches are filled; waiting for the lease")
            await self._elector.won.wait()
        _log.info("At work on the TrainJobs of %s", self._settings.namespace or "all namespaces")
        lease = self._elector.transitions if self._elector is not None else 0
        controller = self._controller = Controller(
            self._cluster,
            workers=self._settings.workers,
            settings=replace(self._settings.plan, bundle=bundle, lease=lease),
            on_reconciled=self._metrics.count_reconcile,
        )
        self._metrics.show_leader()
        self._metrics.show_depth(lambda: controller.load().waiting)
        for key in self._cluster.job_keys():
            controller.add(key)
        # Together: once the lease is given back, no agent is told anything any more.
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
        return Elector(leases, identity=self._settings.identity, terms=election.terms, clock=clock)

    async def _is_served(self) -> None:
        """Return once TrainJobs can be listed: kopf never looks again for what isn't there when it starts."""
        await self._cluster.synced()
        await self._api.list(TRAINJOBS, self._settings.namespace, limit=1, metadata_only=True)

    def _look_alive(self) -> list[Check]:
        patience = 3 * self._settings.pace.inactivity
        silent = self._cluster.health().silent
        return [
            *(check_watch(resource, seconds, patience) for resource, seconds in silent.items()),
            check_watch(TRAINJOBS.plural, self._jobs.silent_seconds(), 2 * self._jobs.patience_seconds),
            check_work(self._controller.load() if self._controller is not None else None),
        ]

    def _look_ready(self) -> list[Check]:
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
