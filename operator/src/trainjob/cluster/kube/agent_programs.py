"""The ConfigMaps with the agent's program: there before pods mount them, and gone when nobody needs them.

They are found by their names and one label, so nothing has to be remembered from one start to the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.informer import PAGE, Scope, walk
from trainjob.cluster.kube.store import NamespacedName, place_of
from trainjob.cluster.kube.transport import CONFIG_MAPS
from trainjob.cluster.protocol import AlreadyExists, ClusterError, Conflict, Manifest, NotFound
from trainjob.core.agent import PROGRAM_PREFIX, build_program, programs_in_use
from trainjob.core.names import LABEL_PROGRAM
from trainjob.core.settings import Bundle

_log = logging.getLogger(__name__)

_CONTENT = ("binaryData", "data", "immutable")

Unneeded = frozenset[tuple[NamespacedName, str]]
"""Places and uids."""


class AgentPrograms:
    """See the module.

    Args:
        api: the API server.
        namespace: where jobs are looked after; None is everywhere.
        jobs: returns those that are known.
        pods: likewise.
    """

    def __init__(
        self,
        api: ApiClient,
        namespace: str | None,
        jobs: Callable[[], Iterable[Manifest]],
        pods: Callable[[], Iterable[Manifest]],
    ) -> None:
        self._api = api
        self._scope = Scope(CONFIG_MAPS, namespace, LABEL_PROGRAM)
        self._jobs = jobs
        self._pods = pods
        self._checked: dict[NamespacedName, str] = {}  # the uid of what was seen to hold what it should

    async def provide(self, manifest: Manifest) -> None:
        """Make sure that this ConfigMap is there: whatever else has its name is deleted.

        An immutable one that was looked at is known by its uid: most calls cost one small request.

        Raises:
            Conflict: somebody else keeps creating another one of the name.
        """
        place = place_of(manifest)
        may_be_there = place in self._checked
        for _ in range(3):
            if may_be_there and await self._is_there(manifest):
                return
            may_be_there = True
            with suppress(AlreadyExists):
                created = await self._api.create(CONFIG_MAPS, manifest)
                self._checked[place] = created["metadata"]["uid"]
                return
        raise Conflict(
            f"ConfigMap {manifest['metadata']['name']} is created by somebody else again and again"
        )

    async def _is_there(self, manifest: Manifest) -> bool:
        place = place_of(manifest)
        try:
            found = await self._api.get(CONFIG_MAPS, *place, metadata_only=True)
            uid = found["metadata"]["uid"]
            if self._checked.get(place) == uid:
                return True
            found = await self._api.get(CONFIG_MAPS, *place)
            uid = found["metadata"]["uid"]
            if all(found.get(key) == manifest.get(key) for key in _CONTENT):
                self._checked[place] = uid
                return True
            _log.warning("ConfigMap %s/%s isn't what its name says: replacing it", *place)
            await self._api.delete(CONFIG_MAPS, *place, uid=uid)
        except (NotFound, Conflict):
            pass  # it went just now, or is another one by now
        return False

    async def collect(self, bundle: Bundle, seconds: float) -> None:
        """Delete what nobody needs, until cancelled.

        Args:
            bundle: with the program of new pods.
            seconds: between two looks.
        """
        unneeded: Unneeded = frozenset()
        while True:
            await asyncio.sleep(seconds)
            try:
                unneeded = await self.sweep(bundle, unneeded)
            except ClusterError as error:
                _log.info("agents' programs: %s; looking again in %.0f s", error, seconds)
            except Exception:  # noqa: BLE001 - an object that can't be read must not end the controller
                _log.exception("agents' programs: the look at them failed; looking again in %.0f s", seconds)

    async def sweep(self, bundle: Bundle, before: Unneeded) -> Unneeded:
        """Delete what wasn't needed at the sweep before and isn't now; return what isn't needed now.

        A job that came while something was being deleted may count on it: its program is created again. It is
        known by then, since it is in the cache before anything is created for it.
        """
        listed: list[Manifest] = []
        await walk(self._api, self._scope, listed.append, limit=PAGE, metadata_only=True)
        used = self._used(bundle)
        unneeded = frozenset(
            (place_of(item), str(item["metadata"]["uid"]))
            for item in listed
            if item["metadata"]["name"].startswith(PROGRAM_PREFIX) and place_of(item) not in used
        )
        gone = set[NamespacedName]()
        for place, uid in unneeded & before:
            with suppress(NotFound, Conflict):
                await self._api.delete(CONFIG_MAPS, *place, uid=uid)
                _log.info("Deleted ConfigMap %s/%s: no job needs it any more", *place)
            self._checked.pop(place, None)
            gone.add(place)
        for namespace, name in gone & self._used(bundle):
            manifest = build_program(namespace, bundle)
            if manifest["metadata"]["name"] == name:
                await self.provide(manifest)
        return unneeded

    def _used(self, bundle: Bundle) -> set[NamespacedName]:
        return programs_in_use(self._jobs(), self._pods(), bundle.digest)
