"""The logs of a job, until now or while it runs."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainjob.client.jobs import follow, follow_job, pod_scope
from trainjob.client.pod_log import LogLine, LogLost, LogSource, PodLog
from trainjob.client.presenter import describe_deletion, describe_state
from trainjob.client.problems import NoJob
from trainjob.client.view import JobView, why_no_log
from trainjob.cluster.kube.informer import Change, Gone, Listed, Seen
from trainjob.cluster.protocol import ClusterError
from trainjob.core.names import Replica, is_training
from trainjob.core.pods import Pod, PodState, read_pod
from trainjob_trainer.contract.replicas import ROLES

if TYPE_CHECKING:
    from trainjob.cluster.kube.client import ApiClient


# Merged logs of several pods.


Stamped = tuple[str, LogLine]
"""A replica's name and a line of its log."""


async def merge_logs(logs: Iterable[AsyncGenerator[Stamped]]) -> AsyncGenerator[Stamped]:
    """Yield the lines of all logs in order of time, reading no further ahead than necessary."""
    heads: list[tuple[int, int, Stamped, AsyncGenerator[Stamped]]] = []

    async def push(order: int, log: AsyncGenerator[Stamped]) -> None:
        line = await anext(log, None)
        if line is not None:
            heapq.heappush(heads, (line[1].nanoseconds, order, line, log))

    async with AsyncExitStack() as opened:
        for order, log in enumerate(logs):
            await push(order, await opened.enter_async_context(aclosing(log)))
        while heads:
            _, order, line, log = heapq.heappop(heads)
            yield line
            await push(order, log)


async def pod_lines(
    api: ApiClient, pod: Pod, namespace: str, tail: int | None, complain: Callable[[str], None]
) -> AsyncGenerator[Stamped]:
    """Yield the lines that a pod has written so far; `complain` reports a log that can't be read."""
    log = PodLog(api, LogSource(namespace, pod.name, ended=pod.ended), tail=tail)
    try:
        async with aclosing(log.lines()) as lines:
            async for line in lines:
                yield pod.replica.name, line
    except (LogLost, ClusterError) as lost:
        if isinstance(lost, ClusterError) and lost.failure.code in (401, 403):
            raise
        complain(f"the log of {pod.replica.title} can't be read to its end: {lost}")


def lines_so_far(
    api: ApiClient, pods: Iterable[Pod], namespace: str, tail: int | None, complain: Callable[[str], None]
) -> AsyncGenerator[Stamped]:
    """Yield the lines that these pods have written so far, in order of time; see `pod_lines`."""
    return merge_logs(pod_lines(api, pod, namespace, tail, complain) for pod in pods if has_log(pod))


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


def _rank(pod: Pod) -> tuple[int, str, int]:
    role = pod.replica.role
    return ROLES.index(role) if role in ROLES else len(ROLES), role, pod.replica.index


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


# All logs of a running job: a task for each pod, one for the job and one for its pods.


class LogFollowing:
    """Follows the logs of one job to its end.

    Args:
        api: the API server that has the job.
        job: as it is now.
        wanted: requested replicas.
        on_line: receives a replica's name and a line of its log.
        on_note: receives a sentence about the job.
        tail: lines before the end to begin with, for pods that exist already.
    """

    def __init__(
        self,
        api: ApiClient,
        job: JobView,
        wanted: Wanted,
        *,
        on_line: Callable[[str, LogLine], None],
        on_note: Callable[[str], None],
        tail: int | None,
    ) -> None:
        self._api, self._job, self._tail = api, job, tail
        self._on_line, self._on_note = on_line, on_note
        self._followed = FollowedPods(job.uid, wanted)
        self._is_over = False
        self._deletion: NoJob | None = None
        self._reading = 0
        self._done = asyncio.Event()
        self._reported = ""

    async def run(self) -> JobView:
        """Pass on lines until the job is over and all its logs have been read, and return its last state.

        Raises:
            NoJob: it was deleted before its end.
            ClusterError: a request failed permanently.
        """
        self._report_state(self._job)
        try:
            async with asyncio.TaskGroup() as group:
                watches = [
                    group.create_task(self._watch_job(group)),
                    group.create_task(self._watch_pods(group)),
                ]
                await self._done.wait()
                for watch in watches:
                    watch.cancel()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None  # the others were cancelled for it
        if self._deletion is not None:
            raise self._deletion
        return self._job

    async def _watch_pods(self, group: asyncio.TaskGroup) -> None:
        async with aclosing(follow(self._api, pod_scope(self._job.namespace, self._job.name))) as changes:
            async for change in changes:
                self._take_pods(change, group)
                self._check_end()

    def _take_pods(self, change: Change, group: asyncio.TaskGroup) -> None:
        followed = self._followed
        if isinstance(change, Seen):
            followed.see(change.manifest)
        elif isinstance(change, Gone):
            followed.lose(change.manifest)
        elif isinstance(change, Listed):
            followed.begin()
        for pod in followed.due():
            self._reading += 1
            group.create_task(self._read(pod))
        if followed.complete and not self._is_over and (waits := followed.new_waits()):
            self._report(f"waiting for {describe_waits(waits)}")

    async def _watch_job(self, group: asyncio.TaskGroup) -> None:
        job = self._job
        try:
            async with aclosing(follow_job(self._api, job.namespace, job.name, self._report)) as changes:
                async for job in changes:
                    if job.uid != self._job.uid:
                        raise NoJob(describe_deletion(job.name, self._job, replaced=True))
                    self._job = job
                    self._report_state(job)
        except NoJob as deletion:
            self._deletion = deletion
        await self._read_pods_again(group)
        self._is_over = True
        self._check_end()

    async def _read_pods_again(self, group: asyncio.TaskGroup) -> None:
        """List the pods once more, as their watch may lag behind the job's."""
        async with aclosing(follow(self._api, pod_scope(self._job.namespace, self._job.name))) as changes:
            async for change in changes:
                self._take_pods(change, group)
                if isinstance(change, Listed):
                    break

    def _check_end(self) -> None:
        if self._is_over and self._followed.complete and self._reading == 0:
            self._done.set()

    def _report_state(self, job: JobView) -> None:
        if not job.is_over:  # the end is reported separately
            self._report(f"{job.name}: {describe_state(job)}")

    def _report(self, text: str) -> None:
        if text != self._reported:
            self._on_note(text)
        self._reported = text

    async def _read(self, pod: Pod) -> None:
        log = PodLog(
            self._api,
            LogSource(self._job.namespace, pod.name, ended=pod.ended),
            follow=True,
            tail=self._tail if self._followed.was_there(pod) else None,
            gives_up=lambda: self._is_over,
        )
        try:
            async with aclosing(log.lines()) as lines:
                async for line in lines:
                    self._on_line(pod.replica.name, line)
        except LogLost as lost:
            self._on_note(f"the log of {pod.replica.title} can't be read to its end: {lost}")
        self._reading -= 1
        self._check_end()
