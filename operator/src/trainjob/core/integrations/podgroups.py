"""Gang scheduling without a queue: a job's PodGroup, whose pods its scheduler places together or not at all.

Sources: Kubernetes' own scheduler (KEP 4671, from 1.37 on), scheduler-plugins' plugin Coscheduling, and
Volcano's plugin gang. All count the pods of a group that have a node already: so the successor of one pod
doesn't wait for others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainjob.api import TrainJob, TrainJobSpec, TrainJobStatus
from trainjob.api.errors import mapping_at
from trainjob.core.actions import Action, Delete, Patch, is_to_train
from trainjob.core.integration import Integration, Kind, Placement
from trainjob.core.manifests import Manifest, role_template
from trainjob.core.names import (
    GROUP_NAME_ANNOTATION,
    GROUP_NAME_LABEL,
    ObjectRef,
    job_labels,
    owner_references,
    training_counts,
)
from trainjob.core.observed import Observed

KUBERNETES = "scheduling.k8s.io/v1beta1"
COSCHEDULING = "scheduling.x-k8s.io/v1alpha1"
VOLCANO = "scheduling.volcano.sh/v1beta1"

_DEFAULT = "default-scheduler"
_APIS = {_DEFAULT: KUBERNETES, "volcano": VOLCANO}

VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
"""On a pod template: the Volcano queue of its group."""


@dataclass(frozen=True)
class Gang:
    """The training pods that a job's scheduler places together.

    Attributes:
        api_version: of the PodGroup.
        name: the PodGroup's, which no other job uses.
        roles: whose pods belong to it. The evaluator never does: training doesn't wait for its node.
        min_member: how many pods get nodes together, or none of them does.
    """

    api_version: str
    name: str
    roles: tuple[str, ...]
    min_member: int

    @property
    def placements(self) -> Mapping[str, Placement]:
        """Return what makes the pods of each role its members."""
        if self.api_version == KUBERNETES:
            placement = Placement(group=self.name)
        elif self.api_version == VOLCANO:
            placement = Placement(annotations={GROUP_NAME_ANNOTATION: self.name})
        else:
            placement = Placement(labels={GROUP_NAME_LABEL: self.name})
        return dict.fromkeys(self.roles, placement)

    @property
    def size(self) -> Manifest:
        """Return the part of the PodGroup's spec that follows the job's size."""
        if self.api_version == KUBERNETES:
            return {"schedulingPolicy": {"gang": {"minCount": self.min_member}}}
        return {"minMember": self.min_member}


def read_gang(job: TrainJob, served: tuple[str, ...]) -> Gang | None:
    """Return the gang of a job, or None if its scheduler places pods one by one.

    Args:
        job: a valid job, at the size that it can have now.
        served: the `apiVersion` of each PodGroup that the cluster has.
    """
    if not served:
        return None
    templates = {role: role_template(job.spec, role) for role in training_counts(job.spec)}
    scheduler = _scheduler(templates["worker"])
    api_version = _APIS.get(scheduler, COSCHEDULING)
    if api_version not in served:
        return None
    roles = tuple(role for role, template in templates.items() if _scheduler(template) == scheduler)
    if api_version == KUBERNETES:  # whose gang never gets nodes if a member has another priority
        roles = tuple(role for role in roles if _priority(templates[role]) == _priority(templates["worker"]))
    if any(_has_group(templates[role]) for role in roles):
        return None  # its user's own
    counts = training_counts(job.spec) | {"worker": _fewest_workers(job.spec)}
    name = pod_group_name(job.metadata.name, job.metadata.uid)
    return Gang(api_version, name, roles, sum(counts[role] for role in roles))


def pod_group_name(job: str, uid: str) -> str:
    """Return the name of the job's PodGroup, which no other job uses."""
    return f"{job}-{hashlib.sha256(uid.encode()).hexdigest()[:8]}"


def _scheduler(template: Mapping[str, Any]) -> str:
    return template["spec"].get("schedulerName") or _DEFAULT


def _priority(template: Mapping[str, Any]) -> str:
    return template["spec"].get("priorityClassName") or ""


