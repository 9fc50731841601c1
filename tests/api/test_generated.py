"""What is committed is what the model gives, and it serves those who read it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml

from support.world.changes import change_job
from trainjob.api import read_documents
from trainjob.api.fields import Part
from trainjob.api.types import Claim, Nfs, Output, Role, TrainJobSpec
from trainjob.codegen.crd import object_schema, walk
from trainjob.codegen.reference import EXAMPLE, editor_schema, reference_text

EDITORS = editor_schema()


def test_reference_has_every_field() -> None:
    page = reference_text()
    for path, schema in walk(object_schema()):
        is_kubernetes_own = (
            "template." in path or "type" not in schema or path.endswith(("csi.driver", "env[].name"))
        )
        if is_kubernetes_own or path.endswith("]") or not path:
            continue
        assert f"`{path.rsplit('.', 1)[-1]}`" in page or path in ("apiVersion", "kind", "metadata"), path


def test_example_of_the_reference_is_good() -> None:
    (document,) = read_documents(EXAMPLE, source="example")
    assert document.parse().metadata.name == "digits"


@pytest.mark.parametrize("model", [TrainJobSpec, Role, Output, Claim, Nfs])
def test_examples_in_messages_are_yaml(model: type[Part]) -> None:
    for field in model.model_fields.values():
        for example in field.examples or ():
            assert yaml.safe_load(f"{field.alias}: {example}")


@pytest.mark.parametrize(
    ("changes", "is_good"),
    [
        ({}, True),
        ({"spec.worker.replica": 1}, False),
        ({"spec.worker.replicas": 0}, False),
        ({"spec.workers": {}}, False),
        ({"kind": "Job"}, False),
        ({"metadata.name": "Digits"}, False),
        ({"metadata.labels": {"a": "b"}}, True),
        ({"spec.template.spec.nodeName": "a"}, True),
        ({"spec.template.spec.containers[0].image": "b"}, True),
        ({"spec.template.spec.containers": [{}]}, False),
        ({"spec.worker.nodeSelector": {"pool": "gpu"}}, True),
        ({"metadata": {"generateName": "digits-"}}, True),
        ({"metadata": {"namespace": "lab"}}, False),
    ],
)
def test_editors_see_what_is_wrong(changes: dict[str, Any], is_good: bool) -> None:
    assert jsonschema.Draft7Validator(EDITORS).is_valid(change_job(changes)) is is_good


def test_the_editor_schema_is_plain_json_schema() -> None:
    jsonschema.Draft7Validator.check_schema(EDITORS)
    assert "x-kubernetes" not in json.dumps(EDITORS)
