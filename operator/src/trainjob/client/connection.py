"""A connection to the cluster that the options, the environment or the kubeconfig name."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from trainjob.client.problems import NoCluster, explain

if TYPE_CHECKING:
    from trainjob.client.view import JobView
    from trainjob.cluster.kube.client import ApiClient
    from trainjob.cluster.kube.config import Access

# The Kubernetes client is slow to import: it is imported with the first connection. Help, and messages
# about mistakes in files, don't wait for that.

_PATIENCE_SECONDS = 3.0
"""For a cluster that no option asks for."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class ClusterOptions:
    """Which cluster and namespace; None: not given, so that of the kubeconfig."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None

    def run(self, work: Callable[[Connection], Coroutine[Any, Any, Result]]) -> Result:
        """Connect to the cluster, and return the result of the work.

        Raises:
            ClusterProblem: the cluster can't be used, or it refused a request.
        """
        import asyncio  # noqa: PLC0415 - as slow to import as the client

        async def connect_and_work() -> Result:
            async with connected(self) as connection:
                return await work(connection)

        return asyncio.run(connect_and_work())


class Connection(NamedTuple):
    """An API server, and the namespace of the options, else of the context, or `default`."""

    api: ApiClient
    namespace: str


@asynccontextmanager
async def connected(where: ClusterOptions) -> AsyncIterator[Connection]:
    """Open the connection that the options select, until the block ends.

    Raises:
        ClusterProblem: the cluster can't be used, or it refused a request of the block.
    """
    from trainjob.cluster.kube.client import ApiClient  # noqa: PLC0415
    from trainjob.cluster.kube.config import InvalidAccess  # noqa: PLC0415
    from trainjob.cluster.protocol import ClusterError, allow_deep_objects  # noqa: PLC0415

    allow_deep_objects()
    try:
        access = find_access(where)
        async with ApiClient(access, user_agent="trainjob") as api:
            yield Connection(api, where.namespace or access.namespace)
    except InvalidAccess as error:
        raise NoCluster(str(error)) from error
    except ClusterError as error:
        raise explain(error) from error


async def cluster_jobs(where: ClusterOptions, *, all_namespaces: bool = False) -> list[JobView]:
    """Return the jobs of the cluster that the options select.

    If none asks for a cluster, one that isn't there or doesn't answer in time has none; a line on stderr says
    so.

    Raises:
        ClusterProblem: the cluster can't be used.
    """
    import asyncio  # noqa: PLC0415 - as above

    from trainjob.client.jobs import job_scope, list_objects  # noqa: PLC0415
    from trainjob.client.view import read_job  # noqa: PLC0415
    from trainjob.core.wording import printable  # noqa: PLC0415

    is_asked_for = where != ClusterOptions() or all_namespaces
    if not is_asked_for and not has_cluster(where):
        return []
    try:
        async with asyncio.timeout(None if is_asked_for else _PATIENCE_SECONDS), connected(where) as cluster:
            scope = job_scope(None if all_namespaces else cluster.namespace)
            return [read_job(item) for item in (await list_objects(cluster.api, scope)).get("items") or ()]
    except (NoCluster, TimeoutError) as error:
        if is_asked_for:
            raise
        why = str(error) or f"it didn't respond within {_PATIENCE_SECONDS:g} s"
        print(f"trainjob: the cluster's jobs aren't listed: {printable(why)}", file=sys.stderr, flush=True)
        return []


def find_access(where: ClusterOptions) -> Access:
    """Return how to reach the cluster that the options select.

    Raises:
        InvalidAccess: there is no usable kubeconfig.
    """
    from trainjob.cluster.kube.config import InvalidAccess, from_kubeconfig, in_cluster  # noqa: PLC0415

    files, is_there = _kubeconfig(where)
    if is_there:
        return from_kubeconfig(files, where.context)
    if where == ClusterOptions(where.namespace) and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(os.environ)
    raise InvalidAccess(f"there is no kubeconfig {files}: name one by --kubeconfig or KUBECONFIG")


def has_cluster(where: ClusterOptions) -> bool:
    """Return whether there is a kubeconfig, or this is a pod."""
    return _kubeconfig(where)[1] or bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def _kubeconfig(where: ClusterOptions) -> tuple[str, bool]:
    """Return the files of the kubeconfig, and whether one of them is there."""
    files = where.kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config"))
    return files, any(part and Path(part).expanduser().is_file() for part in files.split(os.pathsep))
