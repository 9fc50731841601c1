"""Kueue's kinds of objects, and which version of them the API server has."""

from __future__ import annotations

import asyncio
import logging

from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.informer import Backoff
from trainjob.cluster.kube.resources import Document, Resource
from trainjob.cluster.protocol import ClusterError
from trainjob.core.workload import GROUP

_log = logging.getLogger(__name__)

VERSIONS = ("v1beta2", "v1beta1")
"""The first one that is served is used."""

_GROUPS = Document("", "", "apis", "")
"""All groups: the response for one that isn't served is no `Status`, and might be a proxy's."""


def workloads(version: str) -> Resource:
    """Return Kueue's Workloads."""
    return Resource(GROUP, version, "workloads", "Workload")


def queue_resources(version: str) -> tuple[Resource, ...]:
    """Return the kinds of cluster-wide objects that decide on jobs in queues."""
    return (
        Resource(GROUP, version, "resourceflavors", "ResourceFlavor"),
        Resource(GROUP, version, "workloadpriorityclasses", "WorkloadPriorityClass"),
        Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass"),
    )


async def find_version(api: ApiClient, backoff: Backoff) -> str:
    """Return the version of Kueue's API, or an empty text if there is none; failed requests are repeated."""
    while True:
        try:
            groups = (await api.get(_GROUPS, None, ""))["groups"]
        except ClusterError as error:
            _log.info("looking for Kueue: %s", error)
            await asyncio.sleep(backoff.next())
            continue
        served = {each["version"] for group in groups if group["name"] == GROUP for each in group["versions"]}
        found = next((version for version in VERSIONS if version in served), "")
        if not found:
            _log.warning(
                "Kueue's API is served in %s, and known in %s: jobs that name a queue wait until a restart"
                " finds it",
                ", ".join(sorted(served)) or "no version",
                " and ".join(VERSIONS),
            )
        return found
