"""Kinds of objects, their paths at the API server, and requests for them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlencode

from trainjob.api.constants import GROUP, KIND, PLURAL, VERSION


@dataclass(frozen=True)
class Resource:
    """One kind of namespaced objects.

    Attributes:
        group: the API group; empty for the core group.
        version: the group's version.
        plural: the name in the path.
        kind: the `kind` of a manifest.
    """

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """The `apiVersion` of a manifest."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the path of one object, or of all in a namespace or (None) in every namespace."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        within = f"/namespaces/{quote(namespace, safe='')}" if namespace is not None else ""
        rest = "".join(f"/{quote(part, safe='')}" for part in (name, subresource) if part)
        return f"{root}{within}/{self.plural}{rest}"


class Document(Resource):
    """A document of the API server itself, such as `/version`."""

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return its path."""
        del namespace, name, subresource
        return f"/{self.plural}"


SERVER_VERSION = Document("", "", "version", "")

TRAINJOBS = Resource(GROUP, VERSION, PLURAL, KIND)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
EVENTS = Resource("", "v1", "events", "Event")

DEPENDENTS = (PODS, SERVICES, CLAIMS, NETWORK_POLICIES)
"""The kinds of a job's objects that are watched by label."""

UNREAD = (SECRETS,)
"""Created for jobs and never read: a permission to read one Secret is one to read all."""

BY_KIND = {resource.kind: resource for resource in (TRAINJOBS, *DEPENDENTS, *UNREAD, CONFIG_MAPS, EVENTS)}


# Requests.


JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
ANY_TEXT = "text/plain, application/json, */*"

_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        verb: as RBAC writes it: `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
        resource: the kind of the objects.
        namespace: None for every namespace.
        name: of the object; empty for lists and for an object to create.
        subresource: of an object, such as `status`.
        query: of the URL; pairs without a value are left out.
        body: the content that is sent.
        content_type: of `body`.
        accept: the content type of the response.
        most_bytes: of a successful response, which is read whole; None for no limit.
    """

    verb: str
    resource: Resource
    namespace: str | None
    name: str = ""
    subresource: str = ""
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    most_bytes: int | None = None

    @property
    def method(self) -> str:
        """The method of HTTP."""
        return _METHODS.get(self.verb, "GET")

    @property
    def path(self) -> str:
        """The path and the query of the URL."""
        given = [(key, value) for key, value in self.query if value]
        path = self.resource.path(self.namespace, self.name, self.subresource)
        return f"{path}?{urlencode(given)}" if given else path

    @property
    def target(self) -> str:
        """The plural, with the subresource behind a slash."""
        plural = self.resource.plural
        return f"{plural}/{self.subresource}" if self.subresource else plural
