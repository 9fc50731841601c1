"""One job, wherever it runs: what people ask of it, and where it is found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from trainjob.client.connection import ClusterOptions, connected
from trainjob.client.job_logs import (
    LogFollowing,
    Wanted,
    lines_so_far,
    newest_pods,
    own_pods,
)
from trainjob.client.jobs import Reason, Waiting, find_job, follow, job_scope, missing_job, pods_of
from trainjob.client.presenter import describe_deletion
from trainjob.client.problems import NoCluster, NoJob, describe_problem, explain, is_missing
from trainjob.client.run_record import find_run
from trainjob.client.view import JobView, read_job
from trainjob.cluster.kube.informer import Failed, Seen
from trainjob.cluster.kube.resources import TRAINJOBS
from trainjob.cluster.protocol import ClusterError

if TYPE_CHECKING:
    from trainjob.client.pod_log import LogLine
    from trainjob.cluster.kube.client import ApiClient


class JobHandle(Protocol):
    """One job. Every method may raise `ClusterProblem`; `NoJob` means that the job doesn't exist."""

    @property
    def name(self) -> str:
        """Return the job's name."""

    @property
    def place(self) -> str:
        """Return where it runs: `this machine`, or `namespace ml`."""

    async def view(self) -> JobView:
        """Return the job as it is now."""

    def changes(self) -> AsyncGenerator[JobView]:
        """Yield the job now and after each change, and end with the state in which it is over.

        Raises:
            NoJob: it doesn't exist, or was deleted before it was over.
        """

    def log_lines(
        self, wanted: Wanted, *, follow: bool = False, tail: int | None = None
    ) -> AsyncGenerator[tuple[str, str]]:
        """Yield a replica's name and a line of its log.

        Args:
            wanted: requested replicas.
            follow: continue until the job is over, through restarts.
            tail: lines before the end to begin with, for each replica; None: from the first line.
        """

    async def patch(self, spec: Mapping[str, Any]) -> JobView:
        """Merge this into the job's spec (a JSON merge patch), and return the changed job."""

    async def delete(self) -> None:
        """Stop the job and delete it; of a run on this machine, its folder too."""


def _ignore(_problem: str) -> None:
    """Do nothing."""


# A job in a cluster.


