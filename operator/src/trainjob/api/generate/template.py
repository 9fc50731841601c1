"""The part of a pod template that the API server must see, so that rules can speak of it."""

from __future__ import annotations

from typing import Any

from trainjob.api.fields import PRESERVED
from trainjob.api.generate.pod_fields import name_fields
from trainjob.api.rules.shape import LONGEST_TEXT

Schema = dict[str, Any]

# CEL's cost is estimated from these bounds; without them the API server refuses the rules.
_MOST_CONTAINERS = 32
_MOST_ENTRIES = 256


METADATA = "Labels and annotations of the pods."
POD_SPEC = "Of the pods; kubectl explain pod.spec has its fields."


def _text(longest: int = LONGEST_TEXT) -> Schema:
    return {"type": "string", "maxLength": longest}


def named_item(kind: str, name: str) -> Schema:
    """Return the schema of one of Kubernetes' own objects that rules know by this field."""
    item = {"type": "object", PRESERVED: True, "properties": {name: _text()}, "required": [name]}
    name_fields(item, kind)
    return item


def _list_of(kind: str, name: str, most: int = _MOST_ENTRIES) -> Schema:
    return {"type": "array", "maxItems": most, "items": named_item(kind, name)}


def _texts() -> Schema:
    return {"type": "object", "maxProperties": _MOST_ENTRIES, "additionalProperties": {"type": "string"}}


def template_schema(description: str) -> Schema:
    """Return the schema of `spec.template`: containers as a map by name, all else kept as it is."""
    container = {
        "type": "object",
        PRESERVED: True,
        "required": ["name"],
        "properties": {
            "name": _text(63),
            "command": {"type": "array", "items": {"type": "string"}},
            "env": _list_of("EnvVar", "name"),
            "volumeMounts": _list_of("VolumeMount", "mountPath", 64),
        },
    }
    containers = {
        "type": "array",
        "maxItems": _MOST_CONTAINERS,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": container,
    }
    pod = {
        "type": "object",
        "description": POD_SPEC,
        PRESERVED: True,
        "required": ["containers"],
        "properties": {
            "restartPolicy": {"type": "string", "maxLength": 16},
            "hostNetwork": {"type": "boolean"},
            "hostname": _text(),
            "subdomain": _text(),
            "volumes": _list_of("Volume", "name"),
            "containers": containers,
        },
    }
    metadata = {
        "type": "object",
        "description": METADATA,
        PRESERVED: True,
        "properties": {"labels": _texts(), "annotations": _texts()},
    }
    name_fields(container, "Container")
    name_fields(pod, "PodSpec")
    return {
        "type": "object",
        "description": description,
        PRESERVED: True,
        "required": ["spec"],
        "properties": {"metadata": metadata, "spec": pod},
    }
