"""What tests at an API server share: the CRD, an administrator's client, the controller's account."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from testbed import Cluster

from support.kube.real_kube import grant, install_crd, open_admin
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access


@pytest.fixture(scope="module")
def crd(control_plane: Cluster) -> None:
    """TrainJobs are served."""
    install_crd(control_plane)


@pytest.fixture
async def admin(control_plane: Cluster) -> AsyncIterator[ApiClient]:
    """A client of the cluster's administrator."""
    async with open_admin(control_plane) as api:
        yield api


@pytest.fixture
def access(control_plane: Cluster, namespace: str, tmp_path: Path) -> Access:
    """The access of an account that has the controller's permissions in the test's namespace."""
    return grant(control_plane, namespace, tmp_path)
