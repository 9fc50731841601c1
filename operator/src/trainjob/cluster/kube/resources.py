"""The kinds of objects that jobs are made of, and their addresses at the API server."""

from __future__ import annotations

from dataclasses import dataclass

from trainjob.api.group import GROUP, KIND, PLURAL, VERSION


@dataclass(frozen=True)
class Resource:
    """One kind of namespaced objects.

    Attributes:
        group: the API group; empty for the core group.
        version: the group's version.
        plural: the word in the address.
        kind: the word in a manifest.
    """

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """The word in a manifest's `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the address of one object, or of all of a namespace or (None) of every namespace."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{namespace}" if namespace is not None else ""
        rest = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{place}/{self.plural}{rest}"


TRAINJOBS = Resource(GROUP, VERSION, PLURAL, KIND)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
EVENTS = Resource("", "v1", "events", "Event")

DEPENDENTS = (PODS, SERVICES, CLAIMS, NETWORK_POLICIES)
"""What a job is made of: each is watched by its label."""

UNREAD = (SECRETS,)
"""What is created for jobs and never looked at again: whoever can read one Secret can read all."""

BY_KIND = {resource.kind: resource for resource in (TRAINJOBS, *DEPENDENTS, *UNREAD, CONFIG_MAPS, EVENTS)}
