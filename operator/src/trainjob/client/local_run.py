"""One job, run to its end on this machine by its own controller, with a display and a record."""

import asyncio
import os
import platform
import secrets
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from trainjob.api import TrainJob, parse
from trainjob.client.presenter import Results
from trainjob.client.run_record import (
    Run,
    RunRecord,
    describe_finished,
    digest_request,
    forget,
    identify_process,
    read_run_folder,
    remember,
)
from trainjob.client.runs import RunServer, log_sizes, results_in, shown_path
from trainjob.client.view import JobView, Outcome, Resumptions, read_run, with_stopped
from trainjob.cluster.local import (
    LocalCluster,
    LocalOptions,
    bring_back,
    remove_folder,
    set_aside,
    survey,
)
from trainjob.cluster.protocol import happens_within
from trainjob.controller import Controller
from trainjob.core.manifests import build_objects
from trainjob.core.names import Replica, desired_replicas, root_folder
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


# What is asked for, and what came of it.


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A job to run on this machine.

    Attributes:
        job: the manifest, which is valid.
        options: folders, ports and volumes.
        file: the job's file, or None if it has none.
        command: the command line that continues the job, for messages.
        fresh: start over: the present folder of the job is kept under a number.
        resume: an earlier run to continue, which becomes the job's folder: its folder, or the name of one
            beside the job's, such as `digits.1`; None: the job's folder as it is.
        smoke: the job is a smoke test: the folder of the one before is removed.
    """

    job: dict[str, Any]
    options: LocalOptions
    file: Path | None = None
    command: str = ""
    fresh: bool = False
    resume: str | None = None
    smoke: bool = False


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of a run.

    Attributes:
        job: its state at that time.
        results: where its output and its logs are.
        interrupted: a stop was requested before the job had ended.
        deleted: by `trainjob delete`.
        answer: the sentence about a job that was finished before, so that nothing was started.
    """

    job: JobView
    results: Results
    interrupted: bool = False
    deleted: bool = False
    answer: str = ""


async def run_here(request: RunRequest, screen: Screen, interruption: Interruption) -> Ending:
    """Run a job to its end on this machine, unless it is finished already.

    Raises:
        CannotRunHere: this machine can't run it, or another run has its folder.
    """
    raw, starts_over = _for_this_machine(request)
    options = request.options

    def arrange(folder: Path) -> None:
        aside = None
        if request.smoke:
            if folder.exists():
                remove_folder(folder)
        elif request.resume is not None:
            named = Path(request.resume)
            aside = bring_back(named if named.is_dir() else folder.with_name(request.resume), folder)
        elif request.fresh or starts_over:
            aside = set_aside(folder)
        if aside is not None:
            with suppress(OSError):  # the run's own record says so
                remember(aside)
            screen.note(f"the output until here is kept in {shown_path(aside)}")

    cluster = LocalCluster(
        raw, survey(options, os.environ), base_port=options.base_port, arrange=arrange, on_line=screen.line
    )
    try:
        job = parse(cluster.job)
        notes = cluster.prepare(build_objects(job))
        earlier = read_run_folder(cluster.run_folder)
        asked = digest_request(request.job, options, request.file, os.environ)
        answer = describe_finished(earlier, asked, datetime.now(UTC)) if earlier is not None else None
        if earlier is not None and answer is not None:
            return Ending(job=earlier.view, results=results_in(cluster.run_folder), answer=answer)
        for note in notes:
            screen.note(note)
        record = RecordKeeper(cluster.run_folder, request.command, asked, earlier, screen.note)
        supervision = Supervision(cluster, screen, record)
        last = await supervision.run(interruption)
    finally:
        await cluster.close()
        if not cluster.run_folder.exists():  # a volume that goes with its pod
            forget(cluster.run_folder)
    results = replace(_results(cluster, job, last), command=request.command, starts_over=starts_over)
    interrupted, deleted = last.outcome is Outcome.GOING_ON, supervision.is_deleted
    return Ending(job=last, results=results, interrupted=interrupted, deleted=deleted)


