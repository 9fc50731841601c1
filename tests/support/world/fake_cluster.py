"""A cluster in memory that keeps the API server's rules, for tests; faults happen on demand.

It is strict where the real one is: uids and resourceVersions are checked, a name is held while its object is
terminating, what a deleted object owned goes with it, and the status is a subresource of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from support.kube.api_server import merge
from trainjob.cluster.protocol import AlreadyExists, Conflict, Manifest, NotFound, Snapshot
from trainjob.core.integrations.podgroups import pod_group_name
from trainjob.core.integrations.workload import prebuilt_workload
from trainjob.core.names import JobKey, ObjectRef

Fault = Callable[[str, Manifest], Exception | None]
"""Given an operation (such as `create`, `set_labels`, `write_status`) and its object: an error to raise."""

_JOB_LABEL = "trainjob.dev/job"
_QUEUE_KINDS = ("ResourceFlavor", "WorkloadPriorityClass", "PriorityClass")


def copied(value: Any) -> Any:
    """Return a copy of a JSON value; `deepcopy`, which looks for shared parts too, took most of the time."""
    if isinstance(value, Mapping):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list | tuple) else value


class FakeCluster:
    """See the module; `clock` gives the times that the API server and the kubelet would write.

    Attributes:
        writes: every write that succeeded, as `create Pod digits-worker-0-…`.
        events: (reason, message) of every event, oldest first.
        targets: the latest target for each job's agents.
        queue_positions: where jobs are in their queues.
        fault: asked before each write; None lets it through.
        fault_after: asked after each write: the write is done, but its answer is lost.
    """

    pods_wait_for_secrets = True

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._objects: dict[tuple[str, str, str], Manifest] = {}
        self._progress: dict[str, Mapping[str, Any]] = {}
        self._agent_reports: dict[JobKey, dict[str, Any]] = {}
        self._watchers: list[Callable[[JobKey], None]] = []
        self._version = 0
        self._uids = 0
        self.targets: dict[JobKey, Mapping[str, Any] | None] = {}
        self.queue_positions: dict[JobKey, int] = {}
        self.writes: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.pod_events: dict[str, Manifest] = {}
        self.fault: Fault = lambda _operation, _manifest: None
        self.fault_after: Fault = lambda _operation, _manifest: None

    # -- the protocol ---------------------------------------------------------------------------------

    def watch(self, notify: Callable[[JobKey], None]) -> None:
        """See `Cluster.watch`."""
        self._watchers.append(notify)

    async def observe(self, key: JobKey) -> Snapshot | None:
        """See `Cluster.observe`."""
        job = self._objects.get(("TrainJob", key.namespace, key.name))
        if job is None:
            return None
        pods = self.pods(key)
        claim = ("PersistentVolumeClaim", key.namespace, f"{key.name}-output")
        related = {
            "Service": self._objects.get(("Service", key.namespace, key.name)),
            "PersistentVolumeClaim": self._objects.get(claim),
            "NetworkPolicy": self._objects.get(("NetworkPolicy", key.namespace, key.name)),
            "PodGroup": self.pod_group(key),
            "Workload": self.workload(key) or self._prebuilt_of(job),
        }
        return Snapshot(
            job=copied(job),
            pods=tuple(copied(pods)),
            related={kind: copied(one) for kind, one in related.items() if one is not None},
            progress=dict(self._progress),
            agent_report=copied(self._agent_reports.get(key)),
            queue_position=self.queue_positions.get(key),
            shared=tuple(copied(o) for o in self._objects.values() if o["kind"] in _QUEUE_KINDS),
            pod_events=dict(self.pod_events),
        )

    async def create(self, manifest: Manifest) -> None:
        """See `Cluster.create`."""
        self._check("create", manifest)
        place = _place(manifest)
        if place in self._objects:
            raise AlreadyExists(f"{place[0]} {place[2]} exists")
        stored = copied(manifest)
        self._uids += 1
        stored["metadata"]["uid"] = f"uid-{self._uids}"
        stored["metadata"]["creationTimestamp"] = self._clock().isoformat()
        if stored["kind"] == "Pod":
            stored["status"] = {"phase": "Pending"}
        self._store(stored)
        self._written("create", stored)

    async def replace(self, manifest: Manifest) -> None:
        """See `Cluster.replace`."""
        kind, namespace, name = _place(manifest)
        meta = manifest["metadata"]
        stored = self._find(ObjectRef(kind, namespace, name, meta["uid"]))
        self._check("replace", stored)
        if stored["metadata"]["resourceVersion"] != meta["resourceVersion"]:
            raise Conflict(f"{kind} {name} has changed")
        self._store(copied(manifest))
        self._written("replace", manifest)

    async def delete(self, ref: ObjectRef, grace_seconds: int | None = None) -> None:
        """See `Cluster.delete`; a pod that hasn't ended runs until `end_pod` or `remove` is called."""
        stored = self._find(ref)
        self._check("delete", stored)
        if ref.kind == "Pod" and grace_seconds != 0 and not _has_ended(stored):
            self.ask_to_end(stored)
        elif stored["metadata"].get("finalizers"):
            stored["metadata"]["deletionTimestamp"] = self._clock().isoformat()
            self._store(stored)
        else:
            self._remove(stored)
        self._written("delete", stored)

    async def set_labels(self, ref: ObjectRef, labels: Mapping[str, str | None]) -> None:
        """See `Cluster.set_labels`."""
        stored = self._find(ref)
        self._check("set_labels", stored)
        current = stored["metadata"].setdefault("labels", {})
        for name, value in labels.items():
            if value is None:
                current.pop(name, None)
            else:
                current[name] = value
        self._store(stored)
        self._written("label", stored)

    async def patch(
        self, ref: ObjectRef, resource_version: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> None:
        """See `Cluster.patch`; a terminating object is gone with its last finalizer."""
        stored = self._find(ref)
        self._check("patch", stored)
        if resource_version and stored["metadata"]["resourceVersion"] != resource_version:
            raise Conflict(f"{ref.kind} {ref.name} has changed")
        assert ("status" in patch) == (subresource == "status")
        changes = copied(dict(patch))
        for changed in changes.get("spec", {}).pop("containers", ()):  # pods' are merged by name
            merge(next(c for c in stored["spec"]["containers"] if c["name"] == changed["name"]), changed)
        merge(stored, changes)
        if "deletionTimestamp" in stored["metadata"] and not stored["metadata"].get("finalizers"):
            self._remove(stored)
        else:
            self._store(stored)
        self._written("patch", stored)

    async def release(self, key: JobKey) -> None:
        """See `Cluster.release`: no test of a job on this cluster has one that is gone."""

    async def write_status(self, key: JobKey, uid: str, resource_version: str, status: Manifest) -> None:
        """See `Cluster.write_status`."""
        stored = self._find(ObjectRef("TrainJob", key.namespace, key.name, uid))
        self._check("write_status", stored)
        if stored["metadata"]["resourceVersion"] != resource_version:
            raise Conflict(f"TrainJob {key} has changed")
        stored["status"] = copied(status)
        self._store(stored)
        self._written("status", stored)

    async def post_event(self, job: Manifest, *, type_: str, reason: str, message: str) -> None:  # noqa: ARG002
        """See `Cluster.post_event`."""
        self.events.append((reason, message))

    def set_target(self, key: JobKey, target: Mapping[str, Any] | None) -> None:
        """See `Cluster.set_target`; what the agents make of it is for `answer` to say."""
        self.targets[key] = target

    # -- what users, kubelets and nodes do --------------------------------------------------------------

    def apply(self, job: Manifest) -> JobKey:
        """Create the job, or replace its spec; the generation grows when the spec differs."""
        place = _place(job)
        stored = self._objects.get(place)
        if stored is None:
            stored = copied(job)
            self._uids += 1
            stored["metadata"].update(
                uid=f"uid-{self._uids}", generation=1, creationTimestamp=self._clock().isoformat()
            )
        elif stored["spec"] != job["spec"]:
            stored["spec"] = copied(job["spec"])
            stored["metadata"]["generation"] += 1
        self._store(stored)
        return JobKey(place[1], place[2])

    def job(self, key: JobKey) -> Manifest:
        """Return the job as stored."""
        return self._objects["TrainJob", key.namespace, key.name]

    def pods(self, key: JobKey) -> list[Manifest]:
        """Return the pods labelled as this job's, by name."""
        return [
            stored
            for (kind, namespace, _), stored in sorted(self._objects.items())
            if kind == "Pod"
            and namespace == key.namespace
            and stored["metadata"].get("labels", {}).get(_JOB_LABEL) == key.name
        ]

    def find(self, kind: str, key: JobKey) -> Manifest | None:
        """Return the object of that kind that has the job's namespace and name."""
        return self._objects.get((kind, key.namespace, key.name))

    def put(self, manifest: Manifest) -> None:
        """Store an object of another owner."""
        self._uids += 1
        manifest["metadata"].setdefault("uid", f"uid-{self._uids}")
        self._store(copied(manifest))

    def workload(self, key: JobKey) -> Manifest | None:
        """Return the Workload that the job owns, or None."""
        uid = self.job(key)["metadata"]["uid"]
        workloads = (o for o in self._objects.values() if o["kind"] == "Workload")
        return next((found for found in workloads if uid in _owner_uids(found)), None)

    def _prebuilt_of(self, job: Manifest) -> Manifest | None:
        name = prebuilt_workload(job["metadata"])
        return self._objects.get(("Workload", job["metadata"]["namespace"], name)) if name else None

    def pod_group(self, key: JobKey) -> Manifest | None:
        """Return the PodGroup of the job's gang, of any owner, or None."""
        name = pod_group_name(key.name, self.job(key)["metadata"]["uid"])
        return self._objects.get(("PodGroup", key.namespace, name))

    def change(self, manifest: Manifest, patch: Mapping[str, Any]) -> None:
        """Another client merges a patch into an object."""
        stored = self._objects[_place(manifest)]
        merge(stored, copied(dict(patch)))
        self._store(stored)

    def delete_job(self, key: JobKey) -> None:
        """Delete the job and, as the garbage collector does, all that it owns."""
        self._remove(self.job(key))

    def run_pod(self, pod: Manifest) -> None:
        """The kubelet starts the pod's container."""
        self._set_container(pod, "Running", {"running": {"startedAt": self._clock().isoformat()}}, ready=True)

    def resize_pod(self, pod: Manifest, memory: str) -> None:
        """The kubelet has given the pod's container this limit of memory."""
        stored = self._objects[_place(pod)]
        stored["status"]["containerStatuses"][0]["resources"] = {"limits": {"memory": memory}}
        self._store(stored)

    def refuse_resize(self, pod: Manifest, reason: str, message: str) -> None:
        """The kubelet has no room for the memory that the pod is to have."""
        stored = self._objects[_place(pod)]
        condition = {"type": "PodResizePending", "status": "True", "reason": reason, "message": message}
        stored["status"]["conditions"].append(condition)
        self._store(stored)

    def hold_pod(self, pod: Manifest, reason: str, message: str) -> None:
        """The scheduler has no node for the pod, or the kubelet can't start its container."""
        if reason == "Unschedulable":
            stored, condition = self._objects[_place(pod)], {"type": "PodScheduled", "status": "False"}
            said = {**condition, "reason": reason, "message": message}
            stored["status"] = {"phase": "Pending", "conditions": [said]}
            self._store(stored)
            return
        self._set_container(pod, "Pending", {"waiting": {"reason": reason, "message": message}})

    def end_pod(self, pod: Manifest, exit_code: int, *, reason: str = "", message: str = "") -> None:
        """The pod's container ends; a terminating pod goes with it."""
        word = reason or ("Completed" if exit_code == 0 else "Error")
        ended = {
            "exitCode": exit_code,
            "reason": word,
            "message": message,
            "finishedAt": self._clock().isoformat(),
        }
        if started := self._started_at(pod):
            ended["startedAt"] = started
        if "deletionTimestamp" in pod["metadata"]:
            self._remove(self._objects[_place(pod)])
            return
        self._set_container(pod, "Succeeded" if exit_code == 0 else "Failed", {"terminated": ended})

    def set_init(self, pod: Manifest, state: Manifest, *, phase: str = "Pending") -> None:
        """The kubelet reports the state of the pod's init container `fetch`."""
        self._set_container(pod, phase, {"waiting": {"reason": "PodInitializing"}})
        stored = self._objects[_place(pod)]
        stored["status"]["initContainerStatuses"] = [{"name": "fetch", "state": state}]
        self._store(stored)

    def fail_init(self, pod: Manifest, code: int = 1, message: str = "", **ended: str) -> None:
        """The pod's init container ends badly, and the pod with it."""
        ended = {"reason": "Error", "message": message, "finishedAt": self._clock().isoformat(), **ended}
        self.set_init(pod, {"terminated": {"exitCode": code, **ended}}, phase="Failed")

    def evict_pod(self, pod: Manifest) -> None:
        """The kubelet evicts the pod."""
        stored = self._objects[_place(pod)]
        self._set_container(
            stored,
            "Failed",
            {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": self._clock().isoformat()}},
        )
        stored["status"].update(reason="Evicted", message="The node was low on resource: memory.")

    def at_node(self, pod: Manifest, node: str) -> Manifest:
        """The pod has been bound to this node; returns it as stored."""
        stored = self._objects[_place(pod)]
        stored["spec"]["nodeName"] = node
        return stored

    def ask_to_end(self, pod: Manifest) -> None:
        """The pod is asked to end within its grace period, by whomever."""
        stored = self._objects[_place(pod)]
        grace = stored["spec"].get("terminationGracePeriodSeconds", 30)
        due = self._clock() + timedelta(seconds=grace)
        stored["metadata"].setdefault("deletionTimestamp", due.isoformat())
        stored["metadata"].setdefault("deletionGracePeriodSeconds", grace)
        self._store(stored)

    def remove(self, manifest: Manifest) -> None:
        """The object vanishes at once, as a pod does after `kubectl delete --force`."""
        self._remove(self._objects[_place(manifest)])

    def report(self, pod: Manifest, report: Mapping[str, Any]) -> None:
        """The training process reports progress."""
        self._progress[pod["metadata"]["name"]] = dict(report)
        self._notify(pod)

    def answer(self, key: JobKey, report: Mapping[str, Any]) -> None:
        """The job's leading agent answers the controller."""
        self._agent_reports[key] = {"age": 0.0, "unreachableSeconds": 0.0, **report}
        for watcher in self._watchers:
            watcher(key)

    def forget_answers(self) -> None:
        """No agent has been heard of, as for a controller that begins."""
        self._agent_reports.clear()

    # -- inside -----------------------------------------------------------------------------------------

    def _started_at(self, pod: Manifest) -> str | None:
        containers = self._objects[_place(pod)].get("status", {}).get("containerStatuses", [])
        running = (c["state"].get("running", {}) for c in containers)
        return next((state["startedAt"] for state in running if "startedAt" in state), None)

    def _set_container(self, pod: Manifest, phase: str, state: Manifest, *, ready: bool = False) -> None:
        stored = self._objects[_place(pod)]
        stored["status"] = {
            "phase": phase,
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": self._clock().isoformat()},
                {"type": "Ready", "status": str(ready)},
            ],
            "containerStatuses": [{"name": "trainer", "state": state}],
        }
        self._store(stored)

    def _find(self, ref: ObjectRef) -> Manifest:
        stored = self._objects.get((ref.kind, ref.namespace, ref.name))
        if stored is None:
            raise NotFound(f"{ref.kind} {ref.name} is gone")
        if ref.uid and stored["metadata"]["uid"] != ref.uid:
            raise Conflict(f"{ref.kind} {ref.name} is another one")
        return stored

    def _check(self, operation: str, manifest: Manifest) -> None:
        error = self.fault(operation, manifest)
        if error is not None:
            raise error

    def _written(self, operation: str, manifest: Manifest) -> None:
        self.writes.append(f"{operation} {manifest['kind']} {manifest['metadata']['name']}")
        error = self.fault_after(operation, manifest)
        if error is not None:
            raise error

    def _store(self, manifest: Manifest) -> None:
        self._version += 1
        manifest["metadata"]["resourceVersion"] = str(self._version)
        self._objects[_place(manifest)] = manifest
        self._notify(manifest)

    def _remove(self, manifest: Manifest) -> None:
        self._objects.pop(_place(manifest), None)
        self._progress.pop(manifest["metadata"]["name"], None)
        uid = manifest["metadata"]["uid"]
        for owned in [o for o in self._objects.values() if uid in _owner_uids(o)]:
            self._remove(owned)
        self._notify(manifest)

    def _notify(self, manifest: Manifest) -> None:
        meta = manifest["metadata"]
        name = meta["name"] if manifest["kind"] == "TrainJob" else meta.get("labels", {}).get(_JOB_LABEL)
        if name is not None:
            for watcher in self._watchers:
                watcher(JobKey(meta.get("namespace", "default"), name))


def _place(manifest: Manifest) -> tuple[str, str, str]:
    meta = manifest["metadata"]
    return manifest["kind"], meta.get("namespace", "default"), meta["name"]


def _owner_uids(manifest: Manifest) -> set[str]:
    return {owner["uid"] for owner in manifest["metadata"].get("ownerReferences", ())}


def _has_ended(pod: Manifest) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
