"""The `Cluster` protocol on a Kubernetes API server: reads from caches, writes with preconditions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from trainjob.cluster.agents.poller import AgentPoller, AgentPolling
from trainjob.cluster.fair_slots import FairSlots
from trainjob.cluster.kube.agent_programs import AgentPrograms
from trainjob.cluster.kube.cache import NamespacedName, Store, namespaced_name, project
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.events import EventSender, PodEvents
from trainjob.cluster.kube.informer import Backoff, Informer, JobCache, Scope, Timeouts
from trainjob.cluster.kube.queue_positions import QueuePositions
from trainjob.cluster.kube.resources import (
    BY_KIND,
    CLAIMS,
    CONFIG_MAPS,
    DEPENDENTS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    TRAINJOBS,
    UNREAD,
    Document,
    Resource,
)
from trainjob.cluster.protocol import AlreadyExists, ClusterError, Conflict, Manifest, NotFound
from trainjob.core.integration import Integration, Kind
from trainjob.core.integrations import INTEGRATIONS
from trainjob.core.manifests import share_claims
from trainjob.core.names import LABEL_JOB, JobKey, ObjectRef, controller_uid
from trainjob.core.observed import Snapshot
from trainjob.core.settings import Bundle

_log = logging.getLogger(__name__)

API_GROUPS = Document("", "", "apis", "")
"""All groups: the response for one that isn't served is no `Status`, and might be a proxy's."""

# Objects of another owner.


REMEMBERED_SECONDS = 30.0


class UnlabeledObjects:
    """Objects that hold a name which a job needs, but have no job's label.

    Watches by label don't show them or their deletion, so they are remembered for a short time only.

    Args:
        time: returns the seconds of a monotonic clock.
    """

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._found: dict[tuple[str, NamespacedName], tuple[float, Manifest]] = {}

    def remember(self, kind: str, manifest: Manifest) -> None:
        """Keep an object for a while."""
        now = self._time()
        self._found = {key: entry for key, entry in self._found.items() if entry[0] > now}
        self._found[kind, namespaced_name(manifest)] = now + REMEMBERED_SECONDS, project(manifest)

    def get(self, kind: str, full_name: NamespacedName) -> Manifest | None:
        """Return the object of that name if it was found recently."""
        until, manifest = self._found.get((kind, full_name), (float("-inf"), None))
        return manifest if until > self._time() else None

    def forget(self, kind: str, full_name: NamespacedName) -> None:
        """Forget an object: a job has its name, or the name is free."""
        self._found.pop((kind, full_name), None)


# The cluster.


WRITES = 40
"""Concurrent writes over all jobs; the other connections are for watches, events and single objects."""

NAMESPACE_WRITES = 8
"""Concurrent writes for one namespace: an API server whose CPUs are busy with one namespace's pods delays
all other namespaces, however many connections are left for them.
"""


@dataclass(frozen=True)
class CacheHealth:
    """Whether the caches are alive.

    Attributes:
        synced: whether each cache has been filled.
        silent: by resource, the seconds since its watch last received or tried something. They grow while
            a watch hangs, not while the API server can't be reached.
    """

    synced: bool
    silent: Mapping[str, float]


class KubeCluster:
    """Jobs on a Kubernetes cluster; see `Cluster` for the methods that aren't documented here.

    Args:
        api: the API server, opened by the caller.
        namespace: of the jobs; None for every namespace.
        on_restart: called with a resource's plural whenever its list or watch failed.
        clock: returns the time, with time zone.
        timeouts: intervals and timeouts.
        polling: how the jobs' agents are polled.
        use: the names of the integrations to look for.

    Attributes:
        integrations: all of them, with what the cluster serves of each in `use` once the caches are filled.
    """

    pods_wait_for_secrets = True  # the kubelet starts no container before its volumes are there

    def __init__(
        self,
        api: ApiClient,
        *,
        namespace: str | None = None,
        on_restart: Callable[[str], None] = lambda _resource: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        timeouts: Timeouts | None = None,
        polling: AgentPolling | None = None,
        use: Collection[str] = (),
    ) -> None:
        self._timeouts = timeouts = timeouts or Timeouts()
        self._api = api
        self._namespace = namespace
        self._on_restart = on_restart
        self._use = use
        self._has_looked = asyncio.Event()
        self.integrations: tuple[Integration, ...] = tuple(each() for each in INTEGRATIONS)
        self._kinds: list[tuple[Integration, Kind, Resource]] = []
        self._watchers: list[Callable[[JobKey], None]] = []
        self._jobs = JobCache(api, namespace, self._notify, sweep_seconds=timeouts.sweep)
        self._agents = AgentPoller(self._uid_of, self._pods_of, self._notify, polling or AgentPolling())
        self._stores = {r: Store(_job_of_label, self._notify) for r in DEPENDENTS if r != PODS}
        self._stores[PODS] = Store(_job_of_label, self._take_pod_change)
        self._programs = AgentPrograms(api, namespace, self.jobs, self._stores[PODS].items)
        self._unlabeled = UnlabeledObjects(_time)
        self._writes = FairSlots(WRITES, NAMESPACE_WRITES)
        self._events = EventSender(api, clock)
        self._pod_events = PodEvents(api, clock)
        self._positions = QueuePositions(api, self._notify, timeouts.positions)
        self._informers = {
            resource: self._informer(Scope(resource, namespace, LABEL_JOB), store)
            for resource, store in self._stores.items()
        }

    # -- the caches -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the caches and send events, until cancelled."""
        served = await self._served() if self._use else {}
        self.integrations = tuple(self._find_integration(each, served) for each in INTEGRATIONS)
        self._has_looked.set()
        async with asyncio.TaskGroup() as group:
            for informer in self._informers.values():
                group.create_task(informer.run())
            group.create_task(self._jobs.run())
            group.create_task(self._events.run())
            for integration in self.integrations:
                if (queues := integration.positions(served)) is not None:
                    group.create_task(self._positions.run(_resource_of(queues), integration))

    async def ask_agents(self) -> None:
        """Poll the jobs' agents until cancelled; for the leading controller only."""
        await self._agents.run()

    async def collect_programs(self, bundle: Bundle) -> None:
        """Delete agent programs that no job needs, until cancelled; for the leading controller only.

        Args:
            bundle: contains the program of new pods.
        """
        await self.synced()
        await self._programs.collect(bundle, self._timeouts.collect)

    async def synced(self) -> None:
        """Return once every cache has been filled; until then no job can be observed."""
        await self._has_looked.wait()
        await self._jobs.synced.wait()
        for informer in self._informers.values():
            await informer.synced.wait()

    def take_job_event(self, kind: str, manifest: Manifest) -> None:
        """Apply an event of a watch of TrainJobs: `ADDED`, `MODIFIED` or `DELETED`."""
        self._jobs.take(kind, manifest)

    def compare_jobs(self) -> None:
        """Compare the cached jobs with a list soon: their watch has begun again, and shows nothing older."""
        self._jobs.ask_for_sweep()

    def jobs(self) -> Iterator[Manifest]:
        """Yield every known job."""
        return self._jobs.store.items()

    def job_keys(self) -> tuple[JobKey, ...]:
        """Return the keys of all known jobs, and of those that are gone and have left an object behind."""
        known = (JobKey(*full_name) for full_name in self._jobs.store.names())
        stores = (self._stores[resource] for _, kind, resource in self._kinds if kind.finalizer)
        left = (_job_of_label(manifest) for store in stores for manifest in store.items())
        return tuple(dict.fromkeys([*known, *(key for key in left if key is not None)]))

    def health(self) -> CacheHealth:
        """Return the state of the caches."""
        now = _time()
        return CacheHealth(
            self._has_looked.is_set()
            and self._jobs.synced.is_set()
            and all(i.synced.is_set() for i in self._informers.values()),
            {
                resource.plural: now - informer.active_at if informer.active_at is not None else 0.0
                for resource, informer in self._informers.items()
            },
        )

    # -- the protocol -----------------------------------------------------------------------------------

    def watch(self, notify: Callable[[JobKey], None]) -> None:
        """See `Cluster.watch`."""
        self._watchers.append(notify)

    async def observe(self, key: JobKey) -> Snapshot | None:
        """See `Cluster.observe`. Waits for the caches: a plan from a part of them would create twice."""
        await self.synced()
        job = self._jobs.store.get((key.namespace, key.name))
        if job is None:
            self._positions.of(key, None)
            await self._pod_events.of(key, ())
            return None
        pods, uid = self._stores[PODS].of_job(key), self._uid_of(key)
        related = {
            "Service": self._find(SERVICES, (key.namespace, key.name)),
            "PersistentVolumeClaim": self._find(CLAIMS, (key.namespace, f"{key.name}-output")),
            "NetworkPolicy": self._find(NETWORK_POLICIES, (key.namespace, key.name)),
        }
        shared: list[Manifest] = []
        waiting: tuple[str, str] | None = None
        for integration, kind, resource in self._kinds:
            if not kind.of_jobs:
                shared += self._stores[resource].items() if integration.shares(job["metadata"]) else ()
            elif related.get(kind.kind) is None:
                name = integration.names(job["metadata"]).get(kind.kind)
                found = related[kind.kind] = await self._of_job(key, uid, kind, resource, name)
                queue = integration.queue_of(found) if found is not None else None
                waiting = (queue, found["metadata"]["name"]) if found and queue is not None else waiting
        return Snapshot(
            job=job,
            pods=pods,
            related={kind: one for kind, one in related.items() if one is not None},
            agent_report=self._agents.agent_report(key),
            queue_position=self._positions.of(key, waiting),
            shared=shared,
            pod_events=await self._pod_events.of(key, (p for p in pods if controller_uid(p) == uid)),
        )

    async def create(self, manifest: Manifest) -> None:
        """See `Cluster.create`."""
        resource = self._resource(manifest["kind"], manifest["apiVersion"])
        full_name = namespaced_name(manifest)
        if resource == PODS:
            manifest = share_claims(manifest)
        is_read = resource not in (*UNREAD, CONFIG_MAPS)
        try:
            async with self._turn(manifest):
                if resource == CONFIG_MAPS:
                    await self._programs.provide(manifest)
                    return
                strict = all(kind.strict for _, kind, known in self._kinds if known == resource)
                created = await self._api.create(resource, manifest, strict=strict)
        except AlreadyExists:
            if is_read:
                await self._look(resource, full_name)
            raise
        except NotFound:
            self._jobs.ask_for_sweep()  # its namespace is gone, and so is the job
            raise
        if is_read:
            self._take(resource, created)

    async def replace(self, manifest: Manifest) -> None:
        """See `Cluster.replace`."""
        resource, meta = self._resource(manifest["kind"]), manifest["metadata"]
        try:
            self._take(resource, await self._api.replace(resource, manifest))
        except (NotFound, Conflict) as error:
            await self._put_right(resource, namespaced_name(manifest), meta["uid"], error)
            raise

    async def delete(self, ref: ObjectRef, grace_seconds: int | None = None) -> None:
        """See `Cluster.delete`."""
        resource = self._resource(ref.kind, ref.api_version)
        try:
            async with self._turn_for(resource, ref):
                answer = await self._api.delete(
                    resource, ref.namespace, ref.name, uid=ref.uid, grace_seconds=grace_seconds
                )
        except (NotFound, Conflict) as error:
            if resource not in UNREAD:
                await self._put_right(resource, (ref.namespace, ref.name), ref.uid, error)
            raise
        if resource in UNREAD:
            return
        if answer.get("kind") == ref.kind and "deletionTimestamp" in answer["metadata"]:
            self._take(resource, answer)  # it is still terminating; the watch reports its end

    async def set_labels(self, ref: ObjectRef, labels: Mapping[str, str | None]) -> None:
        """See `Cluster.set_labels`."""
        resource = self._resource(ref.kind)
        patch = {"metadata": {"uid": ref.uid, "labels": dict(labels)}}
        try:
            async with self._turn_for(resource, ref):
                patched = await self._api.patch(resource, ref.namespace, ref.name, patch)
        except (NotFound, Conflict) as error:
            await self._put_right(resource, (ref.namespace, ref.name), ref.uid, error)
            raise
        self._take(resource, patched)

    async def patch(
        self, ref: ObjectRef, resource_version: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> None:
        """See `Cluster.patch`."""
        resource = self._resource(ref.kind, ref.api_version)
        seen = {"uid": ref.uid} | ({"resourceVersion": resource_version} if resource_version else {})
        body = {**patch, "metadata": {**patch.get("metadata", {}), **seen}}
        try:
            async with self._turn_for(resource, ref):
                patched = await self._api.patch(
                    resource, ref.namespace, ref.name, body, subresource=subresource
                )
        except (NotFound, Conflict) as error:
            await self._put_right(resource, (ref.namespace, ref.name), ref.uid, error)
            raise
        self._take(resource, patched)

    async def release(self, key: JobKey) -> None:
        """See `Cluster.release`: nobody else removes a finalizer from an object whose owner is gone."""
        job = self._jobs.store.get((key.namespace, key.name))
        is_going = job is None or "deletionTimestamp" in job["metadata"]
        for _, kind, resource in self._kinds:
            for manifest in self._stores[resource].of_job(key) if kind.finalizer else ():
                meta = manifest["metadata"]
                is_left = is_going or controller_uid(manifest) != self._uid_of(key)
                if is_left and "deletionTimestamp" in meta and kind.finalizer in meta.get("finalizers", ()):
                    others = [name for name in meta["finalizers"] if name != kind.finalizer]
                    ref = ObjectRef(kind.kind, key.namespace, meta["name"], meta["uid"], kind.api_version)
                    with suppress(NotFound):
                        await self.patch(ref, meta["resourceVersion"], {"metadata": {"finalizers": others}})

    async def write_status(self, key: JobKey, uid: str, resource_version: str, status: Manifest) -> None:
        """See `Cluster.write_status`."""
        metadata = {
            "namespace": key.namespace,
            "name": key.name,
            "uid": uid,
            "resourceVersion": resource_version,
        }
        job = {
            "apiVersion": TRAINJOBS.api_version,
            "kind": TRAINJOBS.kind,
            "metadata": metadata,
            "status": status,
        }
        try:
            async with self._writes.slot(key.namespace, key.name):
                written = await self._api.replace(TRAINJOBS, job, subresource="status")
        except (NotFound, Conflict) as error:
            await self._put_right(TRAINJOBS, (key.namespace, key.name), uid, error)
            raise
        self._take(TRAINJOBS, written)

    def set_target(self, key: JobKey, target: Mapping[str, Any] | None) -> None:
        """See `Cluster.set_target`."""
        self._agents.set_target(key, target)

    async def post_event(self, job: Manifest, *, type_: str, reason: str, message: str) -> None:
        """See `Cluster.post_event`. It is sent in the background."""
        self._events.post(job, type_=type_, reason=reason, message=message)

    # -- inside -----------------------------------------------------------------------------------------

    async def _served(self) -> Mapping[str, tuple[str, ...]]:
        """Return the served versions of each API group; failed requests are repeated."""
        backoff = Backoff(self._timeouts.first_retry, self._timeouts.longest_retry)
        while True:
            try:
                groups = (await self._api.get(API_GROUPS, None, ""))["groups"]
            except ClusterError as error:
                _log.info("looking for %s: %s", " and ".join(self._use), error)
                await asyncio.sleep(backoff.next())
            else:
                return {
                    group["name"]: tuple(each["version"] for each in group["versions"]) for group in groups
                }

    def _find_integration(
        self, integration: type[Integration], served: Mapping[str, tuple[str, ...]]
    ) -> Integration:
        """Cache the objects of an integration too, if it is used and served."""
        if integration.NAME not in self._use:
            return integration()
        found = integration.find(served)
        if not found.kinds:
            _log.warning("%s", found.MISSING)
        for kind in found.kinds:
            resource = _resource_of(kind)
            self._kinds.append((found, kind, resource))
            scope = Scope(resource, self._namespace, LABEL_JOB) if kind.of_jobs else Scope(resource)
            store = self._stores[resource] = Store(_job_of_label, self._notify)
            self._informers[resource] = self._informer(scope, store)
        return found

    async def _of_job(
        self, key: JobKey, uid: str | None, kind: Kind, resource: Resource, name: str | None
    ) -> Manifest | None:
        """Return the object of an integration that the job owns, else the one of the name that it needs."""
        for manifest in self._stores[resource].of_job(key):
            if controller_uid(manifest) == uid:
                return manifest
        if name is None:
            return None
        if kind.unlabeled and self._find(resource, (key.namespace, name)) is None:
            await self._look(resource, (key.namespace, name))
        return self._find(resource, (key.namespace, name))

    def _informer(self, scope: Scope, store: Store) -> Informer:
        restarted = partial(self._on_restart, scope.resource.plural)
        return Informer(self._api, scope, store, restarted=restarted, timeouts=self._timeouts)

    def _resource(self, kind: str, api_version: str = "") -> Resource:
        found = (r for _, _, r in self._kinds if (r.kind, r.api_version) == (kind, api_version))
        return next(found, None) or BY_KIND[kind]

    def _turn_for(self, resource: Resource, ref: ObjectRef) -> AbstractAsyncContextManager[None]:
        known = None if resource in UNREAD else self._store(resource).get((ref.namespace, ref.name))
        return self._turn(known or {"metadata": vars(ref)})

    def _turn(self, manifest: Manifest) -> AbstractAsyncContextManager[None]:
        """Return the write slot of the job that this object belongs to."""
        meta, job = manifest["metadata"], _job_of_label(manifest)
        return self._writes.slot(meta["namespace"], job.name if job is not None else meta["name"])

    def _uid_of(self, key: JobKey) -> str | None:
        return self._jobs.store.uid_of((key.namespace, key.name))

    def _pods_of(self, key: JobKey) -> tuple[Manifest, ...]:
        """Return the pods that the job owns: agents in pods of another owner must not be called."""
        uid = self._uid_of(key)
        return tuple(pod for pod in self._stores[PODS].of_job(key) if controller_uid(pod) == uid)

    def _take_pod_change(self, key: JobKey) -> None:
        self._agents.hasten(key)
        self._notify(key)

    def _store(self, resource: Resource) -> Store:
        return self._jobs.store if resource == TRAINJOBS else self._stores[resource]

    def _find(self, resource: Resource, full_name: NamespacedName) -> Manifest | None:
        return self._stores[resource].get(full_name) or self._unlabeled.get(resource.kind, full_name)

    def _take(self, resource: Resource, manifest: Manifest) -> None:
        """Cache a written object at once: the watch may report it later."""
        if resource == TRAINJOBS or _job_of_label(manifest) is not None:
            self._store(resource).put(manifest)
            self._unlabeled.forget(resource.kind, namespaced_name(manifest))
        else:
            self._unlabeled.remember(resource.kind, manifest)

    async def _put_right(
        self, resource: Resource, full_name: NamespacedName, uid: str, error: ClusterError
    ) -> None:
        """Correct the cache: a write found another object than the cached one, or none."""
        if isinstance(error, Conflict):
            await self._look(resource, full_name)
            return
        self._store(resource).discard(full_name, uid)
        if resource == TRAINJOBS:
            self._jobs.ask_for_sweep()  # more deletions may have been missed

    async def _look(self, resource: Resource, full_name: NamespacedName) -> None:
        with suppress(ClusterError):  # the error of the write matters more
            self._take(resource, await self._api.get(resource, *full_name))

    def _notify(self, key: JobKey) -> None:
        for watcher in self._watchers:
            watcher(key)


def _job_of_label(manifest: Manifest) -> JobKey | None:
    meta = manifest["metadata"]
    name = (meta.get("labels") or {}).get(LABEL_JOB)
    return JobKey(meta.get("namespace", ""), name) if name else None


def _resource_of(kind: Kind) -> Resource:
    return Resource(kind.group, kind.versions[0], kind.plural, kind.kind)


def _time() -> float:
    return asyncio.get_running_loop().time()
