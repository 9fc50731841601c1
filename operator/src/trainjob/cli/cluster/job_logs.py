"""The logs of a job, until now or while it runs."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from trainjob.cli.cluster.errors import Exit, NoJob, Refused, describe_problem
from trainjob.cli.cluster.following import Change, Gone, Listed, RetryTimes, Seen, Troubled, follow
from trainjob.cli.cluster.jobs import Job, Outcome, find_job, pods_of, read_job
from trainjob.cli.cluster.pod_log import LogLine, LogLost, LogSource, PodLog
from trainjob.cli.cluster.resources import PODS, TRAINJOBS, Resource
from trainjob.cli.cluster.waiting import LogPrinter, conclude, describe_deletion
from trainjob.core.names import LABEL_JOB, TRAINING_ROLES, Replica, is_training
from trainjob.core.pods import Pod, PodState, read_pod
from trainjob.core.wording import printable

if TYPE_CHECKING:
    from trainjob.cli.cluster.server import Server


# Merged logs of several pods.


Stamped = tuple[str, LogLine]
"""A replica's name and a line of its log."""


def merge_logs(logs: Iterable[Iterator[Stamped]]) -> Iterator[Stamped]:
    """Yield the lines of all logs in order of time, reading no further ahead than necessary."""
    return heapq.merge(*logs, key=lambda line: line[1].nanoseconds)


def pod_lines(
    server: Server, pods: Iterable[Pod], namespace: str, tail: int | None, complain: Callable[[str], None]
) -> list[Iterator[Stamped]]:
    """Return the lines that each pod has written so far; `complain` reports logs that can't be read."""
    return [_lines(server, pod, namespace, tail, complain) for pod in pods]


def _lines(
    server: Server, pod: Pod, namespace: str, tail: int | None, complain: Callable[[str], None]
) -> Iterator[Stamped]:
    log = PodLog(server, LogSource(namespace, pod.name, ended=pod.ended), tail=tail)
    try:
        for line in log.lines():
            yield pod.replica.name, line
    except (LogLost, Refused) as lost:
        if isinstance(lost, Refused) and lost.answer.code in (401, 403):
            raise
        complain(f"the log of {pod.replica.title} can't be read to its end: {lost}")


# Selection of a job's pods.


@dataclass(frozen=True)
class Wanted:
    """The requested replicas; None: all of them."""

    role: str | None = None
    index: int | None = None

    def takes(self, replica: Replica) -> bool:
        """Return whether this replica is requested."""
        return self.role in (None, replica.role) and self.index in (None, replica.index)


def own_pods(manifests: Iterable[Mapping[str, Any]], job_uid: str) -> tuple[Pod, ...]:
    """Return the pods that this job owns, not an earlier one of its name; in order of roles."""
    own = (m for m in manifests if _owner(m) == job_uid)
    return tuple(sorted(filter(None, map(read_pod, own)), key=lambda p: (_rank(p), p.incarnation)))


def newest_pods(pods: Iterable[Pod], wanted: Wanted) -> tuple[Pod, ...]:
    """Return the newest pod of each requested replica."""
    newest = {pod.replica: pod for pod in pods if wanted.takes(pod.replica)}  # the last of a replica wins
    return tuple(newest.values())


def earlier_pods(pods: Iterable[Pod], wanted: Wanted, attempt: int | None) -> tuple[Pod, ...]:
    """Return the newest remaining earlier pod of each requested replica.

    Args:
        pods: of one job.
        wanted: which replicas.
        attempt: of a job whose training replicas are replaced together, so that their incarnation is the
            attempt; None where agents restart them in place. An evaluator always counts its own.
    """
    every = tuple(pods)
    newest = newest_pods(every, wanted)
    current = {p.replica: attempt if attempt and is_training(p.replica) else p.incarnation for p in newest}
    return newest_pods((p for p in every if p.incarnation < current.get(p.replica, 0)), wanted)


def has_log(pod: Pod) -> bool:
    """Return whether its training container has started."""
    return pod.state is PodState.RUNNING or pod.exit_code is not None


def why_no_log(pod: Pod) -> str:
    """Return why its container has no log."""
    if pod.state is PodState.FAILED:
        return f"failed before it started ({pod.reason or pod.message or 'the cluster does not say why'})"
    if pod.waiting is not None:
        reason, message = pod.waiting
        return f"{reason}: {message}" if message else reason
    return "waiting for a node" if pod.state is PodState.PENDING else "starting"


