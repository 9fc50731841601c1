"""The cluster and namespace of a command, from --kubeconfig, --context and the environment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainjob.cli.cluster.options import ClusterOptions, Result
from trainjob.cli.cluster.problems import NoCluster, explain
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access, InvalidAccess, from_kubeconfig, in_cluster
from trainjob.cluster.protocol import ClusterError, allow_deep_objects

_USER_AGENT = "trainjob"


@dataclass(frozen=True)
class Connection:
    """An API server, and the namespace of a command.

    Attributes:
        namespace: that of the options, else that of the context, or `default`.
    """

    api: ApiClient
    namespace: str


def run_connected(where: ClusterOptions, work: Callable[[Connection], Coroutine[Any, Any, Result]]) -> Result:
    """Return the result of the work with the connection that the options select.

    Raises:
        ClusterProblem: the cluster can't be used, or it refused a request.
    """

    async def connected() -> Result:
        async with ApiClient(access, user_agent=_USER_AGENT) as api:
            return await work(Connection(api, where.namespace or access.namespace))

    allow_deep_objects()
    try:
        access = find_access(where)
        return asyncio.run(connected())
    except InvalidAccess as error:
        raise NoCluster(str(error)) from error
    except ClusterError as error:
        raise explain(error) from error


def find_access(where: ClusterOptions, environ: Mapping[str, str] = os.environ) -> Access:
    """Return how to reach the cluster that the options select.

    Raises:
        InvalidAccess: there is no usable kubeconfig.
    """
    files = where.kubeconfig or environ.get("KUBECONFIG") or str(Path("~/.kube/config"))
    if any(part and Path(part).expanduser().is_file() for part in files.split(os.pathsep)):
        return from_kubeconfig(files, where.context)
    if where == ClusterOptions(where.namespace) and environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environ)
    raise InvalidAccess(f"there is no kubeconfig {files}: name one by --kubeconfig or KUBECONFIG")
