"""The CustomResourceDefinition, from the typed model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from pydantic import BaseModel

from trainjob.api.constants import GROUP, KIND, LIST_KIND, PLURAL, SHORT_NAME, SINGULAR, VERSION
from trainjob.api.fields import PRESERVED
from trainjob.api.rules import output, size, spec, template
from trainjob.api.rules.rule import Rule
from trainjob.api.rules.shape import LONGEST_TEXT
from trainjob.api.rules.template import ROLES
from trainjob.api.types import TrainJob
from trainjob.api.yaml import dump_yaml
from trainjob.installation.crd_update import VERSION_ANNOTATION

# The field names of Kubernetes objects in a TrainJob, so that the API server compares all fields.
#
# If fields are preserved but not in the schema, `==` in a rule is true for two objects that have equally
# many fields and none in common: `command` could be changed into `args` although the template is immutable
# (`unstructuredMap.Equal` in k8s.io/apiserver/pkg/cel/common/values.go, Kubernetes 1.34). If its name is in
# the schema, a missing field is noticed, and everything below it is compared, as below a field of any type.


Schema = dict[str, Any]

_PODS = json.loads((files("trainjob.api") / "pod_schema.json").read_text(encoding="utf-8"))["types"]
_REMOVED = {"PodSpec": ("workloadRef",)}
"""Fields of older versions of Kubernetes (this one of 1.35 alone), which `pod_schema.json` doesn't have."""

FIELDS: dict[str, tuple[str, ...]] = {
    kind: (*_PODS[kind]["fields"], *_REMOVED.get(kind, ()))
    for kind in (
        *("PodTemplateSpec", "PodSpec", "Container", "EnvVar", "VolumeMount", "Volume"),
        *("ResourceRequirements", "Toleration", "Affinity"),
        *("CSIVolumeSource", "EmptyDirVolumeSource", "EphemeralVolumeSource"),
    )
}
"""By Kubernetes' name of the kind."""


def name_fields(schema: Schema, kind: str) -> None:
    """Add the fields of this kind that the schema doesn't have yet; they accept any value."""
    fields = schema.setdefault("properties", {})
    for field in FIELDS[kind]:
        fields.setdefault(field, {PRESERVED: True})


# The model's JSON schema in structural form: no references, no choices with null, no titles.
#
# Kubernetes requires this form ("Specifying a structural schema").


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
    """Return the schema of a model with all references resolved, and keys in a fixed order."""
    whole = model.model_json_schema(by_alias=True)
    return _resolved(whole, whole.get("$defs", {}))


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    flat = dict(schema)
    while "anyOf" in flat or "$ref" in flat:
        outer = {key: value for key, value in flat.items() if key not in ("anyOf", "$ref")}
        if "$ref" in flat:
            inner = definitions[flat["$ref"].rsplit("/", 1)[-1]]
        else:  # null besides the one choice is the default of an optional field, which is left out
            (inner,) = (choice for choice in flat["anyOf"] if choice.get("type") != "null")
        flat = {**inner, **outer}
    if "const" in flat:
        flat["enum"] = [flat["const"]]
    # True and False add nothing: unknown fields are pruned unless they are preserved.
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
    for key, field in schema.get("properties", {}).items():
        yield from walk(field, f"{path}.{key}" if path else key)
    for key, mark in (("items", "[]"), ("additionalProperties", "[*]")):
        if isinstance(schema.get(key), dict):
            yield from walk(schema[key], path + mark)


# The part of a pod template that must be in the schema, because rules refer to it.


# CEL's cost is estimated from these bounds; without them the API server refuses the rules.
_MOST_CONTAINERS = 32
_MOST_ENTRIES = 256


METADATA = "Labels and annotations of the pods."
POD_SPEC = "Of the pods; kubectl explain pod.spec has its fields."


def _text(longest: int = LONGEST_TEXT) -> Schema:
    return {"type": "string", "maxLength": longest}


def named_item(kind: str, name: str) -> Schema:
    """Return the schema of a Kubernetes object that rules identify by this field."""
    item = {"type": "object", PRESERVED: True, "properties": {name: _text()}, "required": [name]}
    name_fields(item, kind)
    return item


def _list_of(kind: str, name: str, most: int = _MOST_ENTRIES) -> Schema:
    return {"type": "array", "maxItems": most, "items": named_item(kind, name)}


