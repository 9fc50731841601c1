"""The kustomize base is the chart with its default values; the overlay is the chart for one namespace."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import yaml

from support.kube.chart import NAMESPACED_KINDS, ROOT, Manifest, kustomize, render

ONLY_KUSTOMIZE = {
    # Helm makes a namespace with --create-namespace; here it also gets its Pod Security level.
    ("Namespace", "trainjob-system"),
    # The chart brings it by a hook; `kubectl apply -k` has no releases that could be rolled back to.
    ("CustomResourceDefinition", "trainjobs.trainjob.dev"),
}
# Helm's own words; and helm test, as all hooks, is left out.
HELM_LABELS = {"app.kubernetes.io/managed-by", "helm.sh/chart"}


def comparable(manifest: Manifest) -> Manifest:
    """Without Helm's labels, and without the order of the rules' sources, which carries no meaning."""
    manifest = deepcopy(manifest)
    labels = manifest["metadata"]["labels"]
    manifest["metadata"]["labels"] = {k: v for k, v in labels.items() if k not in HELM_LABELS}
    return manifest


def by_name(objects: list[Manifest]) -> dict[tuple[str, str], Any]:
    found = {(o["kind"], o["metadata"]["name"]): o for o in objects}
    assert len(found) == len(objects)
    return found


def test_the_base_is_the_chart_with_default_values() -> None:
    chart, base = by_name(render().objects), by_name(kustomize("manifests/base"))
    assert base.keys() - chart.keys() == ONLY_KUSTOMIZE
    assert chart.keys() <= base.keys()
    for key, manifest in chart.items():
        assert comparable(base[key]) == comparable(manifest), key


def test_the_overlay_is_the_chart_for_one_namespace() -> None:
    chart = by_name(render({"watch": {"namespace": "training"}}).objects)
    overlay = by_name(kustomize("manifests/overlays/one-namespace"))
    assert overlay.keys() - chart.keys() == ONLY_KUSTOMIZE | {("Namespace", "training")}
    assert chart.keys() <= overlay.keys()
    for key, manifest in chart.items():
        assert comparable(overlay[key]) == comparable(manifest), key


@pytest.mark.parametrize("option", ["kueue", "gangs"])
def test_the_overlay_for_an_option_is_the_chart_with_it(option: str) -> None:
    chart = by_name(render({option: {"enabled": True}}).objects)
    overlay = by_name(kustomize(f"manifests/overlays/{option}"))
    assert overlay.keys() - chart.keys() == ONLY_KUSTOMIZE
    assert chart.keys() <= overlay.keys()
    for key, manifest in chart.items():
        assert comparable(overlay[key]) == comparable(manifest), key


def test_the_crd_is_the_generated_one() -> None:
    crd = kustomize("manifests/base").one("CustomResourceDefinition")
    generated = yaml.safe_load((ROOT / "manifests/crd/crd.yaml").read_text())
    assert crd["spec"] == generated["spec"]
    assert generated["metadata"]["annotations"].items() <= crd["metadata"]["annotations"].items()


def test_the_namespace_is_restricted() -> None:
    namespace = kustomize("manifests/base").one("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_overlay_grants_the_controller_nothing_cluster_wide() -> None:
    overlay = kustomize("manifests/overlays/one-namespace")
    assert "ClusterRoleBinding" not in overlay.kinds
    for manifest in overlay:
        if manifest["kind"] in NAMESPACED_KINDS:
            assert manifest["metadata"]["namespace"] in ("trainjob-system", "training")
