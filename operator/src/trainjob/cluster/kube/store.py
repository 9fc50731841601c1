"""What is known of one kind of objects: the newest state of each, from whichever source told of it first."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable

from trainjob.cluster.kube.projection import project
from trainjob.cluster.kube.versions import is_newer, version_of
from trainjob.cluster.protocol import JobKey, Manifest

Place = tuple[str, str]
"""Namespace and name."""

Changed = Callable[[JobKey], None]

MOST_TOMBSTONES = 10_000


def place_of(manifest: Manifest) -> Place:
    """Return an object's namespace and name."""
    meta = manifest["metadata"]
    return meta.get("namespace", ""), meta["name"]


class Store:
    """Objects of one kind by namespace and name, and by the job that they belong to.

    Watches, lists and answers to writes come in any order. The newest resourceVersion wins, and one that is
    older than an object's known end brings nothing back.

    Args:
        job_of: the job that an object belongs to, or None.
        changed: called with the job of every object that became another one, appeared or went.
    """

    def __init__(self, job_of: Callable[[Manifest], JobKey | None], changed: Changed) -> None:
        self._job_of = job_of
        self._changed = changed
        self._objects: dict[Place, Manifest] = {}
        self._by_job: defaultdict[JobKey, dict[Place, Manifest]] = defaultdict(dict)
        self._ends: OrderedDict[str, str] = OrderedDict()  # uid: the resourceVersion it ended at

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, place: Place) -> Manifest | None:
        """Return the object of that name, or None."""
        return self._objects.get(place)

    def of_job(self, key: JobKey) -> tuple[Manifest, ...]:
        """Return the job's objects."""
        found = self._by_job.get(key)
        return tuple(found.values()) if found else ()

    def items(self) -> tuple[Manifest, ...]:
        """Return every object."""
        return tuple(self._objects.values())

    def put(self, manifest: Manifest) -> bool:
        """Take an object in, as far as anybody reads it, and tell whether it was news."""
        meta = manifest["metadata"]
        version, ended_at = version_of(manifest), self._ends.get(meta["uid"])
        if ended_at is not None and not is_newer(version, ended_at):
            return False
        place = place_of(manifest)
        known = self._objects.get(place)
        if known is not None and not is_newer(version, version_of(known)):
            return False
        if known is not None and known["metadata"]["uid"] != meta["uid"]:
            self._bury(known["metadata"]["uid"], version)
        self._objects[place] = manifest = project(manifest)
        before, key = self._job_of(known) if known is not None else None, self._job_of(manifest)
        if before is not None and before != key:
            self._unindex(place, before)
        if key is not None:
            self._by_job[key][place] = manifest
        self._tell(before, key)
        return True

    def remove(self, manifest: Manifest) -> None:
        """Take note of an object's end, as told by a watch: the manifest is its last state."""
        self._end(place_of(manifest), manifest["metadata"]["uid"], version_of(manifest))

    def discard(self, place: Place, uid: str) -> None:
        """Take note that the object is gone, as learned from a write that didn't find it."""
        known = self._objects.get(place)
        if known is not None and known["metadata"]["uid"] == uid:
            self._end(place, uid, version_of(known))

    def retain(self, listed: Iterable[tuple[Place, str]], version: str) -> int:
        """Drop every object that a whole list of places and uids, taken at `version`, no longer has.

        Objects that are newer than the list stay. Returns the number of those dropped.
        """
        there = set(listed)
        lost = [
            (place, known["metadata"]["uid"])
            for place, known in self._objects.items()
            if (place, known["metadata"]["uid"]) not in there and not is_newer(version_of(known), version)
        ]
        for place, uid in lost:
            self._end(place, uid, version)
        return len(lost)

    def _end(self, place: Place, uid: str, version: str) -> None:
        self._bury(uid, version)
        known = self._objects.get(place)
        if known is None or known["metadata"]["uid"] != uid or is_newer(version_of(known), version):
            return
        del self._objects[place]
        key = self._job_of(known)
        if key is not None:
            self._unindex(place, key)
        self._tell(key)

    def _bury(self, uid: str, version: str) -> None:
        before = self._ends.pop(uid, None)
        self._ends[uid] = version if before is None or is_newer(version, before) else before
        if len(self._ends) > MOST_TOMBSTONES:
            self._ends.popitem(last=False)

    def _unindex(self, place: Place, key: JobKey) -> None:
        objects = self._by_job[key]
        del objects[place]
        if not objects:
            del self._by_job[key]

    def _tell(self, *keys: JobKey | None) -> None:
        for key in dict.fromkeys(keys):
            if key is not None:
                self._changed(key)
