"""The kinds of objects that commands request; apart from the client, which is slow to import."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from trainjob.api.constants import API_VERSION, PLURAL


@dataclass(frozen=True)
class Resource:
    """One kind of objects.

    Attributes:
        root: path of its API version.
        plural: its name in addresses and messages.
    """

    root: str
    plural: str

    def path(self, namespace: str | None, name: str = "", part: str = "") -> str:
        """Return the path of an object, of its `part` (`log`, say), or of the list; None: all namespaces."""
        within = f"/namespaces/{quote(namespace, safe='')}" if namespace is not None else ""
        tail = "".join(f"/{quote(step, safe='')}" for step in (name, part) if step)
        return f"{self.root}{within}/{self.plural}{tail}"


TRAINJOBS = Resource(f"/apis/{API_VERSION}", PLURAL)
PODS = Resource("/api/v1", "pods")
