"""What a TrainJob asks for: roles, output, the whole spec, and how long a job's name may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from trainjob.api.errors import mapping_at
from trainjob.api.fields import (
    Int32,
    KubernetesObject,
    KubernetesObjects,
    Name,
    NotNegative,
    ObjectMeta,
    Part,
    PodTemplate,
    Positive,
    Replicas,
    Whole,
    as_whole_number,
)
from trainjob.api.status import TrainJobStatus

# The roles of a job: workers, chief, parameter servers, evaluator.


NodeSelector = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)]


class Role(Part):
    """How many replicas a role has, and how their pods differ from `spec.template`."""

    replicas: Replicas = Field(1, description="Number of replicas.")
    template: PodTemplate | None = Field(
        None,
        description="A pod template for this role, used instead of spec.template;"
        " see kubectl explain pod.spec.",
    )
    resources: KubernetesObject | None = Field(
        None,
        description="The trainer container's resources, instead of the template's.",
        examples=['{limits: {nvidia.com/gpu: "1"}}'],
    )
    env: KubernetesObjects | None = Field(
        None,
        description="The trainer container's env, instead of the template's.",
        examples=["[{name: TF_CPP_MIN_LOG_LEVEL, value: '1'}]"],
    )
    node_selector: NodeSelector | None = Field(
        None, description="The pod's nodeSelector, instead of the template's.", examples=["{pool: gpu}"]
    )
    tolerations: KubernetesObjects | None = Field(
        None,
        description="The pod's tolerations, instead of the template's.",
        examples=["[{key: gpu, operator: Exists}]"],
    )
    affinity: KubernetesObject | None = Field(
        None, description="The pod's affinity, instead of the template's."
    )
    priority_class_name: Name | None = Field(
        None, description="The pod's priorityClassName, instead of the template's.", examples=["batch-low"]
    )


CONTAINER_FIELDS = {"resources": "resources", "env": "env"}
"""The fields of a role that replace those of its training container, with Kubernetes' names."""

POD_FIELDS = {
    name: field.alias or name
    for name, field in Role.model_fields.items()
    if name not in ("replicas", "template", *CONTAINER_FIELDS)
}
"""The fields of a role that replace those of its pods' specs: all others."""


class MaxAllowed(Part):
    """The most that the resources of a pod are raised to."""

    memory: Annotated[str, Field(min_length=1, max_length=32)] = Field(
        description="The most memory of the trainer container.", examples=["32Gi"]
    )


class WorkerRole(Role):
    """The replicas that train. Worker 0 writes the checkpoints unless there is a chief."""

    replicas: Replicas = Field(1, description="Number of workers; kubectl scale changes it.")
    min_replicas: Replicas | None = Field(
        None, description="The fewest workers that training may continue with. Defaults to replicas."
    )
    max_allowed: MaxAllowed | None = Field(
        None,
        description="The bound up to which the workers' memory limit grows, by half after each out-of-memory"
        " kill. Defaults to no growth.",
        examples=["{memory: 32Gi}"],
    )


class ChiefRole(Role):
    """The one replica that writes checkpoints or, with parameter servers, coordinates the training."""

    replicas: Annotated[int, Field(ge=1, le=1), Int32, Whole] = Field(
        1, description="Number of chiefs, which is 1."
    )


class EvaluatorRole(Role):
    """The replica that scores each checkpoint beside the training."""

    replicas: Annotated[int, Field(ge=0, le=1), Int32, Whole] = Field(
        1, description="Number of evaluators, 1 or 0."
    )
    completion_timeout_seconds: Positive = Field(
        600,
        description="Seconds that the job waits for the evaluator's last result after training has ended.",
    )


# Where a job's checkpoints and logs go.


AccessMode = Literal["ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"]


class Claim(Part):
    """A PersistentVolumeClaim: one that exists (claimName), or one that the job creates (size)."""

    claim_name: Name | None = Field(
        None, description="Name of a claim in the job's namespace.", examples=["training"]
    )
    size: Annotated[str, Field(min_length=1, max_length=32)] | None = Field(
        None, description="Size of a claim that is created for the job.", examples=["10Gi"]
    )
    storage_class_name: Name | None = Field(
        None,
        description="Storage class of the created claim. Defaults to the cluster's default class.",
        examples=["nfs"],
    )
    access_modes: Annotated[tuple[AccessMode, ...], Strict(False), Field(min_length=1, max_length=3)] = Field(
        ("ReadWriteMany",),
        description="Access modes of the created claim, into which all replicas write."
        " Defaults to ReadWriteMany.",
    )
    retain: bool | None = Field(
        None, description="Whether the created claim stays when the job is deleted. Defaults to false."
    )