def _has_group(template: Mapping[str, Any]) -> bool:
    metadata = mapping_at(template, "metadata")
    has_label = GROUP_NAME_LABEL in mapping_at(metadata, "labels")
    has_annotation = GROUP_NAME_ANNOTATION in mapping_at(metadata, "annotations")
    return has_label or has_annotation or "schedulingGroup" in template["spec"]


def _fewest_workers(spec: TrainJobSpec) -> int:
    """Return with how many workers training can start."""
    least = spec.worker.min_replicas
    return spec.worker.replicas if least is None else min(least, spec.worker.replicas)


def build_pod_group(job: TrainJob, gang: Gang) -> Manifest:
    """Return the PodGroup to create for a job."""
    template = role_template(job.spec, "worker")
    annotations = mapping_at(mapping_at(template, "metadata"), "annotations")
    named = {
        "queue": annotations.get(VOLCANO_QUEUE) if gang.api_version == VOLCANO else "",
        # Coscheduling reads the pods' own.
        "priorityClassName": _priority(template) if gang.api_version != COSCHEDULING else "",
    }
    return {
        "apiVersion": gang.api_version,
        "kind": "PodGroup",
        "metadata": {
            "name": gang.name,
            "namespace": job.metadata.namespace,
            "labels": job_labels(job.metadata.name),
            "ownerReferences": owner_references(job),
        },
        "spec": {**gang.size, **{key: value for key, value in named.items() if value}},
    }


def _kind(api_version: str) -> Kind:
    group, _, version = api_version.partition("/")
    return Kind(
        group, (version,), "podgroups", "PodGroup", keep=lambda found: {"spec": found.get("spec", {})}
    )


class PodGroups(Integration):
    """PodGroups of Kubernetes' own scheduler, of coscheduling and of Volcano."""

    NAME = "gangs"
    HELP = "Create PodGroups for jobs whose scheduler supports them: all pods are then placed together."
    MISSING = (
        "the cluster serves no PodGroup API: replicas are scheduled one by one. After installing it, "
        "restart the controller"
    )
    KINDS = (_kind(KUBERNETES), _kind(COSCHEDULING), _kind(VOLCANO))
    KEPT_METADATA = (GROUP_NAME_LABEL, GROUP_NAME_ANNOTATION)

    def names(self, metadata: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the name of the job's PodGroup."""
        return {"PodGroup": pod_group_name(metadata["name"], metadata["uid"])}

    def gang_of(self, observed: Observed) -> Gang | None:
        """Return the gang of a job; None if its pods are placed one by one.

        Nobody becomes a member later: beside pods from a time without gangs, a member would wait for others.
        """
        served = tuple(kind.api_version for kind in self.kinds)
        gang = read_gang(observed.sized_job, served) if observed.parsed is not None else None
        if gang is None:
            return None
        pods = (p for p in observed.pods if p.replica.role in gang.roles and not p.deleting)
        return gang if all(p.group == gang.name for p in pods) else None

    def gang_size(self, observed: Observed) -> int | None:
        """Return how many of the job's pods get nodes together; None if they are placed one by one."""
        gang = self.gang_of(observed)
        return gang.min_member if gang is not None else None

    def placements(self, observed: Observed) -> Mapping[str, Placement]:
        """Return what makes the job's pods members of its PodGroup."""
        gang = self.gang_of(observed)
        return gang.placements if gang is not None else {}

    def dependents(self, observed: Observed) -> tuple[Manifest, ...]:
        """Return the PodGroup: its scheduler places pods whose group it doesn't know one by one."""
        gang = self.gang_of(observed)
        return () if gang is None else (build_pod_group(observed.effective_job, gang),)

    def actions(self, observed: Observed, status: TrainJobStatus, now: datetime) -> tuple[Action, ...]:
        """Return the write that makes the PodGroup fit this status; a job that doesn't train has none."""
        del now
        found = observed.related.get("PodGroup")
        if found is None or not found.ours:
            return ()
        gang = self.gang_of(observed)
        ref = ObjectRef("PodGroup", observed.meta.namespace, found.name, found.uid, found.api_version)
        if gang is None or not is_to_train(observed, status):
            return (Delete(ref),)
        if found.spec.items() >= gang.size.items():
            return ()
        return (Patch(ref, found.resource_version, {"spec": gang.size}),)
