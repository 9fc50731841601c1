"""All logs of a job while it runs: pods as they come, each read by a thread, printed by one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from trainjob.cli.cluster.answers import describe_problem
from trainjob.cli.cluster.cursor import LogLine
from trainjob.cli.cluster.following import Change, Gone, Listed, Seen, Troubled, follow
from trainjob.cli.cluster.pace import Pace
from trainjob.cli.cluster.pod_log import LogLost, LogSource, PodLog
from trainjob.cli.cluster.printing import LogPrinter
from trainjob.cli.cluster.reading import Job, read_job
from trainjob.cli.cluster.resources import PODS, TRAINJOBS, Resource
from trainjob.cli.cluster.seats import Seats, describe_waits
from trainjob.cli.cluster.selection import Wanted
from trainjob.core.names import LABEL_JOB
from trainjob.core.pods import Pod

if TYPE_CHECKING:
    from trainjob.cli.cluster.server import Server


@dataclass(frozen=True)
class _Line:
    replica: str
    line: LogLine


@dataclass(frozen=True)
class _Ended:
    """The reading of a log; `lost` says why, if it wasn't the log's end."""

    lost: str = ""


@dataclass(frozen=True)
class _Broken:
    problem: Exception


@dataclass(frozen=True)
class _Changed:
    resource: Resource
    change: Change


_Message = _Line | _Ended | _Broken | _Changed


class LogFollowing:
    """Follows the logs of one job to its end.

    Args:
        server: that has the job.
        job: as it is now.
        wanted: replicas that are asked for.
        printer: for lines and notes.
        tail: of pods that are there already, begin with this many lines before the end.
    """

    def __init__(
        self, server: Server, job: Job, wanted: Wanted, printer: LogPrinter, tail: int | None = None
    ) -> None:
        self._server, self._job, self._printer, self._tail = server, job, printer, tail
        self._seats = Seats(job.uid, wanted)
        self._messages = SimpleQueue[_Message]()
        self._stop, self._is_over = threading.Event(), threading.Event()
        self._reading = 0
        self._told = ""
        self._selectors = {
            TRAINJOBS: {"fieldSelector": f"metadata.name={job.name}"},
            PODS: {"labelSelector": f"{LABEL_JOB}={job.name}"},
        }

    def run(self) -> tuple[Job, bool]:
        """Print until the job is over and all its logs have been read.

        Returns:
            The job as it was last seen, and whether it was deleted.

        Raises:
            ServerProblem: something may not be asked.
        """
        self._tell_state(self._job)
        for resource in (TRAINJOBS, PODS):
            self._spawn(partial(self._watch, resource), f"watch of {resource.plural}")
        deleted = False
        try:
            while not (self._is_over.is_set() and self._seats.complete and self._reading == 0):
                deleted = self._take(self._messages.get()) or deleted
        finally:
            self._stop.set()
        return self._job, deleted

    def _take(self, message: _Message) -> bool:
        """Deal with a message; tell whether it says that the job was deleted."""
        if isinstance(message, _Line):
            self._printer.line(message.replica, message.line)
        elif isinstance(message, _Ended):
            self._reading -= 1
            if message.lost:
                self._printer.note(message.lost)
        elif isinstance(message, _Broken):
            raise message.problem
        elif message.resource == PODS:
            self._take_pods(message.change)
        else:
            return self._take_job(message.change)
        return False

    def _take_pods(self, change: Change) -> None:
        if isinstance(change, Seen):
            self._seats.see(change.manifest)
        elif isinstance(change, Gone):
            self._seats.lose(change.manifest)
        elif isinstance(change, Listed):
            self._seats.begin()
        for pod in self._seats.due():
            self._reading += 1
            self._spawn(partial(self._read, pod), f"log of {pod.name}")
        if self._seats.complete and not self._is_over.is_set() and (waits := self._seats.new_waits()):
            self._tell(f"waiting for {describe_waits(waits)}")

    def _take_job(self, change: Change) -> bool:
        if isinstance(change, Troubled):
            self._tell(f"{describe_problem(change.problem)}; trying again")
        if self._is_over.is_set() or not isinstance(change, Seen | Gone):
            return False
        job = read_job(change.manifest)
        ours = job.uid == self._job.uid
        if isinstance(change, Seen) and ours:
            self._job = job
            self._tell_state(job)
            if job.is_over:
                self._end()
            return False
        if ours:
            # What it became in its last moments is told by the event of its deletion.
            self._job = job
        if ours or isinstance(change, Seen):  # another job of that name: ours is gone
            self._end()
            return not self._job.is_over
        return False

    def _end(self) -> None:
        """The watch of pods may lag behind the job's: what was there when it ended is to be read, too."""
        for change in follow(self._server, PODS, self._job.namespace, self._selectors[PODS], self._pace()):
            self._take_pods(change)
            if isinstance(change, Listed):
                break
        self._is_over.set()

    def _tell_state(self, job: Job) -> None:
        if not job.is_over:  # the end is told at the end
            message = f": {job.status.message}" if job.status.message else ""
            self._tell(f"{job.name}: {job.state}{message}")

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._printer.note(text)
        self._told = text

    def _read(self, pod: Pod) -> _Message:
        log = PodLog(
            self._server,
            LogSource(self._job.namespace, pod.name, ended=pod.ended),
            follow=True,
            tail=self._tail if self._seats.was_there(pod) else None,
            pace=self._pace(),
            gives_up=lambda: self._is_over.is_set() or self._stop.is_set(),
        )
        try:
            for line in log.lines():
                self._messages.put(_Line(pod.replica.name, line))
        except LogLost as lost:
            return _Ended(f"the log of {pod.replica.title} can't be read to its end: {lost}")
        return _Ended()

    def _watch(self, resource: Resource) -> None:
        selectors = self._selectors[resource]
        for change in follow(self._server, resource, self._job.namespace, selectors, self._pace()):
            if self._stop.is_set():
                return
            self._messages.put(_Changed(resource, change))

    def _spawn(self, work: Callable[[], _Message | None], name: str) -> None:
        def run() -> None:
            try:
                last = work()
            except Exception as problem:  # noqa: BLE001 - raised where it is seen, not lost in a thread
                last = _Broken(problem)
            if last is not None:
                self._messages.put(last)

        threading.Thread(target=run, name=name, daemon=True).start()

    def _pace(self) -> Pace:
        return Pace(pause=self._stop.wait)
