"""The fields of Kubernetes' own objects that the CRD names are all that there are."""

from __future__ import annotations

import pytest
from kubernetes.client import models

from trainjob.api.fields import PRESERVED
from trainjob.api.rules.spec import HOLDING_KUBERNETES_OBJECTS, IMMUTABLE_RULES
from trainjob.codegen.crd import FIELDS, object_schema, schema_at, walk

ONLY_PART_OF_IT_IS_TAKEN = "spec.template.metadata"


@pytest.mark.parametrize("kind", FIELDS)
def test_they_are_those_of_the_official_client(kind: str) -> None:
    """It may be older than the API server whose own schema they come from (`test_pod_schema.py`)."""
    assert set(getattr(models, f"V1{kind}").attribute_map.values()) <= set(FIELDS[kind])


def test_no_object_of_the_spec_is_compared_without_them() -> None:
    kinds = set(map(frozenset, FIELDS.values()))
    for path, schema in walk(object_schema()):
        if schema.get("type") == "object" and schema.get(PRESERVED):
            names = frozenset(schema.get("properties", ()))
            if path == "spec.template":
                assert names == set(FIELDS["PodTemplateSpec"])
            elif path != ONLY_PART_OF_IT_IS_TAKEN:
                assert names in kinds, path


def test_objects_are_compared_both_ways() -> None:
    whole = object_schema()
    for rule in IMMUTABLE_RULES:
        if rule.field_path:
            schema = schema_at(whole, f"{rule.at}{rule.field_path}")
            is_kubernetes_own = any(part.get(PRESERVED) for _, part in walk(schema))
            name = rule.field_path.removeprefix(".")
            assert (name in HOLDING_KUBERNETES_OBJECTS) == is_kubernetes_own
            assert (f"oldSelf.{name} == self.{name}" in rule.cel) == is_kubernetes_own