class Nfs(Part):
    """A folder that an NFS server exports."""

    server: Name = Field(description="Name or address of the NFS server.", examples=["nfs.example.com"])
    path: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        description="Absolute path of the exported folder.", examples=["/exports/training"]
    )


class Credentials(Part):
    """The credentials for a bucket; without them, those that the pod has of its own."""

    secret_name: Name = Field(
        description="A Secret in the job's namespace, whose keys become variables such as AWS_ACCESS_KEY_ID.",
        examples=["bucket-key"],
    )


class Output(Part):
    """Where checkpoints and logs go: exactly one of claim, nfs, csi, uri, emptyDir, ephemeral."""

    claim: Claim | None = Field(
        None, description="A PersistentVolumeClaim.", examples=["{claimName: training}"]
    )
    nfs: Nfs | None = Field(
        None,
        description="A folder of an NFS server.",
        examples=["{server: nfs.example.com, path: /exports/training}"],
    )
    csi: KubernetesObject | None = Field(
        None,
        description="An inline CSI volume, as in a pod.",
        examples=["{driver: csi.example.com}"],
    )
    uri: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None,
        description="A folder in a bucket: s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or az://CONTAINER/FOLDER."
        " The image needs obstore.",
        examples=["s3://results/digits"],
    )
    credentials: Credentials | None = Field(
        None, description="For uri.", examples=["{secretName: bucket-key}"]
    )
    empty_dir: KubernetesObject | None = Field(
        None, description="A volume that ends with its pod; only for a job of one replica.", examples=["{}"]
    )
    ephemeral: KubernetesObject | None = Field(
        None, description="A claim that ends with its pod; only for a job of one replica."
    )
    mount_path: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        "/output", description="Absolute path at which the trainer container has the volume."
    )
    resume: Literal["Auto", "Never"] = Field(
        "Auto",
        description="Auto continues from the newest checkpoint; Never starts over in a new subfolder.",
    )


# Code that isn't in the image.


class Code(Part):
    """Files for the training container, which `trainjob submit` packs into a ConfigMap of the job."""

    config_map: Name = Field(
        description="The ConfigMap with the packed files, in the job's namespace.",
        examples=["digits-code-5ed8a1c0"],
    )
    digest: Annotated[str, Field(min_length=64, max_length=64)] = Field(
        description="SHA-256 of the packed files, in hex; training doesn't start with other files."
    )


# What a TrainJob asks for.


class TrainJobSpec(Part):
    """What is to be trained, by how many replicas, and what happens on failure."""

    worker: WorkerRole = Field(description="The replicas that train.", examples=["{replicas: 2}"])
    chief: ChiefRole | None = Field(
        None,
        description="A replica of its own that writes checkpoints or, with ps, coordinates.",
        examples=["{}"],
    )
    ps: Role | None = Field(
        None,
        description="Parameter servers; their presence means ParameterServer training.",
        examples=["{replicas: 2}"],
    )
    evaluator: EvaluatorRole = Field(
        default_factory=EvaluatorRole,
        description="The replica that scores each checkpoint. Defaults to one.",
        examples=["{replicas: 0}"],
        json_schema_extra={"default": {}},
    )
    output: Output = Field(
        description="The volume of checkpoints and logs.", examples=["{claim: {claimName: training}}"]
    )
    code: Code | None = Field(
        None,
        description="Files that are unpacked into the training container's working directory;"
        " trainjob submit sets this.",
        examples=["{configMap: digits-code-5ed8a1c0, digest: ...}"],
    )
    template: PodTemplate = Field(
        description="The pod template of all roles, with the container that trains named trainer;"
        " see kubectl explain pod.spec.",
        examples=[
            "{spec: {containers: [{name: trainer, image: ghcr.io/acme/digits:1, command: [python, a.py]}]}}",
        ],
    )
    suspend: bool = Field(
        False, description="Whether the job is suspended: it has no pods while this is true."
    )
    active_deadline_seconds: Positive | None = Field(
        None,
        description="Seconds that the job may run, restarts included, before it fails. Defaults to no limit.",
    )
    ttl_seconds_after_finished: NotNegative | None = Field(
        None, description="Seconds after its end until the job is deleted. Defaults to never."
    )
    managed_by: Annotated[str, Field(min_length=1, max_length=63)] | None = Field(
        None,
        description="The controller that manages the job. Defaults to this one.",
        examples=["kueue.x-k8s.io/multikueue"],
    )
    max_restarts: NotNegative = Field(
        3,
        description="Restarts after failures of the program, since the latest progress;"
        " lost nodes don't count.",
    )
    restart_strategy: Literal["InPlace", "Recreate"] = Field(
        "InPlace",
        description="InPlace restarts the training processes in living pods; Recreate replaces all pods.",
    )
    warm_standby: bool = Field(
        False,
        description="Whether a second process waits with TensorFlow imported: restarts are seconds faster, "
        "for 550 MB a pod.",
    )
    start_timeout_seconds: Positive = Field(
        600,
        description="Seconds that a replica may wait for a node; then all replicas release their nodes and "
        "try again.",
    )
    stall_timeout_seconds: Positive | None = Field(
        None,
        description="Seconds without a step until training restarts; the first step, validation and saving"
        " have at least 600. Defaults to never.",
    )


# The whole object.


class TrainJob(Part):
    """TrainJob trains a TensorFlow model with several replicas that survive failures."""

    api_version: Literal["trainjob.dev/v1alpha1"] = Field(
        description="Version of this API.", examples=["trainjob.dev/v1alpha1"]
    )
    kind: Literal["TrainJob"] = Field(description="Kind of the object.", examples=["TrainJob"])
    metadata: ObjectMeta = Field(description="Standard metadata.", examples=["{name: digits}"])
    spec: TrainJobSpec = Field(
        description="The desired state.", examples=["{worker: ..., output: ..., template: ...}"]
    )
    status: TrainJobStatus = Field(
        default_factory=TrainJobStatus, description="The observed state, which only the controller writes."
    )


# How long a job's name may be, so that the names of all its pods fit.


LONGEST_LABEL = 63
"""The longest host name, DNS label and label value (RFC 1123, and Kubernetes after it)."""

HASH_DIGITS = 8
"""A pod's name is its host name, a dash, and this many hex digits."""

LARGEST_ROLE = 1000


@dataclass(frozen=True)
class RoleCounts:
    """How many replicas each role of a job has."""

    worker: int
    chief: int = 0
    ps: int = 0
    evaluator: int = 1

    @property
    def training(self) -> int:
        """How many replicas train: all but the evaluator."""
        return self.worker + self.chief + self.ps

    @property
    def is_single(self) -> bool:
        """Whether the whole job is one pod."""
        return self.worker + self.chief + self.ps + self.evaluator == 1

    def longest_suffix(self) -> str:
        """Return the longest thing that a replica's host name adds to the job's name."""
        return max(self._last_suffixes(), key=len, default="")

    def _last_suffixes(self) -> Iterator[str]:
        # The first of equally long ones is named in messages: the evaluator's, since it is easily forgotten.
        for role in ("evaluator", "worker", "chief", "ps"):
            if count := getattr(self, role):
                yield f"-{role}-{count - 1}"


def count_roles(spec: TrainJobSpec) -> RoleCounts:
    """Count the replicas of each role."""
    return RoleCounts(
        worker=spec.worker.replicas,
        chief=spec.chief.replicas if spec.chief else 0,
        ps=spec.ps.replicas if spec.ps else 0,
        evaluator=spec.evaluator.replicas,
    )


def count_raw_roles(raw: Mapping[str, Any]) -> RoleCounts | None:
    """Count the replicas of each role in plain JSON, or return None where a count isn't one."""
    spec = mapping_at(raw, "spec")
    counts: dict[str, int] = {}
    for role, when_absent in (("worker", 1), ("chief", 0), ("ps", 0), ("evaluator", 1)):
        if role not in spec:
            counts[role] = when_absent
            continue
        count = as_whole_number(mapping_at(spec, role).get("replicas", 1))
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= LARGEST_ROLE:
            return None
        counts[role] = count
    return RoleCounts(**counts)


def room_for_name(counts: RoleCounts) -> int:
    """Return how many characters the job's name may have."""
    return LONGEST_LABEL - len(counts.longest_suffix()) - 1 - HASH_DIGITS


def longest_name(spec: TrainJobSpec) -> int:
    """Return how many characters `metadata.name` may have with this spec.

    The longest name made from it is a pod's: `<name>-<role>-<index>-<8 hex digits>`.
    """
    return room_for_name(count_roles(spec))
