"""Names, labels, addresses and folders of a job's objects, and TF_CONFIG as TensorFlow documents it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from trainjob.api import GROUP, KIND, PORT, VERSION, TrainJob, TrainJobSpec
from trainjob_trainer.contract.replicas import EVALUATOR

# References to a TrainJob and to the objects that belong to it.


@dataclass(frozen=True, order=True)
class JobKey:
    """The namespace and name of a TrainJob."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class ObjectRef:
    """A reference to one object, never to a later one of the same name.

    Attributes:
        kind: `Pod`, `Service`, `PersistentVolumeClaim`, `NetworkPolicy`, `Secret`, `Workload`, `PodGroup` or
            `TrainJob`.
        uid: the precondition of every write: an object of the same name with another uid stays unchanged.
            Empty for a Secret: it is never read, and its name is used for one job only.
        api_version: of a kind that several APIs have; else empty.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    api_version: str = ""


# Owners of the objects that are created for a job.


def owner_references(job: TrainJob) -> list[dict[str, Any]]:
    """Return the `ownerReferences` by which an object is deleted together with its job."""
    return [
        {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": job.metadata.name,
            "uid": job.metadata.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def controller_uid(manifest: Mapping[str, Any]) -> str | None:
    """Return the uid of the object that controls this one, or None; labels prove no owner."""
    for owner in manifest.get("metadata", {}).get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner.get("uid"))
    return None


# Names and labels of what belongs to a job (design: "what a pod can rely on").


LABEL_JOB = "trainjob.dev/job"
LABEL_ROLE = "trainjob.dev/role"
LABEL_INDEX = "trainjob.dev/index"
LABEL_INCARNATION = "trainjob.dev/incarnation"
LABEL_LIVE = "trainjob.dev/live"
"""On the pods that the job's Service selects; removed from a pod before its successor is created."""

LABEL_PROGRAM = "trainjob.dev/agent-program"
"""On the ConfigMaps with the agent's program."""

LABEL_OUTPUT_READER = "trainjob.dev/output-reader"
"""On pods that read a job's output for somebody: no replica, and not let in to the replicas."""

AVOIDED_NODES = "trainjob.dev/avoided-nodes"
"""An annotation of pods: the nodes, separated by commas, that were lost when the pod was created."""

FUNCTION = "trainjob.dev/function"
"""An annotation of a function's job: its `identity` (docs/contract.md); its package differs each time."""

QUEUE_NAME = "kueue.x-k8s.io/queue-name"
"""On a job: the Kueue queue that admits its pods."""

PREBUILT = "kueue.x-k8s.io/prebuilt-workload-name"
"""On a job, as a label or an annotation: the Workload that was made for it."""

TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
"""A scheduling gate: Kueue takes it off a pod when it gives the pod the labels of its node."""

GROUP_NAME_LABEL = "scheduling.x-k8s.io/pod-group"
"""On a pod: its PodGroup, for the scheduler with scheduler-plugins' coscheduling."""

GROUP_NAME_ANNOTATION = "scheduling.k8s.io/group-name"
"""The same, for Volcano's scheduler: an annotation."""

LABEL_RESTORED = "velero.io/restore-name"
"""On all that Velero restores from a backup: a job comes back under another uid and without its status."""

MANAGER = "trainjob"

CONTROLLER_LABELS = {"app.kubernetes.io/name": MANAGER, "app.kubernetes.io/component": "controller"}
"""On the controller's own pods."""


@dataclass(frozen=True, order=True)
class Replica:
    """One replica of a job; pods replace each other in it."""

    role: str
    index: int

    @property
    def name(self) -> str:
        """Return `worker-0`, for logs, table rows and file names."""
        return f"{self.role}-{self.index}"

    @property
    def title(self) -> str:
        """Return `worker 0`, for sentences."""
        return f"{self.role} {self.index}"


def hostname(job: str, replica: Replica) -> str:
    """Return the pod's hostname, the same for every pod of this replica."""
    return f"{job}-{replica.name}"


def pod_name(job: str, uid: str, replica: Replica, incarnation: int) -> str:
    """Return a name that no other job or incarnation uses, so that a lost pod never blocks its successor."""
    digest = hashlib.sha256(f"{uid}/{replica.name}/{incarnation}".encode()).hexdigest()
    return f"{hostname(job, replica)}-{digest[:8]}"


def job_labels(job: str) -> dict[str, str]:
    """Return the labels of all objects that belong to the job."""
    return {
        "app.kubernetes.io/name": "trainjob",
        "app.kubernetes.io/instance": job,
        "app.kubernetes.io/managed-by": MANAGER,
        LABEL_JOB: job,
    }


def pod_labels(job: str, replica: Replica, incarnation: int) -> dict[str, str]:
    """Return the labels of one pod."""
    return {
        **job_labels(job),
        "app.kubernetes.io/component": replica.role,
        LABEL_ROLE: replica.role,
        LABEL_INDEX: str(replica.index),
        LABEL_INCARNATION: str(incarnation),
        LABEL_LIVE: "true",
    }


# The replicas of a job.


def replica_counts(spec: TrainJobSpec) -> dict[str, int]:
    """Return the number of replicas of each role that has any, in order of creation."""
    counts = {
        "chief": spec.chief.replicas if spec.chief else 0,
        "worker": spec.worker.replicas,
        "ps": spec.ps.replicas if spec.ps else 0,
        EVALUATOR: spec.evaluator.replicas,
    }
    return {role: count for role, count in counts.items() if count}


