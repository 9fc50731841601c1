"""What a release is made of."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
import yaml

from support.kube.chart import CHART, EVERYTHING, NAMESPACED_KINDS, ROOT, Manifest, kustomize, render
from trainjob.core.names import CONTROLLER_LABELS


def test_default_release_is_whole() -> None:
    release = render()
    assert {(o["kind"], o["metadata"]["name"]) for o in release.objects} == {
        ("ServiceAccount", "trainjob"),
        ("Deployment", "trainjob"),
        ("Service", "trainjob"),
        ("PodDisruptionBudget", "trainjob"),
        ("NetworkPolicy", "trainjob"),
        ("Role", "trainjob-own"),
        ("RoleBinding", "trainjob-own"),
        ("ClusterRole", "trainjob:trainjob-system:controller"),
        ("ClusterRoleBinding", "trainjob:trainjob-system:controller"),
        ("ClusterRole", "trainjob:trainjob-system:edit"),
        ("ClusterRole", "trainjob:trainjob-system:view"),
    }


def test_versions_are_the_projects() -> None:
    version = tomllib.loads((ROOT / "operator/pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert render().container["image"] == f"ghcr.io/trainjob/operator:{version}"
    base = yaml.safe_load((ROOT / "manifests/base/kustomization.yaml").read_text())
    assert base["images"] == [{"name": "ghcr.io/trainjob/operator", "newTag": version}]
    for manifest in (*kustomize("manifests/base"), *kustomize("manifests/overlays/one-namespace")):
        assert manifest["metadata"]["labels"]["app.kubernetes.io/version"] == version


@pytest.mark.parametrize(
    ("release", "name"),
    [("trainjob", "trainjob"), ("my-trainjob", "my-trainjob"), ("ml", "ml-trainjob"), ("a" * 53, "a" * 53)],
)
def test_names_follow_the_release(release: str, name: str) -> None:
    rendered = render(release=release)
    assert rendered.objects.one("Deployment")["metadata"]["name"] == name
    assert f"--lease-name={name}" in rendered.container["args"]
    assert f"--agent-key={name}-agent-key" in rendered.container["args"]
    for manifest in rendered.everything:
        assert len(manifest["metadata"]["name"]) <= (63 if manifest["kind"] in NAMESPACED_KINDS else 253)


def test_a_full_name_overrides() -> None:
    assert render({"fullnameOverride": "tj"}).objects.names() >= {
        "tj",
        "tj-own",
        "tj:trainjob-system:edit",
    }


def test_names_that_yaml_takes_for_something_else_stay_names() -> None:
    odd = {"fullnameOverride": "true", "priorityClassName": "1", "watch": {"namespace": "1e3"}}
    release = render({**odd, **EVERYTHING}, release="off", namespace="007")
    spec = release.pod["spec"]
    assert (spec["serviceAccountName"], spec["priorityClassName"]) == ("true", "1")
    own = release.objects.one("Role", "true-own")["rules"]
    assert [rule.get("resourceNames") for rule in own] == [None, ["true"], None, ["true-agent-key"]]
    for manifest in release.everything:
        assert {type(name) for name in names_of(manifest)} == {str}, manifest


def names_of(manifest: Any) -> list[Any]:
    found: list[Any] = []
    if isinstance(manifest, dict):
        for key, value in manifest.items():
            if key in ("labels", "matchLabels"):
                found += value.values()
            elif key in ("name", "namespace"):
                found.append(value)
            else:
                found += names_of(value)
    elif isinstance(manifest, list):
        found = [name for part in manifest for name in names_of(part)]
    return found


def selectors_of(manifest: Manifest) -> list[Any]:
    found: list[Any] = []
    if isinstance(manifest, dict):
        for key, value in manifest.items():
            if key in ("matchLabels", "selector") and "matchLabels" not in value:
                found.append(value)
            else:
                found += selectors_of(value)
    elif isinstance(manifest, list):
        found = [selector for part in manifest for selector in selectors_of(part)]
    return found


def test_every_selector_finds_the_controllers_pods_alone() -> None:
    release = render({"serviceMonitor": {"enabled": True}, "kueue": {"enabled": True}})
    pod = release.pod["metadata"]["labels"]
    hook_pods = [
        *(
            job["spec"]["template"]["metadata"]["labels"]
            for job in release.everything
            if job["kind"] == "Job"
        ),
        release.hooks("test").one("Pod")["metadata"]["labels"],
    ]
    found = [selector for o in release.objects for selector in selectors_of(o.get("spec", {}))]
    assert len(found) == 7  # Deployment, anti-affinity, spread, Service, PDB, NetworkPolicy, ServiceMonitor
    for selector in found:
        assert selector.items() <= pod.items()
        assert not any(selector.items() <= labels.items() for labels in hook_pods)
    service = release.objects.one("Service")["metadata"]["labels"]
    assert release.objects.one("ServiceMonitor")["spec"]["selector"]["matchLabels"].items() <= service.items()


def test_jobs_let_the_controllers_pods_in() -> None:
    assert CONTROLLER_LABELS.items() <= render(release="other").pod["metadata"]["labels"].items()


@pytest.mark.parametrize(
    "values",
    [
        {"image": {"tag": "9.9.9"}},
        {"podLabels": {"team": "ml"}},
        {"watch": {"namespace": "a"}, "replicas": 3},
    ],
)
def test_an_upgrade_never_changes_a_selector(values: dict[str, Any]) -> None:
    selector = render().objects.one("Deployment")["spec"]["selector"]
    assert render(values).objects.one("Deployment")["spec"]["selector"] == selector
    assert not {"app.kubernetes.io/version", "helm.sh/chart"} & set(selector["matchLabels"])


def test_every_object_says_where_it_is_from() -> None:
    for manifest in render(EVERYTHING).everything:
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "trainjob", manifest["kind"]
        if manifest["kind"] != "Pod":
            assert labels["app.kubernetes.io/managed-by"] == "Helm", manifest["kind"]


def test_every_namespaced_object_names_its_namespace() -> None:
    for manifest in render(EVERYTHING).everything:
        is_namespaced = manifest["kind"] in NAMESPACED_KINDS
        assert ("namespace" in manifest["metadata"]) == is_namespaced, manifest["kind"]


def test_two_releases_share_no_name() -> None:
    one, other = render(EVERYTHING, namespace="one"), render(EVERYTHING, namespace="other")
    for kind in one.everything.kinds - NAMESPACED_KINDS:
        assert one.everything.names(kind).isdisjoint(other.everything.names(kind))
    beside = render(EVERYTHING, namespace="one", release="second")
    mine = {(o["kind"], o["metadata"]["name"]) for o in one.everything}
    assert mine.isdisjoint({(o["kind"], o["metadata"]["name"]) for o in beside.everything})


def test_nothing_in_the_chart_is_left_out_of_the_readme_and_the_schema() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    readme = (CHART / "README.md").read_text()
    for path, part in leaves(values, schema):
        assert f"`{path}`" in readme, path
        assert part.get("description"), path


def leaves(
    values: dict[str, Any], schema: dict[str, Any], above: str = ""
) -> list[tuple[str, dict[str, Any]]]:
    found = []
    assert above or set(schema["properties"]) - {"global"} == set(values)
    for key, value in values.items():
        part = schema["properties"][key]
        if isinstance(value, dict) and "properties" in part:
            assert set(part["properties"]) == set(value), f"{above}{key}"
            found += leaves(value, part, f"{above}{key}.")
        else:
            found.append((f"{above}{key}", part))
    return found
