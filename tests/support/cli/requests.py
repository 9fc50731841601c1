"""Requests of commands as a server sees them, and what it may answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

Manifest = dict[str, Any]

KINDS = {"trainjobs": "TrainJob", "pods": "Pod", "configmaps": "ConfigMap", "events": "Event"}


@dataclass(frozen=True)
class Asked:
    method: str
    plural: str
    namespace: str | None
    name: str
    part: str
    query: dict[str, str]
    body: Manifest | None = None

    @property
    def verb(self) -> str:
        """In Kubernetes' words; `log` for a log."""
        if self.part:
            return self.part
        if self.method != "GET":
            return {"POST": "create", "PATCH": "patch", "DELETE": "delete"}[self.method]
        return "get" if self.name else "watch" if "watch" in self.query else "list"


@dataclass
class Log:
    """What one container has written, each line with its time stamp."""

    lines: list[bytes] = field(default_factory=list)
    is_whole: bool = False
    breaks: list[int] = field(default_factory=list)
    """After how many bytes the next streams break off."""


class Answer(Exception):
    """A `Status` to give."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.headers: dict[str, str] = {}
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": message,
            "details": details,
        }


class Break(Exception):
    """The connection is cut."""


def matches(asked: Asked, manifest: Manifest) -> bool:
    """Return whether a list or a watch has this object."""
    if manifest["kind"] != KINDS[asked.plural]:
        return False
    meta = manifest["metadata"]
    if asked.namespace not in (None, meta["namespace"]):
        return False
    field, _, name = asked.query.get("fieldSelector", "").rpartition("=")
    if field == "involvedObject.uid":
        return bool(manifest["involvedObject"]["uid"] == name)
    label, _, value = asked.query.get("labelSelector", "").partition("=")
    selected = manifest["involvedObject"]["name"] if field == "involvedObject.name" else meta["name"]
    return name in ("", selected) and (not label or (meta.get("labels") or {}).get(label) == value)


def read_request(method: str, target: str, body: Manifest | None) -> Asked:
    url = urlsplit(target)
    steps = [unquote(step) for step in url.path.strip("/").split("/")]
    steps = steps[{"api": 2, "apis": 3}.get(steps[0], 0) :]
    namespace = None
    if steps[0] == "namespaces":
        namespace, steps = steps[1], steps[2:]
    plural, name, part = [*steps, "", ""][:3]
    return Asked(method, plural, namespace, name, part, dict(parse_qsl(url.query)), body)
