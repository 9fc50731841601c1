"""What is rendered is accepted by a real API server, field by field, and grants what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from testbed import Cluster, KubectlError

from support.kube.chart import NAMESPACE, Manifest, kustomize, render
from support.kube.helm import own_plane
from support.kube.real_kube import await_crd

FULL: dict[str, Any] = {
    "image": {"digest": "sha256:" + "a" * 64},
    "imagePullSecrets": [{"name": "key"}],
    "jobs": {"networkPolicy": {"extraIngress": [{"from": [{"podSelector": {}}], "ports": [{"port": 9090}]}]}},
    "serviceAccount": {"annotations": {"a": "b"}},
    "nodeSelector": {"pool": "infra"},
    "tolerations": [{"key": "infra", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    ],
    "podAnnotations": {"a": "b"},
    "podLabels": {"a": "b"},
    "extraEnv": [{"name": "A", "value": "b"}],
    "networkPolicy": {"from": [{"namespaceSelector": {}}]},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with own_plane("tests-manifests") as plane:
        create_namespaces(plane)
        yield plane


def create_namespaces(cluster: Cluster) -> None:
    for name in (NAMESPACE, "training"):
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        cluster.kubectl("wait", "--for=create", "serviceaccount/default", "-n", name)


def check(cluster: Cluster, manifests: list[Manifest]) -> None:
    for account in (m for m in manifests if m["kind"] == "ServiceAccount"):
        cluster.apply(account)  # admission looks at it when it is asked about a pod
    words = ("apply", "--dry-run=server", "--server-side", "--force-conflicts", "--validate=strict")
    answer = cluster.kubectl(*words, "-f", "-", stdin=yaml.safe_dump_all(manifests))
    assert len(answer.splitlines()) == len(manifests), answer


@pytest.mark.parametrize(
    "values", [{}, FULL, {"watch": {"namespace": "training"}, "crd": {"install": False}}]
)
def test_the_chart(cluster: Cluster, values: dict[str, Any]) -> None:
    check(cluster, render(values).everything)


@pytest.mark.parametrize("folder", ["manifests/base", "manifests/overlays/one-namespace"])
def test_kustomize(cluster: Cluster, folder: str) -> None:
    check(cluster, kustomize(folder))


@pytest.fixture(scope="module")
def granted(cluster: Cluster) -> Cluster:
    """The roles of the base, for real, and three people with Kubernetes' own roles."""
    for manifest in kustomize("manifests/base"):
        if manifest["kind"].startswith(("ClusterRole", "Role", "ServiceAccount", "CustomResource")):
            cluster.apply(manifest)
    for role in ("admin", "edit", "view"):
        subject = {"kind": "User", "name": role, "apiGroup": "rbac.authorization.k8s.io"}
        reference = {"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": role, "namespace": "training"},
            "roleRef": reference,
            "subjects": [subject],
        }
        cluster.apply(binding)
    await_crd(cluster, "trainjobs.trainjob.dev")
    return cluster


CONTROLLER = f"system:serviceaccount:{NAMESPACE}:trainjob"


@pytest.mark.parametrize(
    ("who", "what", "namespace", "may"),
    [
        (CONTROLLER, "create pods", "training", True),
        (CONTROLLER, "update trainjobs/status", "training", True),
        (CONTROLLER, "update trainjobs", "training", False),
        (CONTROLLER, "get secrets", "training", False),
        (CONTROLLER, "list secrets", "training", False),
        (CONTROLLER, "get secrets", NAMESPACE, False),
        (CONTROLLER, "list secrets", NAMESPACE, False),
        (CONTROLLER, "delete secrets", "training", True),
        (CONTROLLER, "update secrets", "training", False),
        (CONTROLLER, "get configmaps", "training", True),
        (CONTROLLER, "update configmaps", "training", False),
        (CONTROLLER, "create pods/exec", "training", False),
        (CONTROLLER, "get nodes", "training", False),
        (CONTROLLER, "delete services", "training", False),
        (CONTROLLER, "update leases/trainjob", NAMESPACE, True),
        (CONTROLLER, "update leases/other", NAMESPACE, False),
        (CONTROLLER, "update leases/trainjob", "training", False),
        (CONTROLLER, "update customresourcedefinitions", "training", False),
        ("admin", "delete trainjobs", "training", True),
        ("edit", "create trainjobs", "training", True),
        ("edit", "patch trainjobs --subresource=scale", "training", True),
        ("edit", "get trainjobs --subresource=status", "training", True),
        ("edit", "update trainjobs --subresource=status", "training", False),
        ("edit", "create trainjobs", NAMESPACE, False),
        ("view", "watch trainjobs", "training", True),
        ("view", "create trainjobs", "training", False),
        ("view", "patch trainjobs --subresource=scale", "training", False),
    ],
)
def test_who_may_do_what(granted: Cluster, who: str, what: str, namespace: str, may: bool) -> None:
    words = what.replace("/status", " --subresource=status").replace("pods/exec", "pods --subresource=exec")

    question = ("auth", "can-i", *words.split(), f"--as={who}", "-n", namespace)
    if may:
        assert granted.kubectl(*question).strip() == "yes"
    else:
        with pytest.raises(KubectlError, match="status 1"):
            granted.kubectl(*question)
