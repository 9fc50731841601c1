"""What an API server has stored, and what has happened to it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from trainjob.cluster.protocol import DEEPEST_OBJECT

DEEP = DEEPEST_OBJECT if sys.version_info < (3, 12) else 1_200
"""Levels that the servers of tests can send: from Python 3.12 on, its encoder in C has a limit of its own."""

Manifest = dict[str, Any]
Place = tuple[str, str, str]


def copied(value: Any) -> Any:
    """A copy of JSON; `deepcopy` takes ten times as long."""
    return json.loads(json.dumps(value))


class ApiObjects:
    """Objects by kind, namespace and name, with resourceVersions that grow over all kinds."""

    def __init__(self) -> None:
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.objects: dict[Place, Manifest] = {}
        self.log: list[tuple[int, str, Manifest, Manifest | None]] = []  # version, type, object, before
        self.oldest = 0
        self.version = 100
        self._uids = 0

    def put(self, manifest: Manifest) -> Manifest:
        """Store an object, new or changed, as anybody might, and return it as stored."""
        stored = copied(manifest)
        meta = stored["metadata"]
        meta.setdefault("namespace", "default")
        place = stored["kind"], meta["namespace"], meta["name"]
        before = self.objects.get(place)
        if before is None:
            self._uids += 1
            meta.update(uid=f"uid-{self._uids}", creationTimestamp=self.now())
            meta.setdefault("managedFields", [{"manager": "test"}])
            if stored["kind"] == "TrainJob":
                meta["generation"] = 1
        else:
            meta["uid"] = before["metadata"]["uid"]
        self.store(place, stored, before)
        return copied(stored)

    def store(self, place: Place, manifest: Manifest, before: Manifest | None) -> None:
        """Store an object as it is, but for its version."""
        self.objects[place] = manifest
        self._note("ADDED" if before is None else "MODIFIED", manifest, before)

    def find(self, kind: str, name: str, namespace: str = "default") -> Manifest | None:
        """Return an object as stored, or None."""
        return copied(self.objects.get((kind, namespace, name)))

    def all(self, kind: str) -> list[Manifest]:
        """Return every object of a kind, by place."""
        return [copied(o) for (k, _, _), o in sorted(self.objects.items()) if k == kind]

    def uncopied(self, kind: str) -> list[Manifest]:
        """Return what `all` does, to be read only: nothing is copied, and agents are asked often."""
        return [stored for (k, _, _), stored in self.objects.items() if k == kind]

    def remove(self, kind: str, name: str, namespace: str = "default") -> None:
        """Delete an object, and what it owns, at once; what has a finalizer waits for it."""
        place = kind, namespace, name
        stored = self.objects[place]
        if stored["metadata"].get("finalizers"):
            meta = {**stored["metadata"], "deletionTimestamp": self.now()}
            self.store(place, {**stored, "metadata": meta}, stored)
            return
        del self.objects[place]
        self._note("DELETED", stored, stored)
        uid = stored["metadata"]["uid"]
        for place, other in list(self.objects.items()):
            owners = other["metadata"].get("ownerReferences") or ()
            if place in self.objects and any(owner["uid"] == uid for owner in owners):
                self.remove(place[0], place[2], place[1])

    def collect_garbage(self) -> None:
        """Remove what has no owner left."""
        uids = {stored["metadata"]["uid"] for stored in self.objects.values()}
        for place, stored in list(self.objects.items()):
            owners = {owner["uid"] for owner in stored["metadata"].get("ownerReferences") or ()}
            if owners and not owners & uids and place in self.objects:
                self.remove(place[0], place[2], place[1])

    def compact(self) -> None:
        """Forget all that has happened: watches from before, and open pages, are answered with 410."""
        self.log.clear()
        self.oldest = self.version

    def now(self) -> str:
        return self.clock().strftime("%Y-%m-%dT%H:%M:%SZ")

    def happened(self, type_: str, manifest: Manifest, before: Manifest | None) -> None:
        """Notify the watches."""

    def _note(self, type_: str, manifest: Manifest, before: Manifest | None) -> None:
        self.version += 1
        manifest["metadata"]["resourceVersion"] = str(self.version)
        copy = copied(manifest)
        self.log.append((self.version, type_, copy, before))
        self.happened(type_, copy, before)
