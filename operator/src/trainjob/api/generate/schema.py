"""The model's JSON schema, written out: no references, no choices with null, no titles.

That is the form a structural schema must have (Kubernetes, "Specifying a structural schema").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT = (
    "type",
    "format",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "default",
    "description",
    "x-kubernetes-preserve-unknown-fields",
    "required",
    "additionalProperties",
    "items",
    "properties",
)


def written_out(model: type[BaseModel]) -> Schema:
    """Return the schema of a model with everything in its place, keys in one fixed order."""
    whole = model.model_json_schema(by_alias=True)
    return _resolved(whole, whole.get("$defs", {}))


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    flat = dict(schema)
    while "anyOf" in flat or "$ref" in flat:
        said = {key: value for key, value in flat.items() if key not in ("anyOf", "$ref")}
        flat = _inner(flat, definitions) | said
    if "const" in flat:
        flat["enum"] = [flat["const"]]
    # True and False add nothing: unknown fields are pruned, or kept where they are preserved.
    if isinstance(flat.get("additionalProperties"), bool):
        del flat["additionalProperties"]
    for key in ("items", "additionalProperties"):
        if key in flat:
            flat[key] = _resolved(flat[key], definitions)
    if "properties" in flat:
        flat["properties"] = {
            name: _resolved(field, definitions) for name, field in flat["properties"].items()
        }
    return {key: flat[key] for key in _KEPT if key in flat and flat[key] is not None}


def _inner(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Return what a schema refers to; a choice is always between something and null."""
    if "$ref" in schema:
        return dict(definitions[schema["$ref"].rsplit("/", 1)[-1]])
    (choice,) = (choice for choice in schema["anyOf"] if choice.get("type") != "null")
    # A null in the outer schema is the default of an optional field, which stays unsaid.
    return dict(choice)


def schema_at(root: Schema, path: str) -> Schema:
    """Return the part of a schema at a path such as `spec.template.spec.containers[].name`."""
    part = root
    for word in path.split(".") if path else ():
        name = word.removesuffix("[]")
        part = part["properties"][name]
        if word != name:
            part = part["items"]
    return part


def walk(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every part of a schema with its path; `[]` stands for items, `[*]` for values of a map."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from walk(field, f"{path}.{name}" if path else name)
    for key, mark in (("items", "[]"), ("additionalProperties", "[*]")):
        if isinstance(schema.get(key), dict):
            yield from walk(schema[key], path + mark)
