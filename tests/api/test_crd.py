"""The CustomResourceDefinition: what Kubernetes asks of a structural schema, and what we ask of it."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from support.world.changes import change_job
from support.world.jobs import build_job
from trainjob.api import TrainJob
from trainjob.api.errors import fields_by_alias
from trainjob.api.fields import PRESERVED
from trainjob.api.rules.spec import IMMUTABLE_RULES
from trainjob.codegen.crd import RULES, crd, crd_text, object_schema, schema_at, walk
from trainjob.codegen.reference import EXAMPLE

ALLOWED_WORDS = {
    "type", "format", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "maxProperties", "default", "description", "required", "properties", "items", "additionalProperties",
    "x-kubernetes-preserve-unknown-fields", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
}  # fmt: skip
CRD = crd("1.2.3")
SCHEMA = object_schema()
FORMATS = {"integer": {"int32", "int64"}, "string": {"date-time", None}}


def test_text_is_the_object_in_under_700_lines() -> None:
    text = crd_text("1.2.3")
    assert yaml.safe_load(text) == CRD
    assert len(text.splitlines()) < 700
    assert text == crd_text("1.2.3")
    assert "&id" not in text


def test_names_subresources_and_columns() -> None:
    spec = CRD["spec"]
    (version,) = spec["versions"]
    assert CRD["metadata"]["name"] == f"{spec['names']['plural']}.{spec['group']}"
    assert spec["names"]["shortNames"] == ["tj"]
    assert spec["names"]["categories"] == ["all"]
    assert version["subresources"]["status"] == {}
    paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    paths += list(version["subresources"]["scale"].values())
    for path in paths:
        if path != ".metadata.creationTimestamp":
            assert schema_at(SCHEMA, path.removeprefix("."))
    names = [column["name"].upper() for column in version["additionalPrinterColumns"]]
    assert names == ["STATE", "WORKERS", "STEP", "ETA", "RESTARTS", "AGE", "MESSAGE"]


def test_columns_have_the_type_of_their_field() -> None:
    for column in CRD["spec"]["versions"][0]["additionalPrinterColumns"]:
        if column["type"] != "date":
            assert schema_at(SCHEMA, column["jsonPath"].removeprefix("."))["type"] == column["type"]


@pytest.mark.parametrize(("path", "schema"), [*walk(SCHEMA)])
def test_schema_is_structural(path: str, schema: dict[str, Any]) -> None:
    assert set(schema) <= ALLOWED_WORDS
    if "type" not in schema:
        assert schema[PRESERVED]
        assert set(schema) <= {PRESERVED, "description"}
        return
    assert schema["type"] in ("object", "array", "string", "integer", "number", "boolean")
    assert not {"properties", "additionalProperties"} <= set(schema)
    assert ("items" in schema) == (schema["type"] == "array")
    assert set(schema.get("required", ())) <= set(schema.get("properties", ()))
    assert schema.get("format") in FORMATS.get(schema["type"], {None})
    if schema.get("x-kubernetes-list-type") == "map":
        for key in schema["x-kubernetes-list-map-keys"]:
            assert schema["items"]["properties"][key]["type"] == "string"
            assert key in schema["items"]["required"]


def test_every_field_of_the_spec_is_described() -> None:
    for path, schema in walk(SCHEMA):
        if (
            path
            and "template." not in path
            and "[" not in path
            and path not in ("apiVersion", "kind", "metadata")
        ):
            if path.endswith("csi.driver") or "type" not in schema:
                continue
            assert schema["description"].endswith("."), path
            assert len(schema["description"]) < 140, path
            assert ("default" in schema) <= ("Defaults to" in schema["description"]), path


def test_every_field_of_the_model_is_there() -> None:
    spec = schema_at(SCHEMA, "spec")
    assert set(spec["properties"]) == set(fields_by_alias(TrainJob.model_fields["spec"].annotation))


@pytest.mark.parametrize("rule", RULES)
def test_rule_stands_at_a_field_and_names_one(rule: Any) -> None:
    path = f"{rule.at}{rule.field_path}".lstrip(".")
    assert schema_at(SCHEMA, path)
    assert rule.message
    assert "\n" not in rule.message + rule.cel


def test_what_may_change() -> None:
    spec = schema_at(SCHEMA, "spec")["properties"]
    guarded = {rule.field_path.removeprefix(".") for rule in IMMUTABLE_RULES if rule.at == "spec"}
    assert set(spec) - guarded == {"worker", "suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished"}
    of_worker = {rule.field_path.removeprefix(".") for rule in IMMUTABLE_RULES if rule.at == "spec.worker"}
    assert set(spec["worker"]["properties"]) - of_worker == {"replicas", "maxAllowed"}


def test_defaults_are_valid_where_they_stand() -> None:
    for path, schema in walk(SCHEMA):
        if "default" in schema:
            jsonschema.Draft4Validator(schema).validate(schema["default"])
            assert not path.startswith("status")


@pytest.mark.parametrize(
    "job",
    [
        build_job(),
        yaml.safe_load(EXAMPLE),
        change_job({"spec.chief": {}, "spec.ps": {"replicas": 2}}),
        change_job({"status": {"state": "Running", "attempt": 1, "conditions": []}}),
    ],
)
def test_good_jobs_fit(job: dict[str, Any]) -> None:
    jsonschema.Draft4Validator(SCHEMA).validate(job)
