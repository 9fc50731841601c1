"""What the fields of the model share: strictness, camelCase names, integers with Kubernetes' ranges.

Every description is read by people who never see this code: it becomes the text of `kubectl explain`, of the
CustomResourceDefinition, of the editors' JSON schema and of the reference page. One sentence, no line breaks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, Strict
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from trainjob.api.constants import INT32_MAX


class Part(BaseModel):
    """A part that users write: frozen, unknown fields refused, no scalar turned into another."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        defer_build=True,
    )


class Reported(Part):
    """A part that we or the API server write: a newer version may have added fields, so they are ignored."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True)
class Longest:
    """Annotates a text of the status with the most characters that are written.

    The schema has it as `maxLength`. A longer text is read all the same, so that a status of an earlier
    version is never taken for a damaged one.
    """

    characters: int

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the text's schema with its length."""
        return {**handler(core_schema), "maxLength": self.characters}


def as_whole_number(value: object) -> object:
    """Return 2.0 as 2, since JSON has one kind of number and the API server takes either for an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:[eE]([+-]?[0-9]+)|([KMGTPE]i)|([numkMGTPE]?))"
)
_POWERS = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_EXPONENTS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def read_quantity(text: str) -> Decimal | None:
    """Return the number that a quantity of Kubernetes, such as `500m` or `2Gi`, stands for; None for none.

    Source: `k8s.io/apimachinery/pkg/api/resource`.
    """
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return None
    number, exponent, binary, unit = found.groups()
    try:
        if binary:
            return Decimal(number) * Decimal(2) ** (10 * _POWERS[binary])
        return Decimal(f"{number}e{exponent or _EXPONENTS[unit or '']}")
    except ArithmeticError:
        return None


Whole = BeforeValidator(as_whole_number)
Int32 = Field(json_schema_extra={"format": "int32"})

Replicas = Annotated[int, Field(ge=1, le=1000), Int32, Whole]
Positive = Annotated[int, Field(ge=1, le=INT32_MAX), Int32, Whole]
NotNegative = Annotated[int, Field(ge=0, le=INT32_MAX), Int32, Whole]
Int64 = Annotated[int, Field(json_schema_extra={"format": "int64"}), Whole]
Name = Annotated[str, Field(min_length=1, max_length=253)]

PRESERVED = "x-kubernetes-preserve-unknown-fields"

KubernetesObject = Annotated[dict[str, Any], Field(json_schema_extra={"type": "object", PRESERVED: True})]
"""An object whose fields are Kubernetes' own; the API server checks them when the pod is created."""

KubernetesObjects = Annotated[tuple[KubernetesObject, ...], Strict(False), Field(max_length=256)]

PodTemplate = KubernetesObject
"""A PodTemplateSpec as plain JSON."""


# What we read of an object's metadata; the rest is the API server's.


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
    deletion_timestamp: Timestamp | None = Field(
        None, description="Set by the cluster: the job is being deleted."
    )
    labels: dict[str, str] = Field(default_factory=dict, description="Labels of the job.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the job.")
