"""The ConfigMaps with the agent's program: created before pods mount them, deleted when no job needs them.

They are found by their names and one label, so no state has to survive a restart of the controller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from trainjob.cluster.kube.cache import NamespacedName, namespaced_name
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.informer import Scope, Seen, list_all
from trainjob.cluster.kube.resources import CONFIG_MAPS
from trainjob.cluster.protocol import AlreadyExists, ClusterError, Conflict, Manifest, NotFound
from trainjob.core.agent import PROGRAM_PREFIX, programs_in_use
from trainjob.core.manifests import build_program
from trainjob.core.names import LABEL_PROGRAM
from trainjob.core.settings import Bundle

_log = logging.getLogger(__name__)

_CONTENT = ("binaryData", "data", "immutable")

CHECKED_SECONDS = 1.0
"""For how long a check counts: in a burst of jobs, one for each would be an eighth of what the pods wait for.

A pod checks the program that it is given by itself, and would fail with one that was replaced meanwhile.
"""

Unneeded = frozenset[tuple[NamespacedName, str]]
"""Namespaced names and uids."""


class _Check(NamedTuple):
    """A ConfigMap that has the expected content, and until when this counts without another look."""

    uid: str
    until: float


class AgentPrograms:
    """Creates and deletes the ConfigMaps with the agent's program.

    Args:
        api: the API server.
        namespace: of the jobs; None for every namespace.
        jobs: returns the known jobs.
        pods: returns the known pods.
        time: returns the seconds of a monotonic clock.
    """

    def __init__(
        self,
        api: ApiClient,
        namespace: str | None,
        jobs: Callable[[], Iterable[Manifest]],
        pods: Callable[[], Iterable[Manifest]],
        time: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
    ) -> None:
        self._api = api
        self._scope = Scope(CONFIG_MAPS, namespace, LABEL_PROGRAM)
        self._jobs = jobs
        self._pods = pods
        self._time = time
        self._checked: dict[NamespacedName, _Check] = {}  # those with the expected content

    async def provide(self, manifest: Manifest) -> None:
        """Ensure that this ConfigMap exists; one of its name with other content is deleted.

        A checked ConfigMap is immutable and known by its uid, so a call costs one small request at most.

        Raises:
            Conflict: another client keeps creating another one of that name.
        """
        full_name = namespaced_name(manifest)
        known = self._checked.get(full_name)
        if known is not None and self._time() < known.until:
            return
        may_be_there = known is not None
        for _ in range(3):
            if may_be_there and await self._is_there(manifest):
                return
            may_be_there = True
            with suppress(AlreadyExists):
                self._note(full_name, await self._api.create(CONFIG_MAPS, manifest))
                return
        raise Conflict(
            f"ConfigMap {manifest['metadata']['name']} is created by another program again and again"
        )

    async def _is_there(self, manifest: Manifest) -> bool:
        full_name = namespaced_name(manifest)
        try:
            found = await self._api.get(CONFIG_MAPS, *full_name, metadata_only=True)
            uid, known = found["metadata"]["uid"], self._checked.get(full_name)
            if known is not None and known.uid == uid:
                self._note(full_name, found)
                return True
            found = await self._api.get(CONFIG_MAPS, *full_name)
            uid = found["metadata"]["uid"]
            if all(found.get(key) == manifest.get(key) for key in _CONTENT):
                self._note(full_name, found)
                return True
            _log.warning(
                "ConfigMap %s/%s doesn't have the content that its name stands for: replacing it", *full_name
            )
            await self._api.delete(CONFIG_MAPS, *full_name, uid=uid)
        except (NotFound, Conflict):
            pass  # it was just deleted or replaced
        return False

    def _note(self, full_name: NamespacedName, checked: Manifest) -> None:
        self._checked[full_name] = _Check(checked["metadata"]["uid"], self._time() + CHECKED_SECONDS)

    async def collect(self, bundle: Bundle, seconds: float) -> None:
        """Delete the programs that no job needs, until cancelled.

        Args:
            bundle: contains the program of new pods.
            seconds: between two sweeps.
        """
        unneeded: Unneeded = frozenset()
        while True:
            await asyncio.sleep(seconds)
            try:
                unneeded = await self.sweep(bundle, unneeded)
            except ClusterError as error:
                _log.info("agents' programs: %s; trying again in %.0f s", error, seconds)
            except Exception:  # noqa: BLE001 - an object that can't be read must not end the controller
                _log.exception("agents' programs: the check failed; trying again in %.0f s", seconds)

    async def sweep(self, bundle: Bundle, before: Unneeded) -> Unneeded:
        """Delete what the previous sweep found unneeded and still is; return what is unneeded now.

        A job that arrives during a deletion may need the program, which is then created again. The job is
        known by then: it is in the cache before any object is created for it.
        """
        changes = list_all(self._api, self._scope, metadata_only=True)
        listed = [change.manifest async for change in changes if isinstance(change, Seen)]
        used = self._used(bundle)
        unneeded = frozenset(
            (namespaced_name(item), str(item["metadata"]["uid"]))
            for item in listed
            if item["metadata"]["name"].startswith(PROGRAM_PREFIX) and namespaced_name(item) not in used
        )
        gone = set[NamespacedName]()
        for full_name, uid in unneeded & before:
            with suppress(NotFound, Conflict):
                await self._api.delete(CONFIG_MAPS, *full_name, uid=uid)
                _log.info("Deleted ConfigMap %s/%s: no job needs it any more", *full_name)
            self._checked.pop(full_name, None)
            gone.add(full_name)
        for namespace, name in gone & self._used(bundle):
            manifest = build_program(namespace, bundle)
            if manifest["metadata"]["name"] == name:
                await self.provide(manifest)
        return unneeded

    def _used(self, bundle: Bundle) -> set[NamespacedName]:
        return programs_in_use(self._jobs(), self._pods(), bundle.digest)
