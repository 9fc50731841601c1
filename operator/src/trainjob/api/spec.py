"""What a TrainJob asks for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainjob.api.fields import NotNegative, Part, PodTemplate, Positive
from trainjob.api.output import Output
from trainjob.api.roles import ChiefRole, EvaluatorRole, Role, WorkerRole


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
        description="The replica that scores each checkpoint; there is one by default.",
        examples=["{replicas: 0}"],
        json_schema_extra={"default": {}},
    )
    output: Output = Field(
        description="Where checkpoints and logs go.", examples=["{claim: {claimName: training}}"]
    )
    template: PodTemplate = Field(
        description="The pod template of all roles, with the container that trains named trainer;"
        " see kubectl explain pod.spec.",
        examples=[
            "{spec: {containers: [{name: trainer, image: ghcr.io/acme/digits:1, command: [python, a.py]}]}}",
        ],
    )
    suspend: bool = Field(False, description="Stops the pods, or doesn't create them, until it is false.")
    active_deadline_seconds: Positive | None = Field(
        None, description="The job fails when it has run for longer than this, restarts included."
    )
    ttl_seconds_after_finished: NotNegative | None = Field(
        None, description="The job is deleted this long after it has finished; absent: it stays."
    )
    managed_by: Annotated[str, Field(min_length=1, max_length=63)] | None = Field(
        None,
        description="The controller that looks after the job; absent: this one.",
        examples=["kueue.x-k8s.io/multikueue"],
    )
    max_restarts: NotNegative = Field(
        3,
        description="Restarts after failures of the program, anew after progress; lost nodes don't count.",
    )
    restart_strategy: Literal["InPlace", "Recreate"] = Field(
        "InPlace",
        description="InPlace restarts the training processes in living pods; Recreate replaces all pods.",
    )
    warm_standby: bool = Field(
        False,
        description="Keeps the next training process ready, TensorFlow imported: a restart is seconds sooner,"
        " for some 550 MB a pod.",
    )
    start_timeout_seconds: Positive = Field(
        600, description="How long the training replicas may take to meet before they give way and try again."
    )
    stall_timeout_seconds: Positive | None = Field(
        None,
        description="Restarts training after this long without a step; "
        "a process's first, validation and saving have at least 600 s.",
    )
