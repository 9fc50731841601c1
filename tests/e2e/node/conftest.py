"""What tests with pods share: the controller, installed by its chart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from testbed.claims import NodeCluster

CHART = Path(__file__).parents[3] / "charts" / "trainjob"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture(scope="package")
def installed(node_cluster: NodeCluster) -> Iterator[NodeCluster]:
    """The cluster with two replicas of the controller, where only restricted pods are let in."""
    node_cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "trainjob-system", "labels": RESTRICTED},
        }
    )
    release = ("trainjob", "-n", "trainjob-system")
    node_cluster.helm("install", *release, str(CHART), "--wait", "--timeout", "3m", timeout=200)
    yield node_cluster
    node_cluster.helm("uninstall", *release, "--wait", timeout=200)


@pytest.fixture
def restricted(installed: NodeCluster) -> Iterator[str]:
    """A namespace that keeps the restricted Pod Security standard, with the claim `training`."""
    with _restricted(installed) as name:
        yield name


@pytest.fixture(scope="module")
def restricted_module(installed: NodeCluster) -> Iterator[str]:
    """Such a namespace that all tests of a file share."""
    with _restricted(installed) as name:
        yield name


@contextmanager
def _restricted(cluster: NodeCluster) -> Iterator[str]:
    name = cluster.create_namespace(labels=RESTRICTED)
    cluster.claim(name)
    yield name
    cluster.delete_namespace(name)
