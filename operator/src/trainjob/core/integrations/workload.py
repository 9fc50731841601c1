"""Kueue's Workload of a job: the object that asks for its pods' quota, and what Kueue has answered in it.

Source: https://kueue.sigs.k8s.io/docs/concepts/workload/ and the jobs that Kueue itself integrates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainjob.api import TrainJob
from trainjob.api.errors import mapping_at, objects_at
from trainjob.core.integration import Placement
from trainjob.core.manifests import Manifest, role_template
from trainjob.core.names import (
    LABEL_INDEX,
    PREBUILT,
    QUEUE_NAME,
    TOPOLOGY_GATE,
    controller_uid,
    job_labels,
    owner_references,
    replica_counts,
)

GROUP = "kueue.x-k8s.io"
VISIBILITY_GROUP = f"visibility.{GROUP}"
FINALIZER = f"{GROUP}/resource-in-use"
JOB_UID = f"{GROUP}/job-uid"
MULTIKUEUE = f"{GROUP}/multikueue"
"""Manager of a job that Kueue runs in another cluster."""

PRIORITY_CLASS = f"{GROUP}/priority-class"
"""On a job: the WorkloadPriorityClass of its Workload."""

INACTIVE = "trainjob.dev/inactive"
"""On a Workload that this controller deactivated: why. If Kueue or a person did, it is absent."""

PROVISIONING = f"provreq.{GROUP}/"
"""On a job, before a parameter of its ProvisioningRequests, which Kueue reads in the Workload."""

POD_SET, POD_WORKLOAD = f"{GROUP}/podset", f"{GROUP}/workload"
"""On a pod that is placed by topology, by which Kueue finds it: a label, and an annotation."""

_TOPOLOGY_REQUESTS = {
    "required": f"{GROUP}/podset-required-topology",
    "preferred": f"{GROUP}/podset-preferred-topology",
    "unconstrained": f"{GROUP}/podset-unconstrained-topology",
    "podSetSliceRequiredTopology": f"{GROUP}/podset-slice-required-topology",
    "podSetSliceSize": f"{GROUP}/podset-slice-size",
    "podSetGroupName": f"{GROUP}/podset-group-name",
}
"""The fields of a pod set's topology request, and the annotations of a pod template that ask for them."""

ADMITTED, QUOTA_RESERVED, EVICTED = "Admitted", "QuotaReserved", "Evicted"
FINISHED, REQUEUED, PODS_READY = "Finished", "Requeued", "PodsReady"

Condition = Mapping[str, Any]


# What is read.


@dataclass(frozen=True)
class QueueObjects:
    """The cluster-wide objects that decide on jobs in queues, by name.

    Attributes:
        flavors: the ResourceFlavors' specs.
        workload_priorities: the WorkloadPriorityClasses' values.
        priorities: the PriorityClasses' values.
        default_priority: the PriorityClass of pods that name none; empty if there is none.
    """

    flavors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    workload_priorities: Mapping[str, int] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)
    default_priority: str = ""


def read_queue_objects(manifests: Iterable[Mapping[str, Any]]) -> QueueObjects:
    """Read ResourceFlavors, WorkloadPriorityClasses and PriorityClasses."""
    by_kind: dict[str, dict[str, Mapping[str, Any]]] = {}
    for manifest in manifests:
        by_kind.setdefault(manifest["kind"], {})[manifest["metadata"]["name"]] = manifest
    classes = by_kind.get("PriorityClass", {})
    defaults = [name for name, found in classes.items() if found.get("globalDefault")]
    return QueueObjects(
        {name: mapping_at(found, "spec") for name, found in by_kind.get("ResourceFlavor", {}).items()},
        {name: int(found["value"]) for name, found in by_kind.get("WorkloadPriorityClass", {}).items()},
        {name: int(found["value"]) for name, found in classes.items()},
        min(defaults, key=lambda name: int(classes[name]["value"]), default=""),
    )


@dataclass(frozen=True)
class Workload:
    """A job's Workload.

    Attributes:
        deleting: whether its deletion was requested; its finalizer delays it.
        inactive: why this controller deactivated it; empty if it didn't.
        counts: the pods that are asked for, by role.
        topologies: what their places are to be, by role, as in its spec.
        priority: class and value, as in its spec.
        assignments: Kueue's decision about the pods of each role; empty without quota.
        checks: the admission checks.
        reclaimable: how many pods of each role need no quota any more.
    """

    name: str
    uid: str
    resource_version: str
    generation: int
    queue: str
    active: bool
    deleting: bool
    finalizers: tuple[str, ...]
    inactive: str
    counts: Mapping[str, int]
    topologies: Mapping[str, Mapping[str, Any]]
    priority: Manifest
    conditions: tuple[Condition, ...]
    assignments: tuple[Mapping[str, Any], ...]
    checks: tuple[Mapping[str, Any], ...]
    reclaimable: Mapping[str, int]

    def condition(self, kind: str) -> Condition:
        """Return the condition of this type; empty if there is none."""
        return next((c for c in self.conditions if c.get("type") == kind), {})

    def is_true(self, kind: str) -> bool:
        """Return whether the condition exists and is `True`."""
        return self.condition(kind).get("status") == "True"

    @property
    def holds_quota(self) -> bool:
        """Return whether quota is reserved for it, which an eviction alone doesn't end."""
        return self.is_true(QUOTA_RESERVED)

    @property
    def admitted(self) -> bool:
        """Return whether the job's pods may run."""
        return self.is_true(ADMITTED) and not self.is_true(EVICTED) and not self.deleting


