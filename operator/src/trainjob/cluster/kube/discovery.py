"""Kinds of objects that not every cluster has: which of Kueue's and of the gang schedulers' are served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.informer import Backoff
from trainjob.cluster.kube.resources import Document, Resource
from trainjob.cluster.protocol import ClusterError
from trainjob.core.gangs import POD_GROUP_APIS
from trainjob.core.workload import GROUP, VISIBILITY_GROUP

_log = logging.getLogger(__name__)

KUEUE_VERSIONS = ("v1beta2", "v1beta1")
"""The first one that is served is used."""

_GROUPS = Document("", "", "apis", "")
"""All groups: the response for one that isn't served is no `Status`, and might be a proxy's."""


def workloads(version: str) -> Resource:
    """Return Kueue's Workloads."""
    return Resource(GROUP, version, "workloads", "Workload")


def local_queues(version: str) -> Resource:
    """Return the queues of Kueue's visibility API."""
    return Resource(VISIBILITY_GROUP, version, "localqueues", "LocalQueue")


def queue_resources(version: str) -> tuple[Resource, ...]:
    """Return the kinds of cluster-wide objects that decide on jobs in queues."""
    return (
        Resource(GROUP, version, "resourceflavors", "ResourceFlavor"),
        Resource(GROUP, version, "workloadpriorityclasses", "WorkloadPriorityClass"),
        Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass"),
    )


def pod_groups(api_version: str) -> Resource:
    """Return the PodGroups of this API."""
    group, _, version = api_version.partition("/")
    return Resource(group, version, "podgroups", "PodGroup")


async def find_kueue(api: ApiClient, backoff: Backoff) -> tuple[str, str]:
    """Return the versions of Kueue's API and of its visibility API; an empty text is none."""
    groups = await _served(api, backoff, "Kueue")
    served, shown = groups.get(GROUP, ()), groups.get(VISIBILITY_GROUP, ())
    found, visibility = (
        next((version for version in KUEUE_VERSIONS if version in each), "") for each in (served, shown)
    )
    if not found:
        _log.warning(
            "Kueue's API is served in %s, and known in %s: jobs that name a queue wait until a restart"
            " finds it",
            ", ".join(sorted(served)) or "no version",
            " and ".join(KUEUE_VERSIONS),
        )
    return found, visibility if found else ""


async def find_pod_groups(api: ApiClient, backoff: Backoff) -> tuple[str, ...]:
    """Return the `apiVersion` of each known kind of PodGroup that is served."""
    served = await _served(api, backoff, "PodGroups")
    known = (each.partition("/") for each in POD_GROUP_APIS)
    found = tuple(f"{group}/{version}" for group, _, version in known if version in served.get(group, ()))
    if not found:
        _log.warning(
            "no PodGroup of %s is served: replicas are placed one by one until a restart finds it",
            " or ".join(POD_GROUP_APIS),
        )
    return found


async def _served(api: ApiClient, backoff: Backoff, what: str) -> Mapping[str, tuple[str, ...]]:
    """Return the served versions of each API group; failed requests are repeated."""
    while True:
        try:
            groups = (await api.get(_GROUPS, None, ""))["groups"]
        except ClusterError as error:
            _log.info("looking for %s: %s", what, error)
            await asyncio.sleep(backoff.next())
        else:
            return {group["name"]: tuple(each["version"] for each in group["versions"]) for group in groups}