def _for_this_machine(request: RunRequest) -> tuple[dict[str, Any], bool]:
    """Return the manifest to run, and whether its file asks to start over each time."""
    raw = deepcopy(request.job)
    # In a cluster another controller may manage the job; here there is none.
    raw["spec"].pop("managedBy", None)
    # This run ends with the job, so nothing is left to expire.
    raw["spec"].pop("ttlSecondsAfterFinished", None)
    output = raw["spec"].get("output") or {}
    starts_over = output.get("resume") == "Never"
    if starts_over:
        # The new run has the job's folder, and earlier ones have numbers. In a cluster each job has its own.
        output["resume"] = "Auto"
    return raw, starts_over


def _results(cluster: LocalCluster, job: TrainJob, last: JobView) -> Results:
    pods = {replica.name: replica.pod for replica in last.replicas if replica.pod}
    first = last.status.first_failure
    if first is not None and first.rank and first.pod:
        pods[first.rank] = first.pod
    tails = {pod: cluster.log_tail(pod) for pod in pods.values()}
    if job.spec.restart_strategy == "InPlace" and first is not None and first.pod and first.log_tail:
        # The pod's own log continues after the failure, with lines of the agent and of later attempts.
        tails[first.pod] = tuple(first.log_tail.splitlines())
    if cluster.output_root is not None:
        return replace(results_in(cluster.output_root), tails=tails)
    known = last.checkpoint_step is not None
    return Results(output=root_folder(job), has_checkpoints=known, has_events=known, tails=tails)


# The record of a run, from its start to its end.


_RECORD_SECONDS = 5.0


class RecordKeeper:
    """Keeps the record of one run up to date; if it can't be written, a note says so and the run continues.

    Args:
        folder: of the run, which it holds.
        command: the command line that continues the job.
        request: digest of what is asked for.
        earlier: the latest run of this folder, or None.
        note: receives a sentence for the user.
    """

    def __init__(
        self,
        folder: Path,
        command: str,
        request: str,
        earlier: Run | None,
        note: Callable[[str], None],
    ) -> None:
        self._folder, self._command, self._request = folder, command, request
        self._earlier, self._note = earlier, note
        self._record: RunRecord | None = None
        self._written = 0.0
        self._is_broken = False

    async def begin(self, view: JobView, socket: str, now: datetime) -> None:
        """Write the first record, and add the run to the user's index."""
        self._record = RunRecord(
            view=view,
            host=platform.node(),
            pid=os.getpid(),
            process=identify_process(os.getpid()) or "",
            socket=socket,
            command=self._command,
            request=self._request,
            log_starts=log_sizes(self._folder),
            began=now,
        )
        await self._write()
        try:
            remember(self._folder)
        except OSError as error:
            self._note(f"`trainjob list` won't have this run: {error}")

    async def update(self, view: JobView) -> None:
        """Write the job's state, if the last time is some seconds ago."""
        if asyncio.get_running_loop().time() - self._written >= _RECORD_SECONDS and self._record is not None:
            self._record = self._record.model_copy(update={"view": view})
            await self._write()

    async def finish(self, view: JobView, now: datetime, *, deleted: bool) -> None:
        """Write how the run has ended."""
        ends = {Outcome.COMPLETE: "complete", Outcome.FAILED: "failed"}
        end = ends.get(view.outcome, "deleted" if deleted else "interrupted")
        if self._record is None:
            return
        self._record = self._record.model_copy(update={"view": view, "ended": now, "end": end})
        first = view.status.first_failure
        if first is not None and first.reason == "OutputFinished" and self._earlier is not None:
            # The trainer says that there is nothing left to do for this request either.
            before = self._earlier.record
            if before.end == "complete":
                self._record = before.model_copy(update={"request": self._request})
        await self._write()

    async def _write(self) -> None:
        if self._record is None or self._is_broken:
            return
        self._written = asyncio.get_running_loop().time()
        try:
            await asyncio.to_thread(self._record.write, self._folder)
        except OSError as error:
            self._is_broken = True
            self._note(f"the record of this run can't be written ({error}): `trainjob list` won't have it")


# The run.


# The time after Ctrl-C in which replicas can save a checkpoint; a second Ctrl-C kills them at once.
GRACE_SECONDS = 10.0
_REFRESH_SECONDS = 0.25

_STOPPING = f"stopping: replicas have {GRACE_SECONDS:g} s to save; another Ctrl-C ends them at once"
_DELETING = "stopping: `trainjob delete` was called for this run"


