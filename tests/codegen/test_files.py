"""What is committed is what the sources give."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainjob.codegen import pod_schema
from trainjob.codegen.__main__ import main


def build_repository(folder: Path) -> Path:
    (folder / "operator/src/trainjob/api").mkdir(parents=True)
    (folder / "operator/pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (folder / "examples").mkdir()
    (folder / "examples/notebook.ipynb").write_text('{"cells": []}')
    return folder


def test_nothing_committed_is_out_of_date() -> None:
    assert main(["--check"]) == 0


def test_generates_and_then_finds_no_drift(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = build_repository(tmp_path)
    assert main(["--check"], root=root) == 1
    assert main([], root=root) == 0
    assert main(["--check"], root=root) == 0
    crd = root / "manifests/crd/crd.yaml"
    assert yaml.safe_load(crd.read_text())["metadata"]["annotations"]["trainjob.dev/version"] == "1.2.3"
    crd.write_text(crd.read_text().replace("shortNames: [tj]", "shortNames: [job]"))
    capsys.readouterr()
    assert main(["--check"], root=root) == 1
    message = capsys.readouterr().err
    assert "shortNames: [job]" in message
    assert "shortNames: [tj]" in message
    assert "run `make generate`" in message


def build_openapi(fields: dict[str, Any]) -> dict[str, Any]:
    schemas = {
        "io.k8s.api.core.v1.PodTemplateSpec": {"type": "object", "properties": fields, "required": ["a"]},
        "io.k8s.api.core.v1.PodSpec": {"type": "object", "properties": {"b": {"type": "boolean"}}},
        "io.k8s.api.core.v1.Unused": {"type": "object", "properties": {"c": {"type": "boolean"}}},
        "pkg.Quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
        "pkg.Time": {"type": "string", "format": "date-time"},
        "pkg.FieldsV1": {"type": "object"},
    }
    return {"info": {"version": "1.99"}, "components": {"schemas": schemas}}


def refer(kind: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{kind}"}


def test_the_schema_of_pods_is_cut_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openapi = build_openapi(
        {
            "a": {"allOf": [refer("io.k8s.api.core.v1.PodSpec")], "default": {}, "description": "said"},
            "list": {"type": "array", "items": {"allOf": [refer("io.k8s.api.core.v1.PodSpec")]}},
            "map": {"type": "object", "additionalProperties": refer("pkg.Quantity")},
            "number": {"type": "integer", "format": "int32", "default": 0},
            "one": {"type": "string", "enum": ["B", "A"]},
            "time": refer("pkg.Time"),
            "any": refer("pkg.FieldsV1"),
        }
    )
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(openapi)))
    assert main(["--pods"], root=build_repository(tmp_path)) == 0
    text = (tmp_path / pod_schema.PATH).read_text()
    assert len(text.splitlines()) == 4
    assert json.loads(text) == {
        "kubernetes": "1.99",
        "types": {
            "PodSpec": {"fields": {"b": "boolean"}, "required": []},
            "PodTemplateSpec": {
                "fields": {
                    "a": "PodSpec",
                    "any": "object",
                    "list": ["PodSpec"],
                    "map": {"*": "Quantity"},
                    "number": "int32",
                    "one": {"enum": ["A", "B"]},
                    "time": "string",
                },
                "required": ["a"],
            },
        },
    }


def test_a_field_that_is_described_in_another_way_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match="a field of type 'null'"):
        pod_schema.pod_schema_text(build_openapi({"a": {"type": "null"}}))
