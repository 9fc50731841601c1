"""What we read of an object's metadata; the rest is the API server's."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, Strict

from trainjob.api.fields import Int64, Reported

Timestamp = Annotated[datetime, Strict(False)]


class ObjectMeta(Reported):
    """The standard metadata, as far as it is read here."""

    name: str = Field(
        description="Name of the job; its pods' names and addresses begin with it.", examples=["digits"]
    )
    namespace: str = Field("default", description="Namespace of the job and of all its pods.")
    uid: str = Field("", description="Set by the cluster.")
    generation: Int64 = Field(0, description="Set by the cluster; grows with each change of the spec.")
    resource_version: str = Field("", description="Set by the cluster; grows with each write.")
    creation_timestamp: Timestamp | None = Field(None, description="Set by the cluster.")
    deletion_timestamp: Timestamp | None = Field(None, description="Set by the cluster: it is going.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels of the job.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the job.")
