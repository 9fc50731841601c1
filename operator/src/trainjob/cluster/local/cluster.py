"""One TrainJob whose pods are processes of this machine, behind the cluster protocol."""

import asyncio
import math
import uuid
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from trainjob.api import InvalidTrainJob, parse
from trainjob.api.errors import trainer_of
from trainjob.api.rules.spec import find_immutable
from trainjob.cluster.agents.poller import AgentAddress, AgentIntervals, AgentPoller, AgentPolling
from trainjob.cluster.agents.wire import sync
from trainjob.cluster.local.launch import LOOPBACK, Launch, hostname_of
from trainjob.cluster.local.machine import CannotRunHere, Machine
from trainjob.cluster.local.pod import LocalPod, format_time
from trainjob.cluster.local.process import replica_log_path
from trainjob.cluster.local.sandbox import Sandbox, replica_name
from trainjob.cluster.protocol import (
    AlreadyExists,
    Conflict,
    Manifest,
    NotFound,
    PostedEvent,
    Refused,
    Unavailable,
)
from trainjob.core.manifests import build_objects
from trainjob.core.memory import bytes_of
from trainjob.core.names import JobKey, ObjectRef
from trainjob.core.observed import Snapshot
from trainjob.core.pods import memory_limit

_KINDS = ("Pod", "Secret", "Service", "PersistentVolumeClaim")
_PROGRESS_SECONDS = 0.5

# No agent loses its node here, so no other one is asked about it. A refusal is logged after 5 s, that is with
# the second one after 4.5 s: an agent that is ending closes connections too.
AGENT_INTERVALS = AgentIntervals(
    steady=0.5, hasty=0.5, figures=0.5, witness=math.inf, patience=math.inf, refused=4.5
)

# After the grace period and SIGKILL, the time in which the system ends the processes.
_KILL_SECONDS = 5.0