class Supervision:
    """Runs the controller on a local cluster, keeps a screen and a record up to date, and can be reached.

    Args:
        cluster: a prepared cluster; `run` ends its processes, and leaves it to be closed.
        screen: the display.
        record: of the run.
        clock: returns the current time.

    Attributes:
        is_deleted: another process has asked to end the run and to delete it.
        latest: the job, as it was shown last.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        screen: Screen,
        record: RecordKeeper,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._screen = screen
        self._record = record
        self._clock = clock
        self._since = clock()
        self._generation, self._replicas = 0, tuple[Replica, ...]()
        self._changed = asyncio.Event()
        self._deletion = asyncio.Event()
        self._resumptions = Resumptions()
        self._at_stop: JobView | None = None
        self.latest = self._read()

    @property
    def is_deleted(self) -> bool:
        """Return whether another process has asked to delete the run."""
        return self._deletion.is_set()

    async def run(self, interruption: Interruption) -> JobView:
        """Run the job until it ends or a stop is requested, and return its last state.

        No process of it is left afterwards.
        """
        interruption.on_second(self._cluster.kill)
        server = RunServer(self)
        try:
            await server.open()
        except OSError as error:
            self._screen.note(f"other commands can't reach this run: {error}")
        await self._record.begin(self.latest, server.path, self._since)
        showing = asyncio.ensure_future(self._keep_showing())
        over: JobView | None = None
        try:
            if await self._until_end(interruption):
                self._screen.note(_DELETING if self.is_deleted else _STOPPING)
                self._at_stop = self._read()
            else:
                over = self._read()
                showing.cancel()
                self._screen.show(over)
        finally:
            await self._cluster.stop(GRACE_SECONDS)
            showing.cancel()
            (problem,) = await asyncio.gather(showing, return_exceptions=True)
            last = over or self._read()
            if over is None:
                self._screen.show(last)
            await self._record.finish(last, self._clock(), deleted=self.is_deleted)
            await server.close()
        if isinstance(problem, Exception):
            raise problem
        return last

    async def later_than(self, view: JobView) -> JobView:
        """Return the job once it has changed."""
        while self.latest is view:
            await self._changed.wait()
        return self.latest

    def patch(self, spec: Mapping[str, Any]) -> None:
        """Merge this into the job's spec; see `LocalCluster.patch_spec`."""
        self._cluster.patch_spec(spec)
        self._publish(self._read())

    def delete(self) -> None:
        """End the run as Ctrl-C does; the other process then removes its folder."""
        self._deletion.set()

    async def _until_end(self, interruption: Interruption) -> bool:
        """Return whether a stop was requested before the job has ended."""
        if interruption.asked.is_set():
            return True  # nothing is started yet
        controller = Controller(self._cluster, settings=_settings())
        finished = asyncio.ensure_future(controller.run_until_finished(self._cluster.key))
        asked = [asyncio.ensure_future(event.wait()) for event in (interruption.asked, self._deletion)]
        try:
            await asyncio.wait([finished, *asked], return_when=asyncio.FIRST_COMPLETED)
            if finished.done():
                finished.result()
            return not finished.done()
        finally:
            for task in (finished, *asked):
                task.cancel()
            await asyncio.gather(finished, *asked, return_exceptions=True)

    async def _keep_showing(self) -> None:
        changed = asyncio.Event()
        self._cluster.watch(lambda _: changed.set())
        while True:
            view = self._read()
            self._screen.show(view)
            self._publish(view)
            changed.clear()
            await self._record.update(view)
            await happens_within(changed, _REFRESH_SECONDS)

    def _publish(self, view: JobView) -> None:
        if replace(view, elapsed=self.latest.elapsed) != self.latest:
            self.latest = view
            self._changed.set()
            self._changed = asyncio.Event()

    def _read(self) -> JobView:
        snapshot = self._cluster.snapshot()
        generation = snapshot.job["metadata"]["generation"]
        if generation != self._generation:
            self._replicas = desired_replicas(parse(snapshot.job, has_begun=True).spec)
            self._generation = generation
        view = read_run(
            snapshot, self._replicas, since=self._since, now=self._clock(), events=self._cluster.events
        )
        view = self._resumptions.complete(view)
        if self._at_stop is not None:
            self._at_stop = view = with_stopped(self._at_stop, view)
        return view


def _settings() -> Settings:
    # Only the agents of this run have this key; the local cluster provides the agent program.
    return Settings(bundle=Bundle(pyz=b"", key=secrets.token_bytes(32)))
