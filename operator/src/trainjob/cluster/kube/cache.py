"""A cache of the objects of one kind: the newest state of each, reduced to the fields that are read."""

from __future__ import annotations

import pickle
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from time import monotonic
from typing import Any, NamedTuple

from trainjob.api import BUNDLE_VOLUME, TRAINER_CONTAINER
from trainjob.api.constants import RESERVED_LABEL_PREFIX
from trainjob.api.errors import mapping_at, objects_at, trainer_of
from trainjob.api.rules.size import without_too_large
from trainjob.cluster.protocol import Manifest
from trainjob.core.integrations import INTEGRATIONS
from trainjob.core.names import JobKey, shorten_tf_config

# Comparison of resourceVersions.
#
# They are decimal numbers that grow with every write to a resource (KEP-5504 guarantees it since Kubernetes
# 1.35; with etcd it has always been so).


def version_of(manifest: Mapping[str, Any]) -> str:
    """Return an object's, or a list's, resourceVersion; empty when it has none."""
    return str((manifest.get("metadata") or {}).get("resourceVersion") or "")


def is_newer(version: str, other: str) -> bool:
    """Return whether `version` is newer than `other`; of two that differ but have no order, each is."""
    if version.isdecimal() and other.isdecimal():
        return int(version) > int(other)
    return version != other


# The fields that the caches keep: what the rules, the agent poller and the metrics read.
#
# A pod of a job with a thousand workers has 45 kB of TF_CONFIG beside its template. If the caches of the
# controller and of its standby kept whole pods, one such job would take more memory than either has.


_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "finalizers",
)
_OURS = (RESERVED_LABEL_PREFIX, *(name for each in INTEGRATIONS for name in each.KEPT_METADATA))
_CONDITION = ("type", "status", "reason", "message")
_CONDITIONS = {
    "PodScheduled": (*_CONDITION, "lastTransitionTime"),
    "Ready": _CONDITION,
    "DisruptionTarget": _CONDITION,
    "TerminatedByKueue": _CONDITION,
    "PodResizePending": _CONDITION,
}


def project(manifest: Manifest) -> Manifest:
    """Return what is kept of an object; the object itself is not changed."""
    parts = _PARTS.get(manifest.get("kind", ""), _no_parts)(manifest)
    return {**_picked(manifest, ("apiVersion", "kind")), "metadata": _project_metadata(manifest), **parts}


def _no_parts(_manifest: Manifest) -> Manifest:
    return {}


def _project_metadata(manifest: Manifest) -> Manifest:
    meta = manifest["metadata"]
    kept = _picked(meta, _METADATA)
    owners = [owner for owner in meta.get("ownerReferences") or () if owner.get("controller")]
    if owners:
        kept["ownerReferences"] = owners
    labels = meta.get("labels") or {}
    if manifest.get("kind") != "TrainJob":  # the queue label of a job has another prefix
        labels = _ours(labels)
    texts = {"labels": labels, "annotations": _ours(meta.get("annotations") or {})}
    return {**kept, **{kind: text for kind, text in texts.items() if text}}


def _ours(texts: Mapping[str, str]) -> Manifest:
    return {name: value for name, value in texts.items() if name.startswith(_OURS)}


def _project_job(job: Manifest) -> Manifest:
    has_begun = bool(mapping_at(job, "status").get("startTime"))
    kept = job if has_begun else without_too_large(job)
    return _picked(kept, ("spec", "status"))


def _project_pod(pod: Manifest) -> Manifest:
    spec, status = mapping_at(pod, "spec"), mapping_at(pod, "status")
    variables = ({"name": "TF_CONFIG", "value": shorten_tf_config(text)} for text in _tf_configs(spec))
    trainer = _memory(trainer_of(spec)) | _lists(env=variables)
    kept_spec = _picked(spec, ("nodeName", "activeDeadlineSeconds", "schedulingGroup")) | _lists(
        volumes=(volume for _, volume in objects_at(spec, "volumes") if volume.get("name") == BUNDLE_VOLUME),
        containers=[{"name": TRAINER_CONTAINER, **trainer}] if trainer else (),
        initContainers=(
            _picked(container, ("name", "restartPolicy"))
            for _, container in objects_at(spec, "initContainers")
            if "restartPolicy" in container
        ),
    )
    kept_status = _picked(status, ("phase", "reason", "message", "podIP", "startTime")) | _lists(
        conditions=(
            _picked(condition, _CONDITIONS[condition["type"]])
            for _, condition in objects_at(status, "conditions")
            if condition.get("type") in _CONDITIONS
        ),
        containerStatuses=(
            {**_picked(container, ("name", "state")), **_memory(container)}
            for _, container in objects_at(status, "containerStatuses")
        ),
        initContainerStatuses=(
            _picked(container, ("name", "state", "lastState", "started"))
            for _, container in objects_at(status, "initContainerStatuses")
            if mapping_at(container, "state", "terminated").get("exitCode") != 0 or container.get("lastState")
        ),
    )
    return {"spec": kept_spec, "status": kept_status}