def desired_replicas(spec: TrainJobSpec) -> tuple[Replica, ...]:
    """Return every replica of the job, in order of creation."""
    return tuple(Replica(role, i) for role, count in replica_counts(spec).items() for i in range(count))


def training_replicas(spec: TrainJobSpec) -> tuple[Replica, ...]:
    """Return every replica that takes part in training, in order of creation."""
    return tuple(replica for replica in desired_replicas(spec) if is_training(replica))


def training_counts(spec: TrainJobSpec) -> dict[str, int]:
    """Return the number of replicas of each training role."""
    return {role: count for role, count in replica_counts(spec).items() if role != EVALUATOR}


def is_training(replica: Replica) -> bool:
    """Return whether the replica takes part in training."""
    return replica.role != EVALUATOR


def leader(spec: TrainJobSpec) -> Replica:
    """Return the replica that writes checkpoints and whose progress is the job's."""
    return Replica("chief" if spec.chief else "worker", 0)


def finishing_roles(spec: TrainJobSpec) -> tuple[str, ...]:
    """Return the roles whose exit 0 ends the training; parameter servers run until they are stopped."""
    if spec.ps and spec.chief:
        return ("chief",)
    return ("chief", "worker")


# Addresses, and TF_CONFIG in TensorFlow's documented form.
#
# Source: https://www.tensorflow.org/guide/distributed_training#TF_CONFIG


_TASK = ',"task":'
_WORLD = "world"


def address(job: TrainJob, replica: Replica) -> str:
    """Return `host:port` of a replica, the same for each of its pods."""
    return f"{host(job, replica)}:{PORT}"


def build_tf_config(job: TrainJob, replica: Replica) -> str:
    """Return the value of TF_CONFIG for one replica, as compact JSON."""
    counts = tuple(replica_counts(job.spec).items())
    cluster = _cluster_text(job.metadata.namespace, job.metadata.name, counts)
    task = _dump({"type": replica.role, "index": replica.index})
    return f'{{"cluster":{cluster}{_TASK}{task}}}'


def host(job: TrainJob, replica: Replica) -> str:
    """Return the DNS name of a replica, the same for each of its pods."""
    return _host(job.metadata.namespace, job.metadata.name, replica)


def _host(namespace: str, job: str, replica: Replica) -> str:
    return f"{hostname(job, replica)}.{job}.{namespace}.svc"


@lru_cache(maxsize=16)
def _cluster_text(namespace: str, job: str, counts: tuple[tuple[str, int], ...]) -> str:
    """Return every replica's address by role; the evaluator is listed, but workers don't wait for it.

    The text is the same for all pods of a job: to build it for each of 2,000 pods takes ten seconds.
    """
    return _dump(
        {
            role: [f"{_host(namespace, job, Replica(role, i))}:{PORT}" for i in range(count)]
            for role, count in counts
        }
    )


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def training_world(tf_config: str) -> Mapping[str, int] | None:
    """Return the number of replicas of each training role in this TF_CONFIG, or None if it isn't ours."""
    cluster, task, _ = tf_config.rpartition(_TASK)
    world = _read_world(f"{cluster}}}") if task else None  # the same text in all of a job's pods
    return world if world is not None else _read_world(tf_config)


def shorten_tf_config(tf_config: str) -> str:
    """Return a text without addresses from which `training_world` reads the same."""
    return _dump({_WORLD: training_world(tf_config)})


@lru_cache(maxsize=64)
def _read_world(text: str) -> Mapping[str, int] | None:
    try:
        read: Any = json.loads(text)
        if _WORLD in read:
            return {role: count for role, count in read[_WORLD].items() if isinstance(count, int)}
        return {role: len(addresses) for role, addresses in read["cluster"].items() if role != EVALUATOR}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


# The output of a job: the volume of `spec.output` and the folders in it.


VOLUME = "trainjob-output"


def folder_name(job: TrainJob) -> str:
    """Return the job's folder within its output; if `resume` is `Never`, each job has a new one."""
    if job.spec.output.resume == "Never":
        return f"{job.metadata.name}-{hashlib.sha256(job.metadata.uid.encode()).hexdigest()[:8]}"
    return job.metadata.name


def root_folder(job: TrainJob) -> str:
    """Return the job's whole output folder, as a path in the container."""
    return f"{job.spec.output.mount_path.rstrip('/')}/{folder_name(job)}"


def output_uri(job: TrainJob) -> str:
    """Return the address of the job's output folder in its bucket; empty if the output is on a volume."""
    uri = job.spec.output.uri
    return f"{uri.rstrip('/')}/{folder_name(job)}" if uri else ""


def shown_output(job: TrainJob) -> str:
    """Return where the output is, as people are told: its address in a bucket, or its folder in the pods."""
    return output_uri(job) or root_folder(job)


def reported_checkpoint(job: TrainJob) -> int | None:
    """Return the step of the newest reported checkpoint, if a new pod has to find it again.

    A volume that is deleted with its pod may be empty, and so may a folder other than the one in the report.
    """
    output, known = job.spec.output, job.status.output
    if known is None or known.path != shown_output(job):
        return None
    is_the_pods_own = output.empty_dir is not None or output.ephemeral is not None
    return None if is_the_pods_own else known.checkpoint_step


def has_own_volumes(job: TrainJob) -> bool:
    """Return whether each pod has an output volume of its own, which is deleted with it."""
    return job.spec.output.empty_dir is not None or job.spec.output.ephemeral is not None


def claim_name(job: TrainJob) -> str | None:
    """Return the name of the claim that holds the output: the user's, or the one created for the job."""
    claim = job.spec.output.claim
    if claim is None:
        return None
    return claim.claim_name or f"{job.metadata.name}-output"