def read_workload(manifest: Mapping[str, Any] | None, uid: str | None) -> Workload | None:
    """Return the Workload that the job with this uid owns, or (None) that nobody owns; else None."""
    if manifest is None or controller_uid(manifest) != uid:
        return None
    meta, spec, status = manifest["metadata"], mapping_at(manifest, "spec"), mapping_at(manifest, "status")
    return Workload(
        name=meta["name"],
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
        generation=meta.get("generation", 0),
        queue=spec.get("queueName", ""),
        active=spec.get("active", True),
        deleting="deletionTimestamp" in meta,
        finalizers=tuple(meta.get("finalizers") or ()),
        inactive=mapping_at(meta, "annotations").get(INACTIVE, ""),
        counts={pods["name"]: pods.get("count", 1) for _, pods in objects_at(spec, "podSets")},
        topologies={
            pods["name"]: mapping_at(pods, "topologyRequest") for _, pods in objects_at(spec, "podSets")
        },
        # v1beta1 stores an empty source where there is none.
        priority={key: spec[key] for key in _PRIORITY_FIELDS if spec.get(key) not in (None, "")},
        conditions=tuple(c for _, c in objects_at(status, "conditions")),
        assignments=tuple(a for _, a in objects_at(mapping_at(status, "admission"), "podSetAssignments")),
        checks=tuple(check for _, check in objects_at(status, "admissionChecks")),
        reclaimable={r["name"]: r["count"] for _, r in objects_at(status, "reclaimablePods")},
    )


def prebuilt_workload(metadata: Mapping[str, Any]) -> str:
    """Return the name of the Workload that MultiKueue has made for a job; empty for other jobs.

    Kueue has it in a label or, since 0.18, in an annotation.
    """
    texts = (mapping_at(metadata, kind) for kind in ("annotations", "labels"))
    return next((each[PREBUILT] for each in texts if each.get(PREBUILT)), "")


# What is written.


_PRIORITY_FIELDS = ("priorityClassRef", "priorityClassName", "priorityClassSource", "priority")


def workload_name(job: str, uid: str) -> str:
    """Return the name of the job's Workload, which no other job uses."""
    return f"trainjob-{job}-{hashlib.sha256(uid.encode()).hexdigest()[:8]}"


def build_workload(job: TrainJob, version: str, objects: QueueObjects) -> Manifest:
    """Return the Workload to create for a job that names a queue.

    Args:
        job: a valid job, at the size that its user asks for.
        version: of Kueue's API.
        objects: which have the job's priority class.

    Raises:
        LookupError: the priority class doesn't exist; the message says which.
    """
    meta = job.metadata
    asked = {key: text for key, text in meta.annotations.items() if key.startswith(PROVISIONING)}
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "Workload",
        "metadata": {
            "name": workload_name(meta.name, meta.uid),
            "namespace": meta.namespace,
            "labels": {**job_labels(meta.name), JOB_UID: meta.uid},
            **({"annotations": asked} if asked else {}),
            "ownerReferences": owner_references(job),
            "finalizers": [FINALIZER],
        },
        "spec": {
            "queueName": meta.labels.get(QUEUE_NAME, ""),
            "podSets": build_pod_sets(job),
            **build_priority(job, version, objects),
        },
    }


def build_adoption(job: TrainJob) -> Manifest:
    """Return the patch by which a Workload that was made for a job becomes the job's own."""
    labels = {**job_labels(job.metadata.name), JOB_UID: job.metadata.uid}
    return {"metadata": {"labels": labels, "ownerReferences": owner_references(job)}}


def build_pod_sets(job: TrainJob) -> list[Manifest]:
    """Return one pod set a role, with the number of its pods and their template."""
    sets: list[Manifest] = []
    for role, count in replica_counts(job.spec).items():
        template = role_template(job.spec, role)
        metadata = mapping_at(template, "metadata")
        kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
        pods: Manifest = {
            "name": role,
            "count": count,
            "template": {"metadata": kept, "spec": template["spec"]},
            "topologyRequest": _topology_request(mapping_at(metadata, "annotations")),
        }
        if role == "worker" and job.spec.worker.min_replicas is not None:
            pods["minCount"] = job.spec.worker.min_replicas
        sets.append(pods)
    return sets


