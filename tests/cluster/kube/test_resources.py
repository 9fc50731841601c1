from __future__ import annotations

import pytest

from trainjob.cluster.kube.resources import NETWORK_POLICIES, PODS, TRAINJOBS, Resource


@pytest.mark.parametrize(
    ("resource", "namespace", "name", "sub", "path"),
    [
        (PODS, None, "", "", "/api/v1/pods"),
        (PODS, "lab", "", "", "/api/v1/namespaces/lab/pods"),
        (PODS, "lab", "a", "", "/api/v1/namespaces/lab/pods/a"),
        (NETWORK_POLICIES, "lab", "a", "", "/apis/networking.k8s.io/v1/namespaces/lab/networkpolicies/a"),
        (TRAINJOBS, None, "", "", "/apis/trainjob.dev/v1alpha1/trainjobs"),
        (TRAINJOBS, "l", "a", "status", "/apis/trainjob.dev/v1alpha1/namespaces/l/trainjobs/a/status"),
    ],
)
def test_addresses(resource: Resource, namespace: str | None, name: str, sub: str, path: str) -> None:
    assert resource.path(namespace, name, sub) == path
