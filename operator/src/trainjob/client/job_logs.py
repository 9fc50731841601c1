"""The logs of a job's pods: to their ends, through dropped streams; until now, or while the job runs."""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import re
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from trainjob.api import TRAINER_CONTAINER
from trainjob.client.jobs import follow, follow_job, pod_scope
from trainjob.client.presenter import describe_deletion, describe_state
from trainjob.client.problems import NoJob, is_missing, is_passing
from trainjob.client.view import JobView, why_no_log
from trainjob.cluster.kube.informer import Backoff, Gone, Listed, Seen
from trainjob.cluster.kube.resources import PODS
from trainjob.cluster.local.process import TextLines
from trainjob.cluster.protocol import ClusterError
from trainjob.core.names import Replica, is_training
from trainjob.core.pods import Pod, PodState, read_pod
from trainjob_trainer.contract.replicas import ROLES

if TYPE_CHECKING:
    from trainjob.cluster.kube.client import ApiClient


# The position in one log: a dropped stream neither loses nor repeats lines.
#
# A log can only be requested from a whole second on (the fraction of `PodLogOptions.sinceTime` is dropped).
# Two writers stamp stdout and stderr, so stamps sometimes go back a little. So reading resumes one second
# before the last line, and skips lines of that time that were read already, each as often as it was read.


_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)(?: |\Z)", re.ASCII)
_LONGEST_STAMP = len("2026-01-02T03:04:05.000000000+00:00 ")
_LONGEST = 1 << 20
"""Characters of a line that are kept."""

_SECOND = 10**9
_OVERLAP = _SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class LogLine:
    """One line.

    Attributes:
        nanoseconds: since 1970, when it was written; of a line without a stamp, that of the line before.
        stamp: as the API server gives it.
        text: without terminal control characters.
    """

    nanoseconds: int
    stamp: str
    text: str


