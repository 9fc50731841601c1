"""One job, run to its end on this machine by its own controller, with a display."""

import asyncio
import secrets
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from trainjob.client.view import JobView, read_run
from trainjob.cluster.local import LocalCluster
from trainjob.cluster.protocol import happens_within
from trainjob.controller import Controller
from trainjob.core.names import Replica
from trainjob.core.settings import Bundle, Settings


class Screen(Protocol):
    """The display of a run; no method raises."""

    def note(self, text: str) -> None:
        """Show one line about the run itself."""

    def line(self, replica: str, text: str) -> None:
        """Show one line of a replica's log."""

    def show(self, job: JobView) -> None:
        """Show the current state of the job."""

    def close(self) -> None:
        """Restore the terminal."""


# Stop signals: the first asks the run to stop, the second kills its processes.

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Handles the signals that ask a program to stop; use it within one event loop.

    Attributes:
        asked: set by the first signal.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._insisted: Callable[[], None] = lambda: None
        # `nohup` makes a program ignore SIGHUP, so that it outlives its terminal.
        outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._heard = (signal.SIGINT, signal.SIGTERM) if outlives else _SIGNALS

    def on_second(self, call: Callable[[], None]) -> None:
        """Set the callback for every request after the first."""
        self._insisted = call

    def ask(self) -> None:
        """Ask to stop, as a signal does."""
        if self.asked.is_set():
            self._insisted()
        self.asked.set()

    def __enter__(self) -> "Interruption":
        loop = asyncio.get_running_loop()
        for number in self._heard:
            loop.add_signal_handler(number, self.ask)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in self._heard:
            loop.remove_signal_handler(number)


# The run.


# The time after Ctrl-C in which replicas can save a checkpoint; a second Ctrl-C kills them at once.
GRACE_SECONDS = 10.0
_REFRESH_SECONDS = 0.25

_STOPPING = f"stopping: replicas have {GRACE_SECONDS:g} s to save; another Ctrl-C ends them at once"


@dataclass(frozen=True)
class Ending:
    """The end of a run.

    Attributes:
        job: its state at that time.
        interrupted: a stop was requested before the job had ended.
    """

    job: JobView
    interrupted: bool


class Supervision:
    """Runs the controller on a local cluster and keeps a screen up to date.

    Args:
        cluster: a prepared cluster; `run` always closes it.
        replicas: every replica of the job.
        screen: the display.
        clock: returns the current time.
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
        """Run the job until it ends or a stop is requested; no process of it is left afterwards."""
        interruption.on_second(self._cluster.kill)
        showing = asyncio.ensure_future(self._keep_showing())
        try:
            interrupted = await self._until_end(interruption)
            if interrupted:
                self._screen.note(_STOPPING)
            else:
                job = self._read()
                showing.cancel()
                self._screen.show(job)
        finally:
            await self._cluster.close(GRACE_SECONDS)
            showing.cancel()
            (problem,) = await asyncio.gather(showing, return_exceptions=True)
        if isinstance(problem, Exception):
            raise problem
        return Ending(self._read() if interrupted else job, interrupted)

    async def _until_end(self, interruption: Interruption) -> bool:
        """Return whether a stop was requested before the job has ended."""
        if interruption.asked.is_set():
            return True  # nothing is started yet
        controller = Controller(self._cluster, settings=_settings())
        finished = asyncio.ensure_future(controller.run_until_finished(self._cluster.key))
        asked = asyncio.ensure_future(interruption.asked.wait())
        try:
            await asyncio.wait([finished, asked], return_when=asyncio.FIRST_COMPLETED)
            if finished.done():
                finished.result()
            return not finished.done()
        finally:
            for task in (finished, asked):
                task.cancel()
            await asyncio.gather(finished, asked, return_exceptions=True)

    async def _keep_showing(self) -> None:
        changed = asyncio.Event()
        self._cluster.watch(lambda _: changed.set())
        while True:
            self._screen.show(self._read())
            changed.clear()
            await happens_within(changed, _REFRESH_SECONDS)

    def _read(self) -> JobView:
        return read_run(self._cluster.snapshot(), self._replicas, since=self._since, now=self._clock())


def _settings() -> Settings:
    # Only the agents of this run have this key; the local cluster provides the agent program.
    return Settings(bundle=Bundle(pyz=b"", key=secrets.token_bytes(32)))
