"""The one Lease at the API server."""

from __future__ import annotations

from trainjob.cluster import Manifest
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import Resource

LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")


class ApiLeases:
    """A `Leases` of the API server.

    Args:
        api: the API server.
        namespace: where the Lease is.
        name: its name.
    """

    def __init__(self, api: ApiClient, namespace: str, name: str) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name

    async def read(self) -> Manifest:
        """See `Leases.read`."""
        return await self._api.get(LEASES, self._namespace, self._name)

    async def create(self, spec: Manifest) -> Manifest:
        """See `Leases.create`."""
        return await self._api.create(LEASES, self._manifest(spec))

    async def replace(self, spec: Manifest, version: str) -> Manifest:
        """See `Leases.replace`."""
        return await self._api.replace(LEASES, self._manifest(spec, version))

    def _manifest(self, spec: Manifest, version: str = "") -> Manifest:
        meta = {"name": self._name, "namespace": self._namespace}
        if version:
            meta["resourceVersion"] = version
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": meta,
            "spec": spec,
        }
