"""The JSON schema that editors complete and check TrainJobs by."""

from __future__ import annotations

import json
from typing import Any

from trainjob.api.fields import PRESERVED
from trainjob.api.generate.crd import object_schema
from trainjob.api.generate.schema import Schema
from trainjob.api.group import API_VERSION, KIND
from trainjob.api.rules.name import NAME_FORM

_KUBERNETES_WORDS = "x-kubernetes-"


def editor_schema() -> Schema:
    """Return the schema of a TrainJob as a person writes it: without status, unknown fields refused."""
    schema = _closed(object_schema())
    fields = schema["properties"]
    del fields["status"]
    fields["apiVersion"] = {"const": API_VERSION}
    fields["kind"] = {"const": KIND}
    fields["metadata"] = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string", "pattern": NAME_FORM, "maxLength": 45}},
    }
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": KIND, **schema}


def editor_schema_text() -> str:
    """Return `docs/reference/trainjob.schema.json`."""
    return json.dumps(editor_schema(), indent=1, ensure_ascii=False) + "\n"


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items() if not key.startswith(_KUBERNETES_WORDS)}
    if "properties" in schema and isinstance(schema.get("type"), str) and not schema.get(PRESERVED):
        closed["additionalProperties"] = False
    return closed
