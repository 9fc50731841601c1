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

_OF_A_DELETION = ("deletionTimestamp", "deletionGracePeriodSeconds")


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
        added = _as_created(manifest)
        metadata = added["metadata"]
        metadata.setdefault("namespace", "default")
        key = _key(added)
        if key in self._objects:
            raise AlreadyExists(f"{added['kind']} {metadata['name']} is there already")
        metadata["uid"] = str(uuid.uuid4())
        metadata["generation"] = 1
        metadata["creationTimestamp"] = format_time(self._clock())
        self._objects[key] = added
        self.touch(added)
        return added

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

    def find(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return the object itself, or None."""
        return self._objects.get((kind, namespace, name))

    def of_kind(self, kind: str) -> tuple[Manifest, ...]:
        """Return the objects themselves, in order of creation."""
        return tuple(found for (of, _, _), found in self._objects.items() if of == kind)

    def get(self, ref: ObjectRef) -> Manifest:
        """Return the object itself.

        Raises:
            NotFound: no object has that name.
            Conflict: the object of that name has another uid.
        """
        found = self.find(ref.kind, ref.namespace, ref.name)
        if found is None:
            raise NotFound(f"there is no {ref.kind} {ref.namespace}/{ref.name}")
        if ref.uid and found["metadata"]["uid"] != ref.uid:
            raise Conflict(f"{ref.kind} {ref.namespace}/{ref.name} is another one: its uid is not {ref.uid}")
        return found

    def set_labels(self, ref: ObjectRef, labels: Mapping[str, str | None]) -> None:
        """Set these labels, and remove those given as None. Raises as `get` does."""
        found = self.get(ref)
        merged = {**found["metadata"].get("labels", {}), **labels}
        found["metadata"]["labels"] = {name: value for name, value in merged.items() if value is not None}
        self.touch(found)


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


def _as_created(manifest: Manifest) -> Manifest:
    created = deepcopy({name: value for name, value in manifest.items() if name != "status"})
    created["metadata"] = {
        name: value
        for name, value in created["metadata"].items()
        if value is not None and name not in _OF_A_DELETION
    }
    return created


def _key(manifest: Manifest) -> _Key:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata["namespace"], metadata["name"]
