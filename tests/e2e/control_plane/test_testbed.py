"""The control-plane tier is a real Kubernetes API, and leaves nothing behind."""

import json

import pytest
from testbed import Cluster, KubectlError
from testbed.programs import kubernetes_version


def test_it_is_the_pinned_kubernetes(control_plane: Cluster) -> None:
    version = json.loads(control_plane.kubectl("version", "-o", "json"))
    assert version["serverVersion"]["gitVersion"] == kubernetes_version()


def test_a_service_account_may_only_what_a_role_says(
    control_plane: Cluster, namespace: str, tmp_path: object
) -> None:
    control_plane.kubectl("create", "serviceaccount", "reader", "-n", namespace)
    control_plane.kubectl("create", "role", "reads", "--verb=get,list", "--resource=pods", "-n", namespace)
    control_plane.kubectl(
        "create",
        "rolebinding",
        "reads",
        "--role=reads",
        f"--serviceaccount={namespace}:reader",
        "-n",
        namespace,
    )
    reader = Cluster(
        control_plane.kubeconfig_of("reader", namespace, tmp_path), kubectl=control_plane.kubectl_program
    )
    assert reader.get("pods")["items"] == []
    with pytest.raises(KubectlError, match='cannot list resource "secrets"'):
        reader.get("secrets")
    with pytest.raises(KubectlError, match='cannot list resource "pods"'):
        reader.get("pods", namespace="kube-system")


def test_pod_security_refuses_what_restricted_forbids(control_plane: Cluster, namespace: str) -> None:
    control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        control_plane.kubectl("run", "root", "--image=any", "-n", namespace)


def test_the_garbage_collector_follows_owners(control_plane: Cluster, namespace: str) -> None:
    control_plane.kubectl("create", "configmap", "owner", "-n", namespace)
    owner = control_plane.get("configmap", "owner", namespace=namespace)
    owned_by = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    control_plane.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "owned", "ownerReferences": [owned_by]},
        },
        namespace=namespace,
    )
    control_plane.delete("configmap", "owner", namespace=namespace)
    control_plane.kubectl("wait", "--for=delete", "configmap/owned", "-n", namespace, "--timeout=30s")


def test_a_test_decides_what_becomes_of_a_pod(control_plane: Cluster, namespace: str) -> None:
    control_plane.kubectl("run", "made-up", "--image=any", "--restart=Never", "-n", namespace)
    control_plane.kubectl(
        "patch",
        "pod",
        "made-up",
        "-n",
        namespace,
        "--subresource=status",
        "-p",
        '{"status":{"phase":"Running"}}',
    )
    assert control_plane.get("pod", "made-up", namespace=namespace)["status"]["phase"] == "Running"
