"""One job, run to its end on this machine while a screen shows it."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from trainjob.cli.interruption import Interruption
from trainjob.cli.screen import Screen
from trainjob.cli.view import JobView, build_view
from trainjob.cluster.local import LocalCluster
from trainjob.cluster.waiting import happens_within
from trainjob.controller import Controller
from trainjob.core.names import Replica
from trainjob.core.settings import Bundle, Settings

# What replicas have after Ctrl-C to save a checkpoint before they are killed; a second Ctrl-C doesn't wait.
GRACE_SECONDS = 10.0
_REFRESH_SECONDS = 0.25

_STOPPING = f"stopping: replicas have {GRACE_SECONDS:g} s to save; another Ctrl-C ends them at once"


class Outcome(Enum):
    """How a run ended."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Ending:
    """The end of a run.

    Attributes:
        view: the job as it was then.
    """

    outcome: Outcome
    view: JobView


class Supervision:
    """Drives the controller over a local cluster, and keeps a screen up to date.

    Args:
        cluster: prepared; it is closed at the end, whatever happens.
        replicas: every seat of the job.
        screen: shows what happens.
        clock: gives the time.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        replicas: tuple[Replica, ...],
        screen: Screen,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._screen = screen
        self._clock = clock
        self._since = clock()

    async def run(self, interruption: Interruption) -> Ending:
        """Run the job until it has ended or someone asks to stop; nothing of it is left afterwards."""
        interruption.on_second(self._cluster.kill)
        showing = asyncio.ensure_future(self._keep_showing())
        try:
            outcome = await self._until_end(interruption)
            if outcome is Outcome.FINISHED:
                view = self._view()
                showing.cancel()
                self._screen.show(view)
            else:
                self._screen.note(_STOPPING)
        finally:
            await self._cluster.close(GRACE_SECONDS)
            showing.cancel()
            (problem,) = await asyncio.gather(showing, return_exceptions=True)
        if isinstance(problem, Exception):
            raise problem
        return Ending(outcome, view if outcome is Outcome.FINISHED else self._view())

    async def _until_end(self, interruption: Interruption) -> Outcome:
        if interruption.asked.is_set():
            return Outcome.INTERRUPTED  # before anything was started
        controller = Controller(self._cluster, settings=_settings())
        finished = asyncio.ensure_future(controller.run_until_finished(self._cluster.key))
        asked = asyncio.ensure_future(interruption.asked.wait())
        try:
            await asyncio.wait([finished, asked], return_when=asyncio.FIRST_COMPLETED)
            if not finished.done():
                return Outcome.INTERRUPTED
            finished.result()
            return Outcome.FINISHED
        finally:
            for task in (finished, asked):
                task.cancel()
            await asyncio.gather(finished, asked, return_exceptions=True)

    async def _keep_showing(self) -> None:
        changed = asyncio.Event()
        self._cluster.watch(lambda _: changed.set())
        while True:
            self._screen.show(self._view())
            changed.clear()
            await happens_within(changed, _REFRESH_SECONDS)

    def _view(self) -> JobView:
        return build_view(self._cluster.snapshot(), self._replicas, since=self._since, now=self._clock())


def _settings() -> Settings:
    # The agents of this run alone have this key; the local cluster has their program by itself.
    return Settings(bundle=Bundle(pyz=b"", key=secrets.token_bytes(32)))