class ObjectStore:
    """Objects by kind, namespace and name, with uid, resourceVersion and preconditions.

    Args:
        clock: returns the time for `creationTimestamp`.
        changed: called after every change.
    """

    def __init__(self, clock: Callable[[], datetime], changed: Callable[[], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._objects: dict[tuple[str, str, str], Manifest] = {}
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


def _key(manifest: Manifest) -> tuple[str, str, str]:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace") or "default", metadata["name"]


class LocalCluster:
    """Runs one TrainJob on this machine; use it within one event loop, and `close` it.

    Args:
        job: the TrainJob; this run gives it a new uid.
        machine: this machine.
        base_port: the first replica's port for TensorFlow, or None for any free ports.
        arrange: called with the output folder before it is created and locked; may rename folders, and raise
            `CannotRunHere`. Returns the folder of this run.
        on_line: receives a replica's name, such as `worker-0`, and each line of its log. Must not raise.
        clock: returns the time.

    Attributes:
        key: the job's namespace and name.
        events: all events about the job, oldest first.

    Raises:
        CannotRunHere: no folder for temporary files can be created.
    """

    pods_wait_for_secrets = False

    def __init__(
        self,
        job: Manifest,
        machine: Machine,
        *,
        base_port: int | None = None,
        arrange: Callable[[Path], Path] = lambda folder: folder,
        on_line: Callable[[str, str], None] = lambda _replica, _line: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._on_line = on_line
        self.events: tuple[PostedEvent, ...] = ()
        self._clock = clock
        self._watchers: list[Callable[[JobKey], None]] = []
        self._store = ObjectStore(clock, self._notify)
        self._job = self._store.add({"kind": "TrainJob", **job})
        self.key = JobKey(self._job["metadata"]["namespace"], self._job["metadata"]["name"])
        self._pods: dict[str, LocalPod] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._poller: asyncio.Future[Any] | None = None
        self._sandbox = Sandbox(machine, base_port, arrange)
        self._agents = AgentPoller(
            lambda _key: str(self._job["metadata"]["uid"]),
            lambda _key: self._store.of_kind("Pod"),
            lambda _key: self._notify(),
            AgentPolling(
                token_of=lambda _uid: self._sandbox.token or "",
                address_of=self._agent_address,
                sync=partial(sync, connect=self._sandbox.connect),
                intervals=AGENT_INTERVALS,
                refusal="%(error)s",
            ),
        )
        self._last_report: Mapping[str, Any] | None = None
        self._closing = False

    @property
    def job(self) -> Manifest:
        """Return a copy of the current job, with the uid of this run and its status."""
        return deepcopy(self._job)

    def prepare(self, manifests: Iterable[Manifest]) -> tuple[str, ...]:
        """Check that this machine can run these objects, before any of them is created.

        Assigns GPUs and ports, creates the output folder, and locks it against other runs.

        Returns:
            The differences from a cluster, one line each.

        Raises:
            CannotRunHere: with every reason why it can't.
        """
        return self._sandbox.admit_all([made for made in manifests if made["kind"] == "Pod"])

    def snapshot(self) -> Snapshot:
        """Return copies of the job and of all its objects."""
        reports = {name: pod.progress for name, pod in self._pods.items()}
        return Snapshot(
            job=self.job,
            pods=tuple(deepcopy(pod) for pod in self._store.of_kind("Pod")),
            related={
                kind: deepcopy(one)
                for kind in ("Service", "PersistentVolumeClaim")
                for one in self._store.of_kind(kind)
            },
            progress={name: deepcopy(dict(file.report)) for name, file in reports.items() if file.report},
            agent_report=deepcopy(self._agents.agent_report(self.key) or self._last_report),
        )

    @property
    def output_root(self) -> Path | None:
        """Return the job's output folder, or None when it is not on this machine."""
        return self._sandbox.root

    @property
    def limits_memory(self) -> bool:
        """Return whether pods' memory limits are enforced here."""
        return self._sandbox.limits_memory

    @property
    def run_folder(self) -> Path:
        """Return the folder of this run's logs and record: the output folder, if it is on this machine."""
        return self._sandbox.root or self._sandbox.folder / self.key.name

    def patch_spec(self, patch: Mapping[str, Any]) -> None:
        """Merge this into the job's spec, by the rules of an API server.

        Raises:
            InvalidTrainJob: the job would be invalid, or a field can't be changed; with every reason.
            CannotRunHere: this machine can't run the job that it would be.
        """
        old = self._job
        new = {**old, "spec": merge_patch(old["spec"], patch)}
        job = parse(new)
        if refused := tuple(find_immutable(parse(old, has_begun=True).spec, job.spec)):
            raise InvalidTrainJob(refused)
        self._sandbox.admit_all([made for made in build_objects(job) if made["kind"] == "Pod"])
        if new["spec"] != old["spec"]:
            old["spec"] = new["spec"]
            old["metadata"]["generation"] += 1
            self._store.touch(old)

    def log_tail(self, pod: str) -> tuple[str, ...]:
        """Return the last lines of a pod's log; none if the pod is gone."""
        return self._pods[pod].tail.lines if pod in self._pods else ()

    def watch(self, notify: Callable[[JobKey], None]) -> None:
        """See `Cluster.watch`."""
        self._watchers.append(notify)

    async def observe(self, key: JobKey) -> Snapshot | None:
        """See `Cluster.observe`."""
        if key != self.key or not self._store.of_kind("TrainJob"):
            return None
        for pod in self._pods.values():
            pod.progress.has_changed()
        return self.snapshot()

    async def create(self, manifest: Manifest) -> None:
        """See `Cluster.create`; a pod starts its process. Unavailable: this run is ending."""
        if self._closing:
            raise Unavailable("the run is ending")
        if manifest["kind"] not in _KINDS:
            raise Refused("Invalid", f"{manifest['kind']} isn't supported on this machine")
        self._store.check_name(manifest)
        launch = None
        try:
            if manifest["kind"] == "Pod":
                launch = self._sandbox.admit(manifest)
            elif manifest["kind"] == "Secret":
                self._sandbox.unpack(manifest)
        except CannotRunHere as cannot:
            raise Refused("Invalid", str(cannot)) from cannot
        stored = self._store.add(manifest)
        if launch is not None:
            self._start(stored, launch)

    async def replace(self, manifest: Manifest) -> None:
        """Refuse: only the run itself changes its objects here."""
        raise Refused("Invalid", f"{manifest['kind']} can't be replaced on this machine")

    async def delete(self, ref: ObjectRef, grace_seconds: int | None = None) -> None:
        """See `Cluster.delete`; the job's pods are deleted with it."""
        stored = self._store.get(ref)
        if ref.kind == "Pod":
            self._delete_pod(self._pods[ref.name], grace_seconds)
            return
        self._store.remove(stored)
        if ref.kind == "TrainJob":
            for pod in self._live_pods():
                self._delete_pod(pod, grace_seconds)

    async def set_labels(self, ref: ObjectRef, labels: Mapping[str, str | None]) -> None:
        """See `Cluster.set_labels`."""
        stored = self._store.get(ref)
        merged = {**stored["metadata"].get("labels", {}), **labels}
        stored["metadata"]["labels"] = {name: value for name, value in merged.items() if value is not None}
        self._store.touch(stored)

    async def patch(
        self, ref: ObjectRef, resource_version: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> None:
        """Resize a pod by the patch that `core` writes; no other object belongs to another controller."""
        del resource_version
        if ref.kind != "Pod" or subresource != "resize":
            raise Refused("Invalid", f"{ref.kind} can't be patched on this machine")
        stored = self._store.get(ref)
        container, (resized,) = trainer_of(stored["spec"]), patch["spec"]["containers"]
        container["resources"] = merge_patch(container.get("resources"), resized["resources"])
        try:
            self._pods[ref.name].resize(bytes_of(memory_limit(container)) or 0)
        except OSError as error:
            raise Refused("Invalid", f"its control group can't be changed: {error.strerror}") from error
        self._store.touch(stored)

    async def release(self, key: JobKey) -> None:
        """Do nothing: no object has a finalizer here."""

    async def write_status(self, key: JobKey, uid: str, resource_version: str, status: Manifest) -> None:
        """See `Cluster.write_status`."""
        job = self._store.get(ObjectRef("TrainJob", key.namespace, key.name, uid))
        if job["metadata"]["resourceVersion"] != resource_version:
            raise Conflict(f"TrainJob {key} has changed since version {resource_version}")
        job["status"] = deepcopy(status)
        self._store.touch(job)

    def set_target(self, key: JobKey, target: Mapping[str, Any] | None) -> None:
        """See `Cluster.set_target`. The latest agent report stays in snapshots: the display shows it."""
        if key == self.key and not self._closing:
            if target is None and (report := self._agents.agent_report(key)) is not None:
                self._last_report = {**report, "unreachableSeconds": 0.0}
            self._agents.set_target(key, deepcopy(target))

    async def post_event(self, job: Manifest, *, type_: str, reason: str, message: str) -> None:
        """See `Cluster.post_event`."""
        del job  # there is only one
        self.events += (PostedEvent(self._clock(), type_, reason, message),)

    def kill(self) -> None:
        """Kill every process at once."""
        for pod in self._live_pods():
            pod.end(0)

    async def stop(self, grace_seconds: float = 0) -> None:
        """End running processes within `grace_seconds`; nothing starts afterwards."""
        self._closing = True
        for pod in self._live_pods():
            pod.end(min(grace_seconds, pod.launch.grace_seconds))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_seconds + _KILL_SECONDS)
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)

    async def close(self, grace_seconds: float = 0) -> None:
        """End running processes as `stop` does, and release the output for other runs."""
        await self.stop(grace_seconds)
        self._sandbox.leave()

    def _notify(self) -> None:
        for notify in self._watchers:
            notify(self.key)

    def _live_pods(self) -> list[LocalPod]:
        return [pod for pod in self._pods.values() if not pod.has_ended]

    def _agent_address(self, pod: Manifest) -> AgentAddress | None:
        metadata = pod["metadata"]
        if self._sandbox.token is None or not self._pods[metadata["name"]].launch.has_agent:
            return None
        return AgentAddress(metadata["uid"], LOOPBACK, self._sandbox.ports_of(pod).agent)

    def _start(self, stored: Manifest, launch: Launch) -> None:
        pod = LocalPod(
            stored,
            launch,
            self._sandbox,
            log_path=replica_log_path(self.run_folder, replica_name(stored)),
            clock=self._clock,
            on_line=self._on_line,
            changed=self._store.touch,
        )
        hostname = hostname_of(stored)
        earlier = [other for other in self._live_pods() if hostname_of(other.manifest) == hostname]
        self._pods[pod.name] = pod
        task = asyncio.ensure_future(self._live(pod, earlier))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._poller is None:
            self._poller = asyncio.gather(self._poll_progress(), self._agents.run())

    async def _live(self, pod: LocalPod, earlier: list[LocalPod]) -> None:
        await pod.run(earlier)
        if pod.is_deleting:
            self._delete_pod(pod, None)

    def _delete_pod(self, pod: LocalPod, grace_seconds: int | None) -> None:
        if pod.has_ended:
            pod.clear()
            self._store.remove(pod.manifest)
        else:
            pod.end(pod.launch.grace_seconds if grace_seconds is None else grace_seconds)

    async def _poll_progress(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            # A list, not a generator: every file must be checked.
            if any([pod.progress.has_changed() for pod in self._live_pods()]):  # noqa: C419
                self._notify()
