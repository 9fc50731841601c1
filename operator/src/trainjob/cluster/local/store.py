"""The objects of one run, in memory, with the rules of an API server."""

import uuid
from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import datetime
from typing import Any

from trainjob.cluster.local.pod import format_time
from trainjob.cluster.protocol import AlreadyExists, Conflict, Manifest, NotFound
from trainjob.core.names import ObjectRef

_Key = tuple[str, str, str]


class ObjectStore:
    """Objects by kind, namespace and name, with uid, resourceVersion and preconditions.

    Args:
        clock: returns the time for `creationTimestamp`.
        changed: called after every change.
    """

    def __init__(self, clock: Callable[[], datetime], changed: Callable[[], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._objects: dict[_Key, Manifest] = {}
        self._version = 0

    def add(self, manifest: Manifest) -> Manifest:
        """Store a copy, and return that copy; call `touch` after each change of it.

        Fields that only a server writes (status, deletion time) are left out, as by a server: the manifest
        may come from a cluster.

        Raises:
            AlreadyExists: the name is in use.
        """
        self.check_name(manifest)
        added = deepcopy({name: value for name, value in manifest.items() if name != "status"})
        given = {name: value for name, value in added["metadata"].items() if value is not None}
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            given.pop(name, None)
        added["metadata"] = {
            "namespace": "default",
            **given,
            "uid": str(uuid.uuid4()),
            "generation": 1,
            "creationTimestamp": format_time(self._clock()),
        }
        self._objects[_key(added)] = added
        self.touch(added)
        return added

    def check_name(self, manifest: Manifest) -> None:
        """Raise AlreadyExists if the manifest's name is in use."""
        if _key(manifest) in self._objects:
            raise AlreadyExists(f"{manifest['kind']} {manifest['metadata']['name']} is there already")

    def touch(self, manifest: Manifest) -> None:
        """Give a changed object its new version, and notify watchers."""
        self._version += 1
        manifest["metadata"]["resourceVersion"] = str(self._version)
        self._changed()

    def remove(self, manifest: Manifest) -> None:
        """Remove the object; its name is free again."""
        if self._objects.get(_key(manifest)) is manifest:
            del self._objects[_key(manifest)]
            self._changed()

    def of_kind(self, kind: str) -> tuple[Manifest, ...]:
        """Return the objects themselves, in order of creation."""
        return tuple(stored for (of, _, _), stored in self._objects.items() if of == kind)

    def get(self, ref: ObjectRef) -> Manifest:
        """Return the object itself.

        Raises:
            NotFound: no object has that name.
            Conflict: the object of that name has another uid.
        """
        stored = self._objects.get((ref.kind, ref.namespace, ref.name))
        if stored is None:
            raise NotFound(f"there is no {ref.kind} {ref.namespace}/{ref.name}")
        if ref.uid and stored["metadata"]["uid"] != ref.uid:
            raise Conflict(f"{ref.kind} {ref.namespace}/{ref.name} is another one: its uid is not {ref.uid}")
        return stored


def merge_patch(target: Any, patch: Any) -> Any:
    """Return the target with a JSON merge patch applied (RFC 7386): null removes, other values replace."""
    if not isinstance(patch, Mapping):
        return deepcopy(patch)
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def _key(manifest: Manifest) -> _Key:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace") or "default", metadata["name"]
