"""The CustomResourceDefinition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainjob.api.generate.pod_fields import name_fields
from trainjob.api.generate.schema import Schema, schema_at, walk, written_out
from trainjob.api.generate.template import METADATA, POD_SPEC, named_item, template_schema
from trainjob.api.generate.yaml_text import as_yaml
from trainjob.api.group import GROUP, KIND, LIST_KIND, PLURAL, SHORT_NAME, SINGULAR, VERSION
from trainjob.api.job import TrainJob
from trainjob.api.rules import immutable, name, output, restarts, roles, size, template
from trainjob.api.rules.rule import Rule
from trainjob.api.rules.template import ROLES

RULES: tuple[Rule, ...] = (
    *name.RULES,
    *roles.RULES,
    *output.RULES,
    *template.RULES,
    *restarts.RULES,
    *size.RULES,
    *immutable.RULES,
)

COLUMNS = (
    {"name": "State", "type": "string", "jsonPath": ".status.state"},
    {"name": "Workers", "type": "string", "jsonPath": ".status.worker.summary"},
    {"name": "Step", "type": "integer", "jsonPath": ".status.progress.step"},
    {"name": "ETA", "type": "string", "jsonPath": ".status.progress.eta"},
    {"name": "Restarts", "type": "integer", "jsonPath": ".status.restarts.charged"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
)

_HEADER = "# Generated from operator/src/trainjob/api by `make generate`; edit it there.\n"


def object_schema() -> Schema:
    """Return the structural schema of the whole object, with the rules of the API server."""
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
    for rule in RULES:
        schema_at(schema, rule.at).setdefault("x-kubernetes-validations", []).append(_validation(rule))
    return schema


def crd(annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the CustomResourceDefinition as JSON."""
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
    metadata: dict[str, Any] = {"name": f"{PLURAL}.{GROUP}"}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def crd_text(annotations: Mapping[str, str] | None = None) -> str:
    """Return the CustomResourceDefinition as YAML."""
    return _HEADER + as_yaml(crd(annotations))


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
        # The controller writes what it knows; a default would be a report that nobody made.
        for word in ("default", "minimum", "maximum"):
            part.pop(word, None)
    status["properties"]["conditions"] |= {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }


def _validation(rule: Rule) -> dict[str, str]:
    words = {
        "rule": rule.cel,
        "message": rule.message,
        "messageExpression": rule.message_expression,
        "fieldPath": rule.field_path,
    }
    return {word: text for word, text in words.items() if text}
