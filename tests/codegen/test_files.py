"""What is committed is what the sources give."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainjob.codegen import pod_schema, rbac
from trainjob.codegen.__main__ import GENERATED, drift, find_repository, main
from trainjob.codegen.rbac import PERMISSIONS, PermissionScope

ROOT = Path(__file__).resolve().parents[2]


def build_repository(folder: Path) -> Path:
    (folder / "operator/src/trainjob/api").mkdir(parents=True)
    (folder / "operator/pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (folder / "deep/down").mkdir(parents=True)
    return folder


def test_nothing_committed_is_out_of_date() -> None:
    assert drift(find_repository(ROOT)) == ""


def test_generates_and_then_finds_no_drift(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = build_repository(tmp_path)
    assert main(["--check"], folder=root) == 1
    assert main([], folder=root / "deep/down") == 0
    assert main(["--check"], folder=root) == 0
    assert all((root / name).is_file() for name in GENERATED)
    crd = root / "manifests/crd/crd.yaml"
    assert yaml.safe_load(crd.read_text())["metadata"]["annotations"]["trainjob.dev/version"] == "1.2.3"
    crd.write_text(crd.read_text().replace("shortNames: [tj]", "shortNames: [job]"))
    capsys.readouterr()
    assert main(["--check"], folder=root) == 1
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
    assert main(["--pods"], folder=build_repository(tmp_path)) == 0
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


def test_outside_of_the_repository(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not inside the repository"):
        find_repository(tmp_path)


def test_every_permission_is_granted_once() -> None:
    rules = [*rbac.controller_rules(), *rbac.own_rules(lease="lease", key="key")]
    granted = sorted((r.group, resource, verb) for r in rules for resource in r.resources for verb in r.verbs)
    assert granted == sorted((p.group, p.resource, verb) for p in PERMISSIONS for verb in p.verbs)


def test_all_but_creating_is_for_one_lease_and_one_secret() -> None:
    named = {rule.resources: rule.name for rule in rbac.own_rules(lease="lease", key="key") if rule.name}
    assert named == {("leases",): "lease", ("secrets",): "key"}
    for rule in rbac.own_rules(lease="lease", key="key"):
        assert (rule.name == "") == (rule.verbs == ("create",))


def test_the_controller_is_granted_nothing_that_leads_further() -> None:
    for permission in PERMISSIONS:
        assert permission.resource not in ("pods/exec", "serviceaccounts/token")
        assert not any("role" in word for word in (permission.resource, permission.group))
        assert "*" not in (permission.group, permission.resource, *permission.verbs)
        if permission.scope is PermissionScope.OPERATOR:
            assert permission.resource in ("leases", "secrets")
        elif permission.resource == "secrets":
            assert permission.verbs == ("create", "delete")


@pytest.mark.parametrize("rules", [rbac.controller_rules(), rbac.EDIT_RULES, rbac.VIEW_RULES])
def test_rules_are_yaml(rules: tuple[rbac.Rule, ...]) -> None:
    read = yaml.safe_load(rbac.rules_text(rules))
    assert [(r["apiGroups"], tuple(r["resources"]), tuple(r["verbs"])) for r in read] == [
        ([r.group], r.resources, r.verbs) for r in rules
    ]