def _rank(pod: Pod) -> tuple[int, str, int]:
    roles = (*TRAINING_ROLES, "evaluator")
    role = pod.replica.role
    return roles.index(role) if role in roles else len(roles), role, pod.replica.index


def _owner(manifest: Mapping[str, Any]) -> str | None:
    owners = (manifest.get("metadata") or {}).get("ownerReferences") or ()
    return next((owner.get("uid") for owner in owners if owner.get("controller")), None)


# The pods whose logs are read while a job is followed.


@dataclass
class FollowedPods:
    """The pods of one job, as they are created and deleted.

    Attributes:
        job_uid: owner of the pods that count.
        wanted: requested replicas.
        complete: all pods that existed at the start have been seen.
    """

    job_uid: str
    wanted: Wanted
    complete: bool = False
    _pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)
    _from_the_start: set[str] = field(default_factory=set)
    _known_waits: dict[str, str] = field(default_factory=dict)

    def see(self, manifest: dict[str, Any]) -> None:
        """Store the current state of a pod."""
        self._pods[manifest["metadata"]["uid"]] = manifest

    def lose(self, manifest: dict[str, Any]) -> None:
        """Remove a deleted pod."""
        self._pods.pop(manifest["metadata"]["uid"], None)

    def begin(self) -> None:
        """End the initial list; pods of earlier attempts are left to `--previous`."""
        if self.complete:
            return
        own = self._own()
        newest = {pod.name for pod in newest_pods(own, self.wanted)}
        self._begun = {pod.name for pod in own} - newest
        self._from_the_start = newest
        self.complete = True

    def due(self) -> tuple[Pod, ...]:
        """Return the pods that have a log which isn't read yet, each pod once."""
        if not self.complete:
            return ()
        found = tuple(pod for pod in self._own() if has_log(pod) and pod.name not in self._begun)
        self._begun.update(pod.name for pod in found)
        return found

    def was_there(self, pod: Pod) -> bool:
        """Return whether this pod existed at the start."""
        return pod.name in self._from_the_start

    def new_waits(self) -> dict[str, str]:
        """Return the replicas without a log and the reasons, unless reported before."""
        newest = newest_pods(self._own(), self.wanted)
        waits = {pod.replica.title: why_no_log(pod) for pod in newest if not has_log(pod)}
        fresh = {title: why for title, why in waits.items() if self._known_waits.get(title) != why}
        self._known_waits = waits
        return fresh

    def _own(self) -> tuple[Pod, ...]:
        own = own_pods(self._pods.values(), self.job_uid)
        return tuple(pod for pod in own if self.wanted.takes(pod.replica))


def describe_waits(waits: dict[str, str]) -> str:
    """Return `worker 0 and worker 1: Unschedulable: no nodes`, with replicas grouped by cause."""
    titles = dict[str, list[str]]()
    for title, why in waits.items():
        titles.setdefault(why, []).append(title)
    return "; ".join(f"{_listed(names)}: {why}" for why, names in titles.items())


def _listed(names: list[str]) -> str:
    if len(names) > 3:
        return f"{names[0]} and {len(names) - 1} more"
    return " and ".join(", ".join(names).rsplit(", ", maxsplit=1))


# All logs of a running job: one thread reads each pod, one thread prints.


@dataclass(frozen=True)
class _Line:
    replica: str
    line: LogLine


@dataclass(frozen=True)
class _Ended:
    """The reading of a log has ended; `lost` says why, if before the log's end."""

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
        wanted: requested replicas.
        printer: for lines and notes.
        tail: lines before the end to begin with, for pods that exist already.
    """

    def __init__(
        self, server: Server, job: Job, wanted: Wanted, printer: LogPrinter, tail: int | None = None
    ) -> None:
        self._server, self._job, self._printer, self._tail = server, job, printer, tail
        self._seats = FollowedPods(job.uid, wanted)
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
            The last known state of the job, and whether it was deleted before its end.

        Raises:
            ServerProblem: a request failed permanently.
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
        """Handle a message; return whether it reports that the job was deleted before its end."""
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
            # The deletion event has the job's last state.
            self._job = job
        if ours or isinstance(change, Seen):  # another job of that name: ours was deleted
            self._end()
            return not self._job.is_over
        return False

    def _end(self) -> None:
        """List the pods once more, as their watch may lag behind the job's; then mark the job as over."""
        for change in follow(self._server, PODS, self._job.namespace, self._selectors[PODS], self._pace()):
            self._take_pods(change)
            if isinstance(change, Listed):
                break
        self._is_over.set()

    def _tell_state(self, job: Job) -> None:
        if not job.is_over:  # the end is reported separately
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

    def _pace(self) -> RetryTimes:
        return RetryTimes(pause=self._stop.wait)


# The logs of a job, with notes about it.


class LogShowing:
    """Shows the logs of one job.

    Args:
        server: that has the job.
        namespace: of the job.
        name: of the job.
        wanted: requested replicas.
        printer: for lines and notes.
        tail: lines before the end to begin with, for each replica.
    """

    def __init__(
        self,
        server: Server,
        namespace: str,
        name: str,
        *,
        wanted: Wanted,
        printer: LogPrinter,
        tail: int | None = None,
    ) -> None:
        self._server, self._namespace, self._name = server, namespace, name
        self._wanted, self._printer, self._tail = wanted, printer, tail

    def follow(self) -> Exit:
        """Show the logs until the job is over, then its result.

        Raises:
            NoJob: the job doesn't exist, or was deleted.
        """
        job = self._find()
        last, deleted = LogFollowing(self._server, job, self._wanted, self._printer, self._tail).run()
        if deleted:
            raise NoJob(printable(describe_deletion(self._name, last)))
        return conclude(last)

    def show(self) -> Exit:
        """Show the logs so far."""
        job = self._find()
        pods = newest_pods(
            own_pods(pods_of(self._server, self._namespace, self._name), job.uid), self._wanted
        )
        if not pods:
            which = "pods" if self._wanted == Wanted() else "such pods"
            self._printer.note(f"{self._name} has no {which}{_told(job)}")
        self._print([pod for pod in pods if has_log(pod)])
        waits = {pod.replica.title: why_no_log(pod) for pod in pods if not has_log(pod)}
        if waits:
            self._printer.note(f"no log yet of {describe_waits(waits)}")
        if job.outcome is Outcome.FAILED:
            conclude(job)
        return Exit.GOOD

    def show_previous(self) -> Exit:
        """Show the logs of the previous attempt, or of earlier pods if the job restarts in place."""
        job = self._find()
        every = own_pods(pods_of(self._server, self._namespace, self._name), job.uid)
        attempt = None if job.in_place else job.status.attempt or 1
        pods = [pod for pod in earlier_pods(every, self._wanted, attempt) if has_log(pod)]
        if pods:
            self._print(pods)
        else:
            self._show_what_is_kept(job, {pod.name for pod in every})
        return Exit.GOOD

    def _show_what_is_kept(self, job: Job, pods: set[str]) -> None:
        """Show the end of the log that the status keeps of a failure, if no earlier pod is left."""
        attempt, first = job.status.attempt or 1, job.status.first_failure
        lives_on = job.in_place and first is not None and first.pod in pods
        if attempt < 2 or job.is_over or first is None or not first.log_tail or lives_on:
            whole = "; a pod's log holds every attempt that it has lived through" if job.in_place else ""
            self._printer.note(f"no earlier pods of {self._name} are left (this is attempt {attempt}){whole}")
            return
        gone = (
            f"an earlier pod of {first.rank} is" if job.in_place else f"the pods of attempt {attempt - 1} are"
        )
        self._printer.note(f"{gone} gone; of {first.rank}, which failed first, this is left:")
        for line in first.log_tail.splitlines():
            self._printer.text(first.rank, printable(line))

    def _find(self) -> Job:
        return read_job(find_job(self._server, self._namespace, self._name))

    def _print(self, pods: list[Pod]) -> None:
        logs = pod_lines(self._server, pods, self._namespace, self._tail, self._printer.note)
        for replica, line in merge_logs(logs):
            self._printer.line(replica, line)


def _told(job: Job) -> str:
    return f": {job.state}" + (f", {job.status.message}" if job.status.message else "")
