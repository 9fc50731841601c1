"""One job, run to its end on this machine by its own controller, with a display and a record."""

import asyncio
import os
import platform
import secrets
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from trainjob.api import OUTPUT_VOLUME, TrainJob, parse
from trainjob.client.presenter import Results, describe_end, describe_interruption
from trainjob.client.request import Request, compare, read_local_request
from trainjob.client.run_record import (
    Run,
    RunEnd,
    RunRecord,
    describe_finished,
    forget,
    identify_process,
    read_run_folder,
    remember,
)
from trainjob.client.runs import log_files, results_in, serve, shown_path
from trainjob.client.view import JobView, Outcome, Resumptions, read_run, with_stopped
from trainjob.cluster.local import (
    CannotRunHere,
    LocalCluster,
    LocalOptions,
    add_folder,
    bring_back,
    folders_of,
    has_saved,
    remove_folder,
    set_aside,
    survey,
)
from trainjob.cluster.protocol import happens_within
from trainjob.controller import Controller
from trainjob.core.manifests import build_objects
from trainjob.core.names import Replica, desired_replicas, output_uri, root_folder
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


class Interruption:
    """Handles the signals that ask a program to stop; use it within one event loop.

    The first asks the run to stop, the second kills its processes.

    Attributes:
        asked: set by the first signal.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._insisted: Callable[[], None] = lambda: None
        # `nohup` makes a program ignore SIGHUP, so that it outlives its terminal.
        outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._signals = [signal.SIGINT, signal.SIGTERM, *([] if outlives else [signal.SIGHUP])]

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
        for number in self._signals:
            loop.add_signal_handler(number, self.ask)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.remove_signal_handler(number)


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
        new: a request that differs from those of the job's runs gets a run of its own, with a number.
        ways: what a user can do about a request that differs, for messages.
        begun: called with the run's folder once it has a record, or is found finished.
    """

    job: dict[str, Any]
    options: LocalOptions
    file: Path | None = None
    command: str = ""
    fresh: bool = False
    resume: str | None = None
    smoke: bool = False
    new: bool = False
    ways: str = "start over: --fresh; train it separately: --name NAME, or --new"
    begun: Callable[[Path], None] = lambda _: None


async def run_here(
    request: RunRequest, screen: Screen, interruption: Interruption
) -> tuple[RunEnd, tuple[str, ...]]:
    """Run a job to its end on this machine, unless it is finished already; return how it ended, and lines.

    Raises:
        CannotRunHere: this machine can't run it, another run has its folder, or the folder's run was asked
            for something else.
    """
    raw, starts_over = _for_this_machine(request)
    if _is_in_bucket(request):
        request = replace(request, ways="train it separately: --name NAME, or output.resume: Never")
    options = request.options
    asked = read_local_request(raw, options, request.file, os.environ)
    arrange = _Arrangement(request, asked, starts_over, screen.note)
    cluster = LocalCluster(
        raw, survey(options, os.environ), base_port=options.base_port, arrange=arrange, on_line=screen.line
    )
    try:
        job = parse(cluster.job)
        notes = cluster.prepare(build_objects(job))
        for note in notes:
            screen.note(note)
        supervision = _Supervision(cluster, screen, request, asked, arrange.continued)
        last = await supervision.run(interruption)
    except _NothingToDo as finished:
        (run,) = finished.args
        request.begun(run.folder)
        return "complete", (describe_finished(run, datetime.now(UTC)),)
    except _AnotherRequest as refused:
        raise CannotRunHere([str(refused)]) from refused  # of no single replica
    finally:
        await cluster.close()
        with suppress(OSError):
            if not cluster.run_folder.exists():  # a volume that goes with its pod
                forget(cluster.run_folder)
    last = replace(last, name=cluster.run_folder.name)
    results = replace(_results(request, cluster, job, last), command=request.command, starts_over=starts_over)
    if supervision.is_deleted:
        return "deleted", (f"{last.name} was deleted; all its processes have ended",)
    if last.outcome is Outcome.GOING_ON:
        return "interrupted", describe_interruption(last, results)
    return "complete" if last.outcome is Outcome.COMPLETE else "failed", describe_end(last, results)


# A job's name stands for one request: another one neither continues its run nor gets its result.


class _NothingToDo(Exception):
    """The run that is its argument has finished what is asked for."""


class _AnotherRequest(Exception):
    """A run was asked for something else; the message says what, and what to do."""