def _topology_request(annotations: Mapping[str, str]) -> Manifest:
    """Return the places that a pod template asks for; pods are ranked by index wherever they are placed.

    What is neither a number nor a truth value goes to the API server as it is, whose refusal names the field.
    """
    asked = {field: annotations.get(name) for field, name in _TOPOLOGY_REQUESTS.items()}
    request: Manifest = {field: text for field, text in asked.items() if text is not None}
    if "unconstrained" in request:
        request["unconstrained"] = {"true": True, "false": False}.get(
            request["unconstrained"].lower(), request["unconstrained"]
        )
    if request.get("podSetSliceSize", "").isdecimal():
        request["podSetSliceSize"] = int(request["podSetSliceSize"])
    return {**request, "podIndexLabel": LABEL_INDEX}


def build_priority(job: TrainJob, version: str, objects: QueueObjects) -> Manifest:
    """Return the fields of a Workload's spec with its priority.

    As in Kueue: of the job's label, else of the first pod template that names a class, else the default.

    Raises:
        LookupError: the class doesn't exist; the message says which.
    """
    name = job.metadata.labels.get(PRIORITY_CLASS, "")
    kind, group, values = "WorkloadPriorityClass", GROUP, objects.workload_priorities
    if not name:
        templates = (role_template(job.spec, role)["spec"] for role in replica_counts(job.spec))
        named = (spec.get("priorityClassName") for spec in templates)
        name = next((found for found in named if found), objects.default_priority)
        kind, group, values = "PriorityClass", "scheduling.k8s.io", objects.priorities
    if not name:
        return {"priority": 0}
    if name not in values:
        raise LookupError(f"{kind} {name} doesn't exist")
    if version == "v1beta1":
        source = {"priorityClassName": name, "priorityClassSource": f"{group}/{kind.lower()}"}
        return {**source, "priority": values[name]}
    return {"priorityClassRef": {"group": group, "kind": kind, "name": name}, "priority": values[name]}


# What Kueue has decided about the pods.


@dataclass(frozen=True)
class Admission:
    """The admission of a job.

    Attributes:
        counts: how many pods of each role may run.
        placements: by role.
    """

    counts: Mapping[str, int]
    placements: Mapping[str, Placement]


def read_admission(workload: Workload, objects: QueueObjects) -> Admission | None:
    """Return what Kueue has decided, or None while the job isn't admitted or a flavor isn't known yet."""
    if not workload.admitted:
        return None
    counts: dict[str, int] = {}
    placements: dict[str, Placement] = {}
    for assigned in workload.assignments:
        role = assigned["name"]
        flavors = dict.fromkeys(mapping_at(assigned, "flavors").values())
        if not all(name in objects.flavors for name in flavors):
            return None
        counts[role] = assigned.get("count", workload.counts.get(role, 0))
        parts = [_of_flavor(objects.flavors[name]) for name in flavors]
        parts += [_of_topology(workload, role)] if assigned.get("topologyAssignment") else []
        parts += [_of_update(update) for update in _updates(workload, role)]
        placements[role] = Placement(
            labels={key: value for part in parts for key, value in part.labels.items()},
            annotations={key: value for part in parts for key, value in part.annotations.items()},
            node_selector={key: value for part in parts for key, value in part.node_selector.items()},
            tolerations=tuple(toleration for part in parts for toleration in part.tolerations),
            gates=tuple(gate for part in parts for gate in part.gates),
        )
    return Admission(counts, placements)


def _of_flavor(spec: Mapping[str, Any]) -> Placement:
    tolerations = tuple(toleration for _, toleration in objects_at(spec, "tolerations"))
    return Placement(node_selector=mapping_at(spec, "nodeLabels"), tolerations=tolerations)


def _of_topology(workload: Workload, role: str) -> Placement:
    """Return what a pod needs for Kueue to place it: it waits at a gate until Kueue names its node."""
    is_asked = any(field in workload.topologies[role] for field in _TOPOLOGY_REQUESTS)
    # Without any of these annotations Kueue doesn't see that the pod is placed by topology.
    implied = {} if is_asked else {_TOPOLOGY_REQUESTS["unconstrained"]: "true"}
    return Placement(
        labels={POD_SET: role}, annotations={POD_WORKLOAD: workload.name, **implied}, gates=(TOPOLOGY_GATE,)
    )


def _of_update(update: Mapping[str, Any]) -> Placement:
    return Placement(
        mapping_at(update, "labels"),
        mapping_at(update, "annotations"),
        mapping_at(update, "nodeSelector"),
        tuple(toleration for _, toleration in objects_at(update, "tolerations")),
    )


def _updates(workload: Workload, role: str) -> Iterable[Mapping[str, Any]]:
    for check in workload.checks:
        for _, update in objects_at(check, "podSetUpdates"):
            if update.get("name") == role:
                yield update
