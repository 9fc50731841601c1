"""One job, wherever it runs: what people ask of it, and where it is found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from trainjob.client.connection import ClusterOptions, connected
from trainjob.client.job_logs import (
    LogFollowing,
    LogLine,
    Stamped,
    Wanted,
    lines_so_far,
    newest_pods,
    own_pods,
)
from trainjob.client.jobs import find_job, follow_job, missing_job, pods_of
from trainjob.client.problems import NoCluster, explain, is_missing
from trainjob.client.run_record import find_run
from trainjob.client.view import JobView, read_job
from trainjob.cluster.kube.resources import TRAINJOBS
from trainjob.cluster.protocol import ClusterError

if TYPE_CHECKING:
    from trainjob.client.runs import LocalJob
    from trainjob.cluster.kube.client import ApiClient

_MOST_WAITING = 1000
"""Lines of logs that are read ahead of who takes them."""


class ClusterJob:
    """A job in a cluster; a run on this machine is a `LocalJob` with the same methods.

    Every method may raise `ClusterProblem`; `NoJob` means that the job doesn't exist. `on_problem` receives
    sentences about a lost connection, which is opened again, and a log that can't be read to its end.
    """

    def __init__(
        self, api: ApiClient, namespace: str, name: str, on_problem: Callable[[str], None] = lambda _: None
    ) -> None:
        self.api, self.namespace, self.name = api, namespace, name
        self.place = f"namespace {namespace}"
        self._on_problem = on_problem

    async def view(self) -> JobView:
        """Return the job as it is now."""
        with _explained():
            return read_job(await find_job(self.api, self.namespace, self.name))

    async def changes(self) -> AsyncGenerator[JobView]:
        """Yield the job now and after each change, and end with the state in which it is over.

        Raises:
            NoJob: it doesn't exist, or was deleted before it was over.
        """
        # Once, without retries: otherwise the wait for a wrong context would never end.
        await self.view()
        with _explained():
            async with aclosing(follow_job(self.api, self.namespace, self.name, self._on_problem)) as changes:
                async for job in changes:
                    yield job

    async def log_lines(
        self, wanted: Wanted, *, follow: bool = False, tail: int | None = None
    ) -> AsyncGenerator[tuple[str, str]]:
        """Yield a replica's name and a line of its log, of each replica all or its last `tail` lines.

        Without `follow` the lines are in the order in which they were written. With it, they continue through
        restarts until the job is over.
        """
        job = await self.view()
        with _explained():
            if follow:
                lines = self._followed(job, wanted, tail)
            else:
                pods = own_pods(await pods_of(self.api, self.namespace, self.name), job.uid)
                pods = newest_pods(pods, wanted)
                lines = lines_so_far(self.api, pods, self.namespace, tail, self._on_problem)
            async with aclosing(lines):
                async for replica, line in lines:
                    yield replica, line.text

    async def _followed(self, job: JobView, wanted: Wanted, tail: int | None) -> AsyncGenerator[Stamped]:
        queue, room = asyncio.Queue[Stamped | None](), asyncio.Semaphore(_MOST_WAITING)

        async def on_line(replica: str, line: LogLine) -> None:
            await room.acquire()
            queue.put_nowait((replica, line))

        logs = LogFollowing(
            self.api,
            job,
            wanted,
            on_line=on_line,
            on_note=lambda _: None,  # `changes` has them
            tail=tail,
        )
        following = asyncio.ensure_future(logs.run())
        following.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (line := await queue.get()) is not None:
                room.release()
                yield line
            await following
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def patch(self, spec: Mapping[str, Any]) -> JobView:
        """Merge this into the job's spec (a JSON merge patch), and return the changed job."""
        with _explained():
            try:
                patched = await self.api.patch(TRAINJOBS, self.namespace, self.name, {"spec": dict(spec)})
            except ClusterError as error:
                if is_missing(error):
                    raise await missing_job(self.api, self.namespace, self.name) from error
                raise
        return read_job(patched)

    async def delete(self) -> None:
        """Stop the job and delete it; a claim that the job doesn't own keeps its output."""
        job = await self.view()  # also for the suggestions, if it doesn't exist
        with _explained():
            await self.api.delete(TRAINJOBS, self.namespace, self.name, uid=job.uid)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn a failed request into the exception with a sentence about it."""
    try:
        yield
    except ClusterError as error:
        raise explain(error) from error


JobHandle: TypeAlias = "ClusterJob | LocalJob"


@asynccontextmanager
async def find_handle(
    name: str,
    where: ClusterOptions,
    *,
    on_problem: Callable[[str], None] = lambda _: None,
    certain: bool = False,
) -> AsyncIterator[JobHandle]:
    """Open the job of this name, for an `async with` block.

    With options for a cluster it is that cluster's job. Without, it is the run on this machine, if there is
    one, else the job of the kubeconfig's cluster. `ClusterJob` has `on_problem`, and `find_run` `certain`.

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