class _Arrangement:
    """Finds the folder of a run, and compares what was asked for there before anything starts or is renamed.

    Attributes:
        continued: see `RunRecord`.
    """

    def __init__(
        self, request: RunRequest, asked: Request, starts_over: bool, note: Callable[[str], None]
    ) -> None:
        self._request, self._asked, self._note = request, asked, note
        self._starts_over = starts_over
        self.continued = ""

    def __call__(self, folder: Path) -> Path:
        """Return the run's folder; it is the job's, unless another request gets one of its own.

        Raises:
            _NothingToDo, _AnotherRequest: nothing is to be started.
            CannotRunHere: a folder can't be renamed.
        """
        request = self._request
        aside = finished = None
        if request.smoke:
            if folder.exists():
                remove_folder(folder)
        elif request.resume is not None:
            named = Path(request.resume)
            named = named if named.is_dir() else folder.with_name(request.resume)
            finished = self._find_finished(named)
            aside = bring_back(named, folder)
        elif request.fresh or self._starts_over:
            aside = set_aside(folder)
        else:
            if request.new:
                own = next((each for each in folders_of(folder) if self._is_own(each)), None)
                folder = own or add_folder(folder)
            finished = self._find_finished(folder)
        if aside is not None:
            with suppress(OSError):  # the run's own record says so
                remember(aside)
            self._note(f"the previous output is kept in {shown_path(aside)}")
        if finished is not None:
            raise _NothingToDo(replace(finished, folder=folder))
        return folder

    def _find_finished(self, folder: Path) -> Run | None:
        """Return the run of this folder if it has finished what is asked for."""
        run = read_run_folder(folder)
        if run is None:
            if has_saved(folder) and self._request.resume is None:
                raise _AnotherRequest(
                    f"{shown_path(folder)} holds the output of a run without a record of its request; "
                    f"nothing was started; continue it anyway: --resume {folder.name}; {self._request.ways}"
                )
            return None
        if run.is_running or not (run.is_finished or has_saved(folder) or _is_in_bucket(self._request)):
            return None  # its lock is held, or there is nothing to continue from
        differences = compare(run.record.request, self._asked)
        if refused := differences.refused(finished=run.is_finished):
            state = "is finished" if run.is_finished else "isn't finished"
            what = f"{run.name} {state}, and this is another request: {', '.join(refused)}"
            raise _AnotherRequest(f"{what}; nothing was started; {self._request.ways}")
        if run.is_finished and not differences.longer:
            return run
        if differences.all:
            self.continued = f"continuing with {', '.join(differences.all)}"
            self._note(self.continued)
        return None

    def _is_own(self, folder: Path) -> bool:
        """Return whether the run of this folder has this request."""
        run = read_run_folder(folder)
        if run is None:
            return False
        differences = compare(run.record.request, self._asked)
        return not (differences.refused(finished=run.is_finished) or differences.longer)


def _is_in_bucket(request: RunRequest) -> bool:
    """Return whether checkpoints are in a bucket, where this machine's folders say nothing of them."""
    output = request.job["spec"].get("output") or {}
    return bool(output.get("uri")) and OUTPUT_VOLUME not in request.options.volumes


def _for_this_machine(request: RunRequest) -> tuple[dict[str, Any], bool]:
    """Return the manifest to run, and whether its file asks to start over each time."""
    raw = deepcopy(request.job)
    # In a cluster another controller may manage the job; here there is none.
    raw["spec"].pop("managedBy", None)
    # This run ends with the job, so nothing is left to expire.
    raw["spec"].pop("ttlSecondsAfterFinished", None)
    output = raw["spec"].get("output") or {}
    if _is_in_bucket(request):
        refused = [f"--{name}" for name in ("fresh", "resume", "new", "smoke") if getattr(request, name)]
        if refused:
            message = (
                f"{' and '.join(refused)} can't be used for an output in {output['uri']}: another --name or "
                "output.resume: Never starts over there; into a folder of this machine a run trains with "
                f"--volume {OUTPUT_VOLUME}=FOLDER"
            )
            raise CannotRunHere([message])
        return raw, False  # `resume: Never` has a new folder there for each run
    starts_over = output.get("resume") == "Never"
    if starts_over:
        # The new run has the job's folder, and earlier ones have numbers. In a cluster each job has its own.
        output["resume"] = "Auto"
    return raw, starts_over


def _results(request: RunRequest, cluster: LocalCluster, job: TrainJob, last: JobView) -> Results:
    pods = {replica.name: replica.pod for replica in last.replicas if replica.pod}
    first = last.status.first_failure
    if first is not None and first.rank and first.pod:
        pods[first.rank] = first.pod
    tails = {pod: cluster.log_tail(pod) for pod in pods.values()}
    if job.spec.restart_strategy == "InPlace" and first is not None and first.pod and first.log_tail:
        # The pod's own log continues after the failure, with lines of the agent and of later attempts.
        tails[first.pod] = tuple(first.log_tail.splitlines())
    if cluster.output_root is not None:
        results = Results(output=shown_path(cluster.output_root))
        with suppress(OSError):  # the job has ended as it has
            results = results_in(cluster.output_root)
        if _is_in_bucket(request) and last.checkpoint_step is not None:
            results = replace(results, checkpoints=f"{output_uri(job)}/checkpoints")
        return replace(results, tails=tails)
    known, output = last.checkpoint_step is not None, root_folder(job)
    checkpoints = f"{output}/checkpoints" if known else ""
    return Results(output=output, checkpoints=checkpoints, has_events=known, tails=tails)