def _tf_configs(spec: Mapping[str, Any]) -> Iterable[str]:
    for _, variable in objects_at(trainer_of(spec), "env"):
        if variable.get("name") == "TF_CONFIG" and isinstance(variable.get("value"), str):
            yield variable["value"]


def _memory(container: Mapping[str, Any]) -> Manifest:
    limit = mapping_at(container, "resources", "limits").get("memory")
    return {"resources": {"limits": {"memory": limit}}} if limit is not None else {}


def _picked(source: Mapping[str, Any], names: Iterable[str]) -> Manifest:
    return {name: source[name] for name in names if name in source}


def _lists(**parts: Iterable[Mapping[str, Any]]) -> Manifest:
    """Return the lists that aren't empty."""
    return {name: items for name, part in parts.items() if (items := list(part))}


_PARTS: Mapping[str, Callable[[Manifest], Manifest]] = {
    "TrainJob": _project_job,
    "Pod": _project_pod,
    "NetworkPolicy": lambda policy: _picked(policy, ("spec",)),
    **{kind.kind: kind.keep for integration in INTEGRATIONS for kind in integration.KINDS},
}


# The store.


NamespacedName = tuple[str, str]
"""Namespace and name."""

Changed = Callable[[JobKey], None]

MOST_TOMBSTONES = 10_000
TOMBSTONE_SECONDS = 300.0
"""For at least so long a deletion is remembered: longer than a request, or a list of many pages, may take."""


def namespaced_name(manifest: Manifest) -> NamespacedName:
    """Return an object's namespace and name."""
    meta = manifest["metadata"]
    return sys.intern(meta.get("namespace", "")), meta["name"]


class _Entry(NamedTuple):
    """One object; its fields are kept pickled, which takes a fraction of the memory of dictionaries."""

    uid: str
    version: str
    job: JobKey | None
    fields: bytes

    def read(self) -> Manifest:
        return _unpickle_again(self.fields) if len(self.fields) <= SMALL else _unpickle(self.fields)


SMALL = 8 * 1024
"""Bytes of objects that may be kept unpickled, which takes eight times as much."""


def _unpickle(fields: bytes) -> Manifest:
    manifest: Manifest = pickle.loads(fields)  # noqa: S301 - pickled below, in this process
    return manifest


_unpickle_again = lru_cache(maxsize=256)(_unpickle)  # a job that starts is read many times in a row


def forget_unpickled() -> None:
    """Drop what is kept unpickled: the latest objects that were read, though they may be gone for long."""
    _unpickle_again.cache_clear()


class _Tombstones:
    """The deletions of the last minutes, at most `MOST_TOMBSTONES` of them.

    They are forgotten by halves, so that none needs a time of its own.

    Args:
        time: returns the seconds of a monotonic clock.
    """

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._since = time()
        self._recent: dict[str, str] = {}  # uid: the resourceVersion of its deletion
        self._older: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def get(self, uid: str) -> str | None:
        """Return the resourceVersion at which an object was deleted, or None if that isn't known."""
        self._forget()
        return self._recent.get(uid) or self._older.get(uid)

    def add(self, uid: str, version: str) -> None:
        """Remember a deletion; of two of one object, the later one."""
        before = self.get(uid)
        self._recent[uid] = version if before is None or is_newer(version, before) else before

    def _forget(self) -> None:
        now = self._time()
        if len(self._recent) >= MOST_TOMBSTONES // 2 or now - self._since > TOMBSTONE_SECONDS:
            self._recent, self._older, self._since = {}, self._recent, now


