"""Objects that hold a name which a job needs, though they are no job's: no watch by label shows them."""

from __future__ import annotations

from collections.abc import Callable

from trainjob.cluster.kube.projection import project
from trainjob.cluster.kube.store import Place, place_of
from trainjob.cluster.protocol import Manifest

REMEMBERED_SECONDS = 30.0


class ForeignObjects:
    """What was found in the way lately. It is forgotten soon: nobody tells when such an object goes.

    Args:
        time: seconds on a clock that only goes forward.
    """

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._found: dict[tuple[str, Place], tuple[float, Manifest]] = {}

    def remember(self, kind: str, manifest: Manifest) -> None:
        """Keep an object for a while."""
        now = self._time()
        self._found = {key: entry for key, entry in self._found.items() if entry[0] > now}
        self._found[kind, place_of(manifest)] = now + REMEMBERED_SECONDS, project(manifest)

    def get(self, kind: str, place: Place) -> Manifest | None:
        """Return the object of that name if it was found lately."""
        until, manifest = self._found.get((kind, place), (float("-inf"), None))
        return manifest if until > self._time() else None

    def forget(self, kind: str, place: Place) -> None:
        """The name is ours, or free."""
        self._found.pop((kind, place), None)
