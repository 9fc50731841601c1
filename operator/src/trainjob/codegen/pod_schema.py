"""Kubernetes' schema of pod templates, cut down to what `trainjob validate` checks.

The source is what an API server answers at `/openapi/v3/api/v1`: unlike the files in Kubernetes' repository,
it has the values that a text may have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

PATH = "operator/src/trainjob/api/pod_schema.json"

_ROOT = "io.k8s.api.core.v1.PodTemplateSpec"
_SCALARS = {"string", "boolean", "object"}


def pod_schema_text(openapi: Mapping[str, Any]) -> str:
    """Return the schema as JSON, one line a type.

    A field's type is the name of a type or of a scalar; `[type]` is a list, `{"*": type}` a map, and
    `{"enum": [...]}` a text with one of these values.

    Args:
        openapi: an API server's OpenAPI v3 document of the group `core/v1`.

    Raises:
        ValueError: it describes a field in a way that isn't known here.
    """
    schemas, version = openapi["components"]["schemas"], re.match(r"v?(\d+\.\d+)", openapi["info"]["version"])
    if version is None:
        raise ValueError(f"the API server's version is {openapi['info']['version']!r}")
    types: dict[str, dict[str, Any]] = {}
    waiting = [_ROOT]
    while waiting:
        kind = waiting.pop()
        if (name := _short(kind)) not in types and "properties" in schemas[kind]:
            properties = schemas[kind]["properties"]
            types[name] = {
                "fields": {
                    field: _type_of(properties[field], schemas, waiting) for field in sorted(properties)
                },
                "required": sorted(schemas[kind].get("required", ())),
            }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(types[name])}" for name in sorted(types))
    return f'{{"kubernetes": "{version[1]}", "types": {{\n{lines}\n}}}}\n'


def _type_of(schema: Mapping[str, Any], schemas: Mapping[str, Any], waiting: list[str]) -> Any:
    (reference,) = schema.get("allOf", [schema])
    if "$ref" in reference:
        kind = reference["$ref"].rsplit("/", 1)[-1]
        if "properties" not in schemas[kind] and "oneOf" not in schemas[kind]:
            return schemas[kind]["type"]  # a time, or an object with any fields
        waiting.append(kind)
        return _short(kind)
    if "enum" in schema:
        return {"enum": sorted(schema["enum"])}
    if schema["type"] == "array":
        return [_type_of(schema["items"], schemas, waiting)]
    if "additionalProperties" in schema:
        return {"*": _type_of(schema["additionalProperties"], schemas, waiting)}
    if schema["type"] == "integer":
        return schema["format"]
    if schema["type"] not in _SCALARS:
        raise ValueError(f"a field of type {schema['type']!r}")
    return schema["type"]


def _short(kind: str) -> str:
    return kind.rsplit(".", 1)[-1]