# The time after Ctrl-C in which replicas can save a checkpoint; a second Ctrl-C kills them at once.
GRACE_SECONDS = 10.0
_REFRESH_SECONDS = 0.25
_RECORD_SECONDS = 5.0

_STOPPING = f"stopping: replicas have {GRACE_SECONDS:g} s to save; another Ctrl-C ends them at once"
_DELETING = "stopping: `trainjob delete` was called for this run"


class _Supervision:
    """Runs the controller on a local cluster, keeps a screen and a record up to date, and can be reached.

    If the record can't be written, a note says so and the run continues. `run` ends the processes of the
    prepared cluster, and leaves it to be closed.

    Attributes:
        latest: the job, as it was shown last.
    """

    def __init__(
        self, cluster: LocalCluster, screen: Screen, request: RunRequest, asked: Request, continued: str
    ) -> None:
        self._cluster, self._screen, self._request = cluster, screen, request
        self._folder = cluster.run_folder
        self._earlier = read_run_folder(self._folder)
        self._since = datetime.now(UTC)
        self._generation, self._replicas = 0, tuple[Replica, ...]()
        self._changed, self._deletion = asyncio.Event(), asyncio.Event()
        self._resumptions = Resumptions()
        self._at_stop: JobView | None = None
        self.latest = self._read()
        self._record = RunRecord(
            view=self.latest,
            host=platform.node(),
            pid=os.getpid(),
            process=identify_process(os.getpid()) or "",
            command=request.command,
            request=asked,
            continued=continued,
            log_starts={
                path.stem: path.stat().st_size for files in log_files(self._folder).values() for path in files
            },
            began=self._since,
        )
        self._written, self._is_recorded = 0.0, True
        self._writer = ThreadPoolExecutor(1)  # one record after the other

    @property
    def is_deleted(self) -> bool:
        """Return whether another process has asked to delete the run."""
        return self._deletion.is_set()

    async def run(self, interruption: Interruption) -> JobView:
        """Run the job until it ends or a stop is requested, and return its last state.

        No process of it is left afterwards.
        """
        interruption.on_second(self._cluster.kill)
        async with AsyncExitStack() as stack:
            socket = ""
            try:
                socket = await stack.enter_async_context(serve(self))
            except OSError as error:
                self._screen.note(f"other commands can't reach this run: {error}")
            await self._write(socket=socket)
            try:
                remember(self._folder)
            except OSError as error:
                self._screen.note(f"`trainjob list` won't show this run: {error}")
            self._request.begun(self._folder)
            return await self._follow(interruption)

    async def _follow(self, interruption: Interruption) -> JobView:
        """Show the job until it ends or a stop is requested, end its processes and write the record."""
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
            first = last.status.first_failure
            if first is not None and first.reason == "OutputFinished" and self._earlier is not None:
                # The trainer has refused to train on, so the folder is what the earlier request has made.
                self._record = self._earlier.record
                await self._write()
            else:
                ends = {Outcome.COMPLETE: "complete", Outcome.FAILED: "failed"}
                end = ends.get(last.outcome, "deleted" if self.is_deleted else "interrupted")
                await self._write(view=last, ended=datetime.now(UTC), end=end)
        if isinstance(problem, Exception):
            raise problem
        return last

    async def _write(self, **changes: Any) -> None:
        """Write the record with these changes."""
        self._record = self._record.model_copy(update=changes)
        loop = asyncio.get_running_loop()
        self._written = loop.time()
        try:
            await loop.run_in_executor(self._writer, self._record.write, self._folder)
            self._is_recorded = True
        except OSError as error:
            if self._is_recorded:
                self._screen.note(
                    f"the record of this run can't be written ({error}): `trainjob list` won't show it"
                )
            self._is_recorded = False

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
        # Only the agents of this run have this key; the local cluster provides the agent program.
        bundle = Bundle(pyz=b"", key=secrets.token_bytes(32))
        settings = Settings(bundle=bundle, limits_memory=self._cluster.limits_memory)
        controller = Controller(self._cluster, settings=settings)
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
            if asyncio.get_running_loop().time() - self._written >= _RECORD_SECONDS:
                await self._write(view=view)
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
            snapshot, self._replicas, since=self._since, now=datetime.now(UTC), events=self._cluster.events
        )
        view = self._resumptions.complete(view)
        if self._at_stop is not None:
            self._at_stop = view = with_stopped(self._at_stop, view)
        return view