def _texts() -> Schema:
    return {"type": "object", "maxProperties": _MOST_ENTRIES, "additionalProperties": {"type": "string"}}


def template_schema(description: str) -> Schema:
    """Return the schema of `spec.template`: containers as a map by name, all other fields preserved."""
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
            "dnsPolicy": {"type": "string", "maxLength": 32},
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


# The CustomResourceDefinition.


RULES: tuple[Rule, ...] = (
    *spec.RULES,
    *output.RULES,
    *template.RULES,
    *size.RULES,
    *spec.IMMUTABLE_RULES,
)

COLUMNS = (
    {"name": "State", "type": "string", "jsonPath": ".status.state"},
    {"name": "Workers", "type": "string", "jsonPath": ".status.worker.summary"},
    {"name": "Step", "type": "integer", "jsonPath": ".status.progress.step"},
    {"name": "ETA", "type": "string", "jsonPath": ".status.progress.eta"},
    {"name": "Restarts", "type": "integer", "jsonPath": ".status.restarts.counted"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
)

_HEADER = "# Generated from operator/src/trainjob/api by `make generate`; edit it there.\n"


def object_schema() -> Schema:
    """Return the structural schema of the whole object, with the rules for the API server."""
    schema = written_out(TrainJob)
    fields = schema["properties"]
    fields["apiVersion"] = fields["kind"] = {"type": "string"}
    fields["metadata"] = {"type": "object"}
    schema["required"] = ["spec"]
    spec = fields["spec"]["properties"]
    spec["template"] = template_schema(spec["template"]["description"])
    for role in ROLES:
        _finish_role(spec[role]["properties"])
    _finish_output(spec["output"]["properties"])
    _finish_status(fields["status"])
    for _, part in walk(fields["spec"]):
        if isinstance(part.get("default"), (str, int)):
            default = json.dumps(part["default"]) if isinstance(part["default"], bool) else part["default"]
            part["description"] += f" Defaults to {default}."
    for rule in RULES:
        validation = {
            "rule": rule.cel,
            "message": rule.message,
            "messageExpression": rule.message_expression,
            "fieldPath": rule.field_path,
        }
        rules = schema_at(schema, rule.at).setdefault("x-kubernetes-validations", [])
        rules.append({key: text for key, text in validation.items() if text})
    return schema


def crd(release: str) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a release as JSON."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": list(COLUMNS),
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.worker.replicas",
                "statusReplicasPath": ".status.worker.active",
                "labelSelectorPath": ".status.worker.selector",
            },
        },
        "schema": {"openAPIV3Schema": object_schema()},
    }
    names = {
        "kind": KIND,
        "listKind": LIST_KIND,
        "plural": PLURAL,
        "singular": SINGULAR,
        "shortNames": [SHORT_NAME],
        "categories": ["all"],
    }
    # Helm must not delete the CRD, even if it is part of a release: every TrainJob would be deleted too.
    annotations = {VERSION_ANNOTATION: release, "helm.sh/resource-policy": "keep"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}", "annotations": annotations},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def crd_text(release: str) -> str:
    """Return `manifests/crd/crd.yaml`."""
    return _HEADER + dump_yaml(crd(release), inline_depth=3)


def _finish_role(fields: Schema) -> None:
    fields["env"]["items"] = named_item("EnvVar", "name")
    name_fields(fields["template"], "PodTemplateSpec")
    fields["template"]["properties"]["metadata"]["description"] = METADATA
    fields["template"]["properties"]["spec"]["description"] = POD_SPEC
    name_fields(fields["resources"], "ResourceRequirements")
    name_fields(fields["tolerations"]["items"], "Toleration")
    name_fields(fields["affinity"], "Affinity")


def _finish_output(fields: Schema) -> None:
    fields["csi"] |= {"required": ["driver"], "properties": {"driver": {"type": "string"}}}
    name_fields(fields["csi"], "CSIVolumeSource")
    name_fields(fields["emptyDir"], "EmptyDirVolumeSource")
    name_fields(fields["ephemeral"], "EphemeralVolumeSource")


def _finish_status(status: Schema) -> None:
    for _, part in walk(status):
        # The controller writes what it knows; a default would be a value that was never reported.
        for word in ("default", "minimum", "maximum"):
            part.pop(word, None)
    status["properties"]["conditions"] |= {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }
