"""The roles of a job: workers, chief, parameter servers, evaluator."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainjob.api.fields import (
    Int32,
    KubernetesObject,
    KubernetesObjects,
    Name,
    Part,
    PodTemplate,
    Positive,
    Replicas,
    Whole,
)

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
        description="Replaces the trainer container's resources.",
        examples=['{limits: {nvidia.com/gpu: "1"}}'],
    )
    env: KubernetesObjects | None = Field(
        None,
        description="Replaces the trainer container's env.",
        examples=["[{name: TF_CPP_MIN_LOG_LEVEL, value: '1'}]"],
    )
    node_selector: NodeSelector | None = Field(
        None, description="Replaces the pod's nodeSelector.", examples=["{pool: gpu}"]
    )
    tolerations: KubernetesObjects | None = Field(
        None, description="Replaces the pod's tolerations.", examples=["[{key: gpu, operator: Exists}]"]
    )
    affinity: KubernetesObject | None = Field(None, description="Replaces the pod's affinity.")
    priority_class_name: Name | None = Field(
        None, description="Replaces the pod's priorityClassName.", examples=["batch-low"]
    )


class WorkerRole(Role):
    """The replicas that train. Worker 0 writes the checkpoints unless there is a chief."""

    replicas: Replicas = Field(1, description="Number of workers; kubectl scale changes it.")
    min_replicas: Replicas | None = Field(
        None, description="The fewest workers that training may go on with; absent: as many as replicas."
    )


class ChiefRole(Role):
    """The one replica that writes checkpoints or, with parameter servers, coordinates the training."""

    replicas: Annotated[int, Field(ge=1, le=1), Int32, Whole] = Field(1, description="There is one chief.")


class EvaluatorRole(Role):
    """The replica that scores each checkpoint beside the training."""

    replicas: Annotated[int, Field(ge=0, le=1), Int32, Whole] = Field(
        1, description="1 for an evaluator, 0 for none."
    )
    completion_timeout_seconds: Positive = Field(
        600, description="How long the job waits for the evaluator's last result after training has ended."
    )
