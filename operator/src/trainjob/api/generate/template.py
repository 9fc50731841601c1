"""The part of a pod template that the API server must see, so that rules can speak of it."""

from __future__ import annotations

from typing import Any

from trainjob.api.fields import PRESERVED

Schema = dict[str, Any]

# CEL's cost is estimated from these bounds; without them the API server refuses the rules.
_MOST_CONTAINERS = 32
_MOST_ENTRIES = 256
_LONGEST_TEXT = 1024


def _text(longest: int = _LONGEST_TEXT) -> Schema:
    return {"type": "string", "maxLength": longest}


def _list_of(name: str, most: int = _MOST_ENTRIES) -> Schema:
    item = {"type": "object", PRESERVED: True, "properties": {name: _text()}, "required": [name]}
    return {"type": "array", "maxItems": most, "items": item}


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
            "env": _list_of("name"),
            "volumeMounts": _list_of("mountPath", 64),
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
        PRESERVED: True,
        "required": ["containers"],
        "properties": {
            "restartPolicy": {"type": "string", "maxLength": 16},
            "hostNetwork": {"type": "boolean"},
            "hostname": _text(),
            "subdomain": _text(),
            "volumes": _list_of("name"),
            "containers": containers,
        },
    }
    metadata = {
        "type": "object",
        PRESERVED: True,
        "properties": {"labels": _texts(), "annotations": _texts()},
    }
    return {
        "type": "object",
        "description": description,
        PRESERVED: True,
        "required": ["spec"],
        "properties": {"metadata": metadata, "spec": pod},
    }
