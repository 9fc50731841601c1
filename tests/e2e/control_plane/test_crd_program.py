"""The program of the chart's hook, against a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from testbed import Cluster

from support.kube.chart import ROOT
from support.kube.helm import CRD, columns_of, later_chart, own_plane, run_installation, version_of

COMMITTED = ROOT / "manifests/crd/crd.yaml"


@pytest.fixture(scope="module")
def plane() -> Iterator[Cluster]:
    with own_plane("tests-crd") as cluster:
        yield cluster


@pytest.fixture
def cluster(plane: Cluster) -> Iterator[Cluster]:
    yield plane
    plane.delete("crd", CRD)


def install(cluster: Cluster, file: Path) -> str:
    done = run_installation("--kubeconfig", cluster.kubeconfig, "crd", file)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_again_changes_nothing(cluster: Cluster) -> None:
    install(cluster, COMMITTED)
    before = cluster.get("crd", CRD)
    install(cluster, COMMITTED)
    assert cluster.get("crd", CRD)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_it_replaces_one_without_an_owner_and_keeps_what_others_wrote(cluster: Cluster) -> None:
    manifest = yaml.safe_load(COMMITTED.read_text())
    manifest["metadata"]["annotations"] = {"their": "own"}
    manifest["metadata"]["labels"] = {"their": "label"}
    manifest["spec"]["versions"][0]["additionalPrinterColumns"] = []
    cluster.apply(manifest)
    assert "from version unknown to" in install(cluster, COMMITTED)
    live = cluster.get("crd", CRD)
    assert columns_of(live)[0] == "State"
    assert live["metadata"]["annotations"]["their"] == "own"
    assert live["metadata"]["labels"] == {"their": "label"}


def test_many_at_once_end_with_the_newest(cluster: Cluster, tmp_path: Path) -> None:
    files = [later_chart(tmp_path, f"99.0.{i}") / "files/crd.yaml" for i in range(4)]
    with ThreadPoolExecutor(len(files)) as pool:
        for said in pool.map(lambda file: install(cluster, file), files):
            assert CRD in said
    assert version_of(cluster.get("crd", CRD)) == "99.0.3"


def test_the_api_servers_own_message(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(COMMITTED.read_text().replace("scope: Namespaced", "scope: Nowhere"))
    done = run_installation("--kubeconfig", cluster.kubeconfig, "crd", file)
    assert done.returncode == 1
    assert 'Unsupported value: "Nowhere"' in done.stderr
    assert not cluster.exists("crd", CRD)


def test_a_misspelled_field_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "misspelled.yaml"
    file.write_text(COMMITTED.read_text().replace("shortNames:", "shortName:"))
    done = run_installation("--kubeconfig", cluster.kubeconfig, "crd", file)
    assert done.returncode == 1
    assert 'unknown field "spec.names.shortName"' in done.stderr


def test_outside_of_a_pod_it_asks_for_a_kubeconfig() -> None:
    done = run_installation("crd", COMMITTED)
    assert done.returncode == 1
    assert "kubeconfig" in done.stderr
