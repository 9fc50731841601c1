"""The whole object."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainjob.api.fields import Part
from trainjob.api.metadata import ObjectMeta
from trainjob.api.spec import TrainJobSpec
from trainjob.api.status import TrainJobStatus


class TrainJob(Part):
    """TrainJob trains a TensorFlow model with several replicas that survive failures."""

    api_version: Literal["trainjob.dev/v1alpha1"] = Field(
        description="Version of this form.", examples=["trainjob.dev/v1alpha1"]
    )
    kind: Literal["TrainJob"] = Field(description="Kind of the object.", examples=["TrainJob"])
    metadata: ObjectMeta = Field(description="Standard metadata.", examples=["{name: digits}"])
    spec: TrainJobSpec = Field(
        description="What is wanted.", examples=["{worker: ..., output: ..., template: ...}"]
    )
    status: TrainJobStatus = Field(
        default_factory=TrainJobStatus, description="What the controller last saw; set by it alone."
    )