class ClusterJob:
    """A job in a cluster.

    Args:
        api: the API server that has it.
        namespace: of the job.
        name: of the job.
        on_problem: receives a sentence about a lost connection, which is opened again, and about a log that
            can't be read to its end.
    """

    def __init__(
        self, api: ApiClient, namespace: str, name: str, on_problem: Callable[[str], None] = _ignore
    ) -> None:
        self.api, self.namespace, self.name = api, namespace, name
        self._on_problem = on_problem

    @property
    def place(self) -> str:
        """Return its namespace."""
        return f"namespace {self.namespace}"

    async def view(self) -> JobView:
        """See `JobHandle`."""
        with _explained():
            return read_job(await find_job(self.api, self.namespace, self.name))

    async def changes(self) -> AsyncGenerator[JobView]:
        """See `JobHandle`."""
        # Once, without retries: otherwise the wait for a wrong context would never end.
        await self.view()
        waiting, scope = Waiting(), job_scope(self.namespace, self.name)
        reason: Reason | None = None
        with _explained():
            async with aclosing(follow(self.api, scope)) as changes:
                async for change in changes:
                    reason = waiting.take(change)
                    if isinstance(change, Failed):
                        self._on_problem(f"{describe_problem(change.error)}; trying again")
                    if reason is not None:
                        break
                    if isinstance(change, Seen) and waiting.job is not None:
                        yield waiting.job
            if reason is Reason.MISSING:
                raise await missing_job(self.api, self.namespace, self.name)
        if reason is Reason.OVER and waiting.job is not None:
            yield waiting.job
            return
        raise NoJob(describe_deletion(self.name, waiting.job, replaced=reason is Reason.REPLACED))

    async def log_lines(
        self, wanted: Wanted, *, follow: bool = False, tail: int | None = None
    ) -> AsyncGenerator[tuple[str, str]]:
        """See `JobHandle`. Without `follow` the lines are in the order in which they were written."""
        job = await self.view()
        with _explained():
            lines = self._followed(job, wanted, tail) if follow else self._so_far(job, wanted, tail)
            async with aclosing(lines):
                async for replica, line in lines:
                    yield replica, line.text

    async def _so_far(
        self, job: JobView, wanted: Wanted, tail: int | None
    ) -> AsyncGenerator[tuple[str, LogLine]]:
        pods = newest_pods(own_pods(await pods_of(self.api, self.namespace, self.name), job.uid), wanted)
        async with aclosing(lines_so_far(self.api, pods, self.namespace, tail, self._on_problem)) as lines:
            async for line in lines:
                yield line

    async def _followed(
        self, job: JobView, wanted: Wanted, tail: int | None
    ) -> AsyncGenerator[tuple[str, LogLine]]:
        queue = _LineQueue()
        following = asyncio.ensure_future(LogFollowing(self.api, job, wanted, queue, tail).run())
        following.add_done_callback(lambda _: queue.end())
        try:
            async with aclosing(queue.lines()) as lines:
                async for line in lines:
                    yield line
            last, is_deleted = await following
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        if is_deleted:
            raise NoJob(describe_deletion(self.name, last))

    async def patch(self, spec: Mapping[str, Any]) -> JobView:
        """See `JobHandle`."""
        with _explained():
            try:
                patched = await self.api.patch(TRAINJOBS, self.namespace, self.name, {"spec": dict(spec)})
            except ClusterError as error:
                if is_missing(error):
                    raise await missing_job(self.api, self.namespace, self.name) from error
                raise
        return read_job(patched)

    async def delete(self) -> None:
        """See `JobHandle`. A claim that the job doesn't own keeps the job's output."""
        job = await self.view()  # also for the suggestions, if it doesn't exist
        with _explained():
            await self.api.delete(TRAINJOBS, self.namespace, self.name, uid=job.uid)


class _LineQueue:
    """Takes the lines of `LogFollowing`; notes about the job are left to `changes`."""

    def __init__(self) -> None:
        self._queue = asyncio.Queue[tuple[str, "LogLine"] | None]()

    def line(self, replica: str, line: LogLine) -> None:
        self._queue.put_nowait((replica, line))

    def note(self, text: str) -> None:
        del text

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def lines(self) -> AsyncGenerator[tuple[str, LogLine]]:
        while (line := await self._queue.get()) is not None:
            yield line


@contextmanager
def _explained() -> Iterator[None]:
    """Turn a failed request into the exception with a sentence about it."""
    try:
        yield
    except ClusterError as error:
        raise explain(error) from error


# Finding a job by its name.


@asynccontextmanager
async def find_handle(
    name: str,
    where: ClusterOptions,
    *,
    on_problem: Callable[[str], None] = _ignore,
    certain: bool = False,
) -> AsyncIterator[JobHandle]:
    """Open the job of this name, for an `async with` block.

    With options for a cluster it is that cluster's job. Without, it is the run on this machine, if there is
    one, else the job of the kubeconfig's cluster.

    Args:
        name: of the job; of a run also its folder.
        where: the options for a cluster.
        on_problem: see `ClusterJob`.
        certain: see `find_run`.

    Raises:
        ClusterProblem: there is no such run and no cluster, or several runs have that name.
    """
    from trainjob.client.runs import LocalJob  # noqa: PLC0415 - not for jobs of a cluster

    run = find_run(name, certain=certain) if where == ClusterOptions() else None
    if run is not None:
        yield LocalJob(run)
        return
    async with AsyncExitStack() as stack:
        try:
            cluster = await stack.enter_async_context(connected(where))
        except NoCluster as error:
            if where != ClusterOptions():
                raise
            raise NoCluster(f"there is no run {name!r} on this machine, and {error}") from error
        yield ClusterJob(cluster.api, cluster.namespace, name, on_problem)