class Store:
    """Objects of one kind by namespace and name, and by the job that they belong to.

    What it returns may be returned again: callers read it and never change it.

    Watch events, lists and responses to writes come in any order. The newest resourceVersion wins, and a
    state that is older than an object's known deletion is ignored.

    Args:
        job_of: returns the job that an object belongs to, or None.
        changed: called with the job of every object that is added, changed or deleted.
        time: returns the seconds of a monotonic clock.
    """

    def __init__(
        self,
        job_of: Callable[[Manifest], JobKey | None],
        changed: Changed,
        time: Callable[[], float] = monotonic,
    ) -> None:
        self._job_of = job_of
        self._changed = changed
        self._objects: dict[NamespacedName, _Entry] = {}
        self._by_job: defaultdict[JobKey, dict[NamespacedName, None]] = defaultdict(dict)
        self._ends = _Tombstones(time)

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, full_name: NamespacedName) -> Manifest | None:
        """Return the object of that name, or None."""
        entry = self._objects.get(full_name)
        return entry.read() if entry is not None else None

    def uid_of(self, full_name: NamespacedName) -> str | None:
        """Return the uid of the object of that name, or None."""
        entry = self._objects.get(full_name)
        return entry.uid if entry is not None else None

    def version_of(self, full_name: NamespacedName) -> str | None:
        """Return the resourceVersion of the object of that name, or None."""
        entry = self._objects.get(full_name)
        return entry.version if entry is not None else None

    def names(self) -> tuple[NamespacedName, ...]:
        """Return the name of every object."""
        return tuple(self._objects)

    def of_job(self, key: JobKey) -> tuple[Manifest, ...]:
        """Return the job's objects."""
        return tuple(self._objects[full_name].read() for full_name in self._by_job.get(key, ()))

    def items(self) -> Iterator[Manifest]:
        """Yield every object; one at a time is in memory."""
        for entry in tuple(self._objects.values()):
            yield _unpickle(entry.fields)

    def put(self, manifest: Manifest) -> bool:
        """Store the fields of an object that are read, and return whether the object was new or newer."""
        uid, version, full_name = manifest["metadata"]["uid"], version_of(manifest), namespaced_name(manifest)
        ended_at, known = self._ends.get(uid), self._objects.get(full_name)
        if ended_at is not None and not is_newer(version, ended_at):
            return False
        if known is not None and not is_newer(version, known.version):
            return False
        if known is not None and known.uid != uid:
            self._ends.add(known.uid, version)
        before, key = known.job if known is not None else None, self._job_of(manifest)
        fields = pickle.dumps(project(manifest), pickle.HIGHEST_PROTOCOL)
        self._objects[full_name] = _Entry(uid, version, key, fields)
        if before is not None and before != key:
            self._unindex(full_name, before)
        if key is not None:
            self._by_job[key][full_name] = None
        self._notify(before, key)
        return True

    def remove(self, manifest: Manifest) -> None:
        """Record a deletion that a watch reported; the manifest is the object's last state."""
        self._end(namespaced_name(manifest), manifest["metadata"]["uid"], version_of(manifest))

    def discard(self, full_name: NamespacedName, uid: str) -> None:
        """Record that an object is gone: a write didn't find it."""
        known = self._objects.get(full_name)
        if known is not None and known.uid == uid:
            self._end(full_name, uid, known.version)

    def retain(self, listed: Iterable[tuple[NamespacedName, str]], version: str) -> int:
        """Drop every object that is missing in a complete list of namespaced names and uids at `version`.

        Objects that are newer than the list stay. Returns the number of dropped objects.
        """
        there = set(listed)
        lost = [
            (full_name, known.uid)
            for full_name, known in self._objects.items()
            if (full_name, known.uid) not in there and not is_newer(known.version, version)
        ]
        for full_name, uid in lost:
            self._end(full_name, uid, version)
        return len(lost)

    def _end(self, full_name: NamespacedName, uid: str, version: str) -> None:
        self._ends.add(uid, version)
        known = self._objects.get(full_name)
        if known is None or known.uid != uid or is_newer(known.version, version):
            return
        del self._objects[full_name]
        if known.job is not None:
            self._unindex(full_name, known.job)
        self._notify(known.job)

    def _unindex(self, full_name: NamespacedName, key: JobKey) -> None:
        objects = self._by_job[key]
        del objects[full_name]
        if not objects:
            del self._by_job[key]

    def _notify(self, *keys: JobKey | None) -> None:
        for key in dict.fromkeys(keys):
            if key is not None:
                self._changed(key)