class LogCursor:
    """Turns the pieces of a log's streams into lines, one stream after the other.

    No piece is looked at twice, and of a line without an end only its first MiB is kept.
    """

    def __init__(self) -> None:
        self._begin_line()
        self._latest = 0
        self._stamp = ""
        self._taken = deque[tuple[int, bytes]]()  # of this stream: (nanoseconds, hash of the line)
        self._before = Counter[bytes]()  # of earlier streams, in the time that is read again

    @property
    def since(self) -> str | None:
        """Return the `sinceTime` of the next stream; None: from the beginning."""
        if not self._latest:
            return None
        start = max(0, self._latest - _OVERLAP) // _SECOND
        return (_EPOCH + timedelta(seconds=start)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def feed(self, piece: bytes) -> list[LogLine]:
        """Return the new lines that a piece completes."""
        lines = list[LogLine]()
        *ends, rest = piece.split(b"\n")
        for end in ends:
            self._extend(end)
            if (line := self._take()) is not None:
                lines.append(line)
        self._extend(rest)
        return lines

    def finish(self) -> list[LogLine]:
        """Return a last line without a line end, when the log is over."""
        if not _STAMP.match(self._head):  # half a stamp, or nothing
            return []
        line = self._take()
        return [line] if line is not None else []

    def reopen(self) -> None:
        """Prepare for another stream of the log, from `since` on, which repeats a line cut in the middle."""
        self._begin_line()
        self._forget()
        # Repeated lines moved from `_before` to `_taken`; those left in `_before` may still be repeated.
        self._before = +self._before + Counter(line for _, line in self._taken)
        self._taken.clear()

    def _begin_line(self) -> None:
        """Forget the line that has no end yet: its beginning, the text after that, a hash of all."""
        self._head, self._text, self._hash = b"", TextLines(_LONGEST), hashlib.blake2b(digest_size=8)

    def _extend(self, part: bytes) -> None:
        self._hash.update(part)
        missing = _LONGEST_STAMP - len(self._head)
        if missing <= 0:
            self._text.feed(part)
        elif part:
            self._head += part[:missing]
            if len(part) >= missing:
                self._text.feed(self._after_stamp() + part[missing:])

    def _after_stamp(self) -> bytes:
        found = _STAMP.match(self._head)
        return self._head[found.end() if found else 0 :]

    def _take(self) -> LogLine | None:
        """Return the line that ends here, if it is a new one."""
        found, moment = _STAMP.match(self._head), self._latest
        if found:
            self._stamp = self._head[: found.end(3)].decode()
            zone = found[3].decode()
            at = datetime.fromisoformat(found[1].decode() + ("+00:00" if zone == "Z" else zone))
            seconds = (at - _EPOCH) // timedelta(seconds=1)
            moment = seconds * _SECOND + int((found[2] or b"0").ljust(9, b"0"))
        if len(self._head) < _LONGEST_STAMP:
            self._text.feed(self._after_stamp())
        key, text = self._hash.digest(), "".join(self._text.feed(b"\n"))
        self._begin_line()
        self._latest = max(self._latest, moment)
        self._taken.append((moment, key))
        if self._taken[0][0] < self._latest - _OVERLAP - _SECOND:
            self._forget()
        if self._before[key] > 0:
            self._before[key] -= 1
            return None
        return LogLine(moment, self._stamp if found else "", text)

    def _forget(self) -> None:
        oldest = max(0, self._latest - _OVERLAP) // _SECOND * _SECOND
        while self._taken and self._taken[0][0] < oldest:
            self._taken.popleft()


_SILENCE_SECONDS = 60.0
"""A log may be silent for so long; then a new request costs little and detects dead connections."""
_MOST_FAILURES = 4
_WITHOUT_NEWS = 1.0
"""Seconds to wait when a log has ended, but the API server doesn't report its container as ended."""


class LogLost(Exception):
    """The rest of a log can't be read; the text says why."""


async def read_log(
    api: ApiClient,
    namespace: str,
    pod: Pod,
    *,
    follow: bool = False,
    tail: int | None = None,
    gives_up: Callable[[], bool] = lambda: True,
) -> AsyncGenerator[LogLine]:
    """Yield every line of a pod's log once, or its last `tail` lines; with `follow` until its container ends.

    `gives_up` returns whether repeated failures end the reading.

    Raises:
        LogLost: the rest can't be read.
        ClusterError: the API server refuses the log permanently.
    """
    cursor, backoff, ended = LogCursor(), Backoff(), pod.ended
    while True:
        options = {
            "container": TRAINER_CONTAINER,
            "timestamps": "true",
            "follow": "true" if follow and not ended else None,
            "sinceTime": cursor.since,
            "tailLines": str(tail) if tail is not None and cursor.since is None else None,
        }
        query = {name: value for name, value in options.items() if value is not None}
        try:
            async with api.log(namespace, pod.name, query, inactivity=_SILENCE_SECONDS) as pieces:
                async for piece in pieces:
                    backoff.reset()
                    for line in cursor.feed(piece):
                        yield line
            if ended or not follow:
                break
            latest = read_pod(await api.get(PODS, namespace, pod.name))
            ended = latest is None or latest.ended
            if not ended:
                await asyncio.sleep(_WITHOUT_NEWS)
        except ClusterError as error:
            if is_missing(error):
                break  # the pod was deleted, and its log with it
            # A container that was just created has no log yet: the kubelet responds with 400.
            wait, is_early = backoff.next(), error.failure.code == 400
            if not is_passing(error) and not is_early:
                raise
            if backoff.failures >= _MOST_FAILURES and (gives_up() or is_early):
                raise LogLost(error.failure.message or str(error)) from error
            await asyncio.sleep(wait)
        cursor.reopen()
    for line in cursor.finish():
        yield line


Stamped = tuple[str, LogLine]
"""A replica's name and a line of its log."""


async def lines_so_far(
    api: ApiClient, pods: Iterable[Pod], namespace: str, tail: int | None, complain: Callable[[str], None]
) -> AsyncGenerator[Stamped]:
    """Yield the lines that these pods have written so far, in order of time.

    No log is read further ahead than necessary; `complain` reports one that can't be read.
    """
    heads: list[tuple[int, int, Stamped, AsyncGenerator[Stamped]]] = []

    async def read(pod: Pod) -> AsyncGenerator[Stamped]:
        try:
            async with aclosing(read_log(api, namespace, pod, tail=tail)) as lines:
                async for line in lines:
                    yield pod.replica.name, line
        except (LogLost, ClusterError) as lost:
            if isinstance(lost, ClusterError) and lost.failure.code in (401, 403):
                raise
            complain(f"the log of {pod.replica.title} can't be read to its end: {lost}")

    async def push(order: int, log: AsyncGenerator[Stamped]) -> None:
        line = await anext(log, None)
        if line is not None:
            heapq.heappush(heads, (line[1].nanoseconds, order, line, log))

    async with AsyncExitStack() as opened:
        for order, pod in enumerate(filter(has_log, pods)):
            await push(order, await opened.enter_async_context(aclosing(read(pod))))
        while heads:
            _, order, line, log = heapq.heappop(heads)
            yield line
            await push(order, log)


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

    def owner(manifest: Mapping[str, Any]) -> str | None:
        owners = (manifest.get("metadata") or {}).get("ownerReferences") or ()
        return next((owner.get("uid") for owner in owners if owner.get("controller")), None)

    def rank(pod: Pod) -> tuple[int, str, int, int]:
        role = pod.replica.role
        known = ROLES.index(role) if role in ROLES else len(ROLES)
        return known, role, pod.replica.index, pod.incarnation

    own = (read_pod(manifest) for manifest in manifests if owner(manifest) == job_uid)
    return tuple(sorted(filter(None, own), key=rank))


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


def describe_waits(waits: dict[str, str]) -> str:
    """Return `worker 0 and worker 1: Unschedulable: no nodes`, with replicas grouped by cause."""
    titles = dict[str, list[str]]()
    for title, why in waits.items():
        titles.setdefault(why, []).append(title)

    def listed(names: list[str]) -> str:
        if len(names) > 3:
            return f"{names[0]} and {len(names) - 1} more"
        return " and ".join(", ".join(names).rsplit(", ", maxsplit=1))

    return "; ".join(f"{listed(names)}: {why}" for why, names in titles.items())


# All logs of a running job: a task for each pod, one for the job and one for its pods.


class LogFollowing:
    """Follows the logs of one job to its end.

    Args:
        api: the API server that has the job.
        job: as it is now.
        wanted: requested replicas.
        on_line: receives a replica's name and a line of its log; none is read further while it waits.
        on_note: receives a sentence about the job.
        tail: lines before the end to begin with, for pods that exist already.
    """

    def __init__(
        self,
        api: ApiClient,
        job: JobView,
        wanted: Wanted,
        *,
        on_line: Callable[[str, LogLine], Awaitable[None]],
        on_note: Callable[[str], None],
        tail: int | None,
    ) -> None:
        self._api, self._job, self._tail = api, job, tail
        self._on_line, self._on_note = on_line, on_note
        self._wanted = wanted
        self._pods = dict[str, dict[str, Any]]()
        self._begun, self._from_the_start = set[str](), set[str]()
        self._waits = dict[str, str]()
        self._is_listed = self._is_over = False
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

    async def _watch_pods(self, group: asyncio.TaskGroup, *, once: bool = False) -> None:
        async with aclosing(follow(self._api, pod_scope(self._job.namespace, self._job.name))) as changes:
            async for change in changes:
                if isinstance(change, Seen):
                    self._pods[change.manifest["metadata"]["uid"]] = change.manifest
                elif isinstance(change, Gone):
                    self._pods.pop(change.manifest["metadata"]["uid"], None)
                self._look_at_pods(group, is_listed=isinstance(change, Listed))
                self._check_end()
                if once and isinstance(change, Listed):
                    break

    def _look_at_pods(self, group: asyncio.TaskGroup, *, is_listed: bool) -> None:
        """Begin to read each log once there is one, and report what the other replicas wait for."""
        own = [p for p in own_pods(self._pods.values(), self._job.uid) if self._wanted.takes(p.replica)]
        newest = newest_pods(own, self._wanted)
        if is_listed and not self._is_listed:  # pods of earlier attempts are left to `--previous`
            self._is_listed, self._from_the_start = True, {pod.name for pod in newest}
            self._begun = {pod.name for pod in own} - self._from_the_start
        if not self._is_listed:
            return
        for pod in own:
            if has_log(pod) and pod.name not in self._begun:
                self._begun.add(pod.name)
                self._reading += 1
                group.create_task(self._read(pod))
        if not self._is_over:
            known = self._waits
            self._waits = {pod.replica.title: why_no_log(pod) for pod in newest if not has_log(pod)}
            if new := {title: why for title, why in self._waits.items() if known.get(title) != why}:
                self._report(f"waiting for {describe_waits(new)}")

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
        await self._watch_pods(group, once=True)  # their own watch may lag behind the job's
        self._is_over = True
        self._check_end()

    def _check_end(self) -> None:
        if self._is_over and self._is_listed and self._reading == 0:
            self._done.set()

    def _report_state(self, job: JobView) -> None:
        if not job.is_over:  # the end is reported separately
            self._report(f"{job.name}: {describe_state(job)}")

    def _report(self, text: str) -> None:
        if text != self._reported:
            self._on_note(text)
        self._reported = text

    async def _read(self, pod: Pod) -> None:
        lines = read_log(
            self._api,
            self._job.namespace,
            pod,
            follow=True,
            tail=self._tail if pod.name in self._from_the_start else None,
            gives_up=lambda: self._is_over,
        )
        try:
            async with aclosing(lines):
                async for line in lines:
                    await self._on_line(pod.replica.name, line)
        except LogLost as lost:
            self._on_note(f"the log of {pod.replica.title} can't be read to its end: {lost}")
        self._reading -= 1
        self._check_end()
