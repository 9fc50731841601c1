"""Whole lists, a page at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainjob.cluster.kube.answers import Expired
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import PODS, TRAINJOBS, Resource
from trainjob.cluster.kube.store import Place, Store, place_of
from trainjob.cluster.kube.versions import version_of
from trainjob.cluster.protocol import Manifest

PAGE = 500
JOBS_A_PAGE = 10
PODS_A_PAGE = 100
"""A page is in memory whole: its text, and its objects before they are cut down to what is kept. A job has up
to 1.5 MB, as much as etcd stores; a pod of a large job some 100 kB.
"""


_PAGES = {TRAINJOBS: JOBS_A_PAGE, PODS: PODS_A_PAGE}


@dataclass(frozen=True)
class Scope:
    """Which objects are listed and watched.

    Attributes:
        resource: their kind.
        namespace: where they are; None is everywhere.
        selector: by their labels; empty takes all.
    """

    resource: Resource
    namespace: str | None = None
    selector: str = ""


async def fill(api: ApiClient, scope: Scope, store: Store) -> str:
    """Make a store equal to what the API server has, and return the list's resourceVersion.

    Raises:
        ClusterError: the list could not be had; the store may hold some of it.
    """
    return await compare(api, scope, store, store.put)


async def compare(
    api: ApiClient,
    scope: Scope,
    store: Store,
    take: Callable[[Manifest], object],
    *,
    metadata_only: bool = False,
) -> str:
    """List everything, drop from the store what is gone, and return the list's resourceVersion.

    Args:
        api: the API server.
        scope: what is listed.
        store: what is compared with it.
        take: given each object as its page comes, so that only one page is held in memory.
        metadata_only: whether the objects come without spec and status.

    Raises:
        ClusterError: the list could not be had.
    """
    try:
        limit = PAGE if metadata_only else _PAGES.get(scope.resource, PAGE)
        seen, version = await walk(api, scope, take, limit=limit, metadata_only=metadata_only)
    except Expired:
        # The list was compacted away between two pages; all at once it can't be.
        seen, version = await walk(api, scope, take, limit=None, metadata_only=metadata_only)
    store.retain(seen, version)
    return version


async def walk(
    api: ApiClient,
    scope: Scope,
    take: Callable[[Manifest], object],
    *,
    limit: int | None,
    metadata_only: bool,
) -> tuple[list[tuple[Place, str]], str]:
    """Give every object to `take`, and return their places and uids, and the list's resourceVersion.

    Raises:
        Expired: the list was compacted away between two pages.
        ClusterError: it could not be had.
    """
    seen: list[tuple[Place, str]] = []
    continuation = ""
    while True:
        page = await api.list(
            scope.resource,
            scope.namespace,
            selector=scope.selector,
            limit=limit,
            continuation=continuation,
            metadata_only=metadata_only,
        )
        for item in page.get("items") or ():
            # Lists of Kubernetes' own kinds leave out on each item what the list says once.
            item.setdefault("apiVersion", scope.resource.api_version)
            item.setdefault("kind", scope.resource.kind)
            seen.append((place_of(item), item["metadata"]["uid"]))
            take(item)
        continuation = (page.get("metadata") or {}).get("continue") or ""
        if not continuation:
            return seen, version_of(page)
