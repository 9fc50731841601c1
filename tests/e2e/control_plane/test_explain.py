"""What `kubectl explain` and bare names tell of TrainJobs, alone and beside another kind of the same name."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from testbed import Cluster, KubectlError
from testbed.waiting import until

from support.kube.real_kube import await_crd, install_crd
from support.world.jobs import build_job

PAGE = (Path(__file__).parents[3] / "docs" / "install.md").read_text()


@pytest.fixture(scope="module", autouse=True)
def _crd(control_plane: Cluster) -> None:
    """What is explained comes a little later than what is served."""
    install_crd(control_plane)

    def is_explained() -> bool:
        try:
            return "The desired state." in explain(control_plane, "trainjobs.trainjob.dev")
        except KubectlError:
            return False

    until(is_explained, what="an explanation of TrainJobs", seconds=60)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have kubectl ask what there is, as on a machine that sees the cluster for the first time."""
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "cache"))


def explain(cluster: Cluster, *words: str) -> str:
    return re.sub(r"\s+", " ", cluster.kubectl("explain", *words))


@pytest.mark.parametrize(
    ("field", "tells"),
    [
        ("tj", "trains a TensorFlow model"),
        ("tj.spec", "template <Object> -required-"),
        ("tj.spec.worker", "replicas <integer> Number of workers; kubectl scale changes it."),
        ("tj.spec.worker.template", "see kubectl explain pod.spec"),
        ("tj.spec.evaluator", "completionTimeoutSeconds <integer>"),
        ("tj.spec.output", "claim <Object> A PersistentVolumeClaim."),
        ("tj.spec.output.claim", "size <string> Size of a claim that is created for the job."),
        ("tj.spec.restartStrategy", "ENUM: InPlace Recreate"),
        ("tj.spec.template", "see kubectl explain pod.spec"),
        ("tj.status", "conditions <[]Object> Queued, Running, Restarting, Suspended, Complete and Failed."),
        (
            "tj.status.firstFailure",
            "exitCode <integer> Exit code of the training process, or of the init container.",
        ),
        ("tj.status.conditions", "reason <string> The reason in one word, for programs."),
    ],
)
def test_every_field_is_described(control_plane: Cluster, field: str, tells: str) -> None:
    said = explain(control_plane, field)
    assert "GROUP: trainjob.dev KIND: TrainJob VERSION: v1alpha1" in said
    assert tells in said
    assert "<no description>" not in said
    assert "<empty>" not in said


@pytest.mark.parametrize("field", ["tj.spec.template.spec", "tj.spec.evaluator.template.spec"])
def test_the_pods_part_leads_to_where_it_is_explained(control_plane: Cluster, field: str) -> None:
    assert "kubectl explain pod.spec has its fields." in explain(control_plane, field)
    assert "containers <[]Container> -required-" in explain(control_plane, "pod.spec")


def test_the_names_of_the_kind(control_plane: Cluster, namespace: str) -> None:
    control_plane.apply(build_job(namespace=namespace))
    for name in ("tj", "trainjob", "trainjobs", "TrainJob", "trainjobs.trainjob.dev"):
        assert listed(control_plane, namespace, name) == "trainjob.trainjob.dev/digits\n"
    assert "trainjob.trainjob.dev/digits" in listed(control_plane, namespace, "all")


def listed(cluster: Cluster, namespace: str, name: str) -> str:
    return cluster.kubectl("get", name, "-o", "name", "-n", namespace)


# -- another project's kind of the same name ---------------------------------------------------------------

FOREIGN = "trainjobs.a.example.org"


@pytest.fixture(params=["with our short name", "without a short name"])
def foreign(request: pytest.FixtureRequest, control_plane: Cluster) -> Iterator[bool]:
    """Whether the other kind has our short name, too."""
    has_short_name = request.param == "with our short name"
    control_plane.apply(foreign_crd(has_short_name))
    await_crd(control_plane, FOREIGN)
    yield has_short_name
    control_plane.delete("crd", FOREIGN)


def foreign_crd(has_short_name: bool) -> dict[str, Any]:
    schema = {"type": "object", "description": "Theirs.", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names: dict[str, Any] = {"kind": "TrainJob", "plural": "trainjobs", "singular": "trainjob"}
    if has_short_name:
        names["shortNames"] = ["tj"]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": FOREIGN},
        "spec": {
            "group": FOREIGN.partition(".")[2],
            "names": names,
            "scope": "Namespaced",
            "versions": [deepcopy(version)],
        },
    }


def test_kubectl_beside_another_kind(control_plane: Cluster, namespace: str, foreign: bool) -> None:
    """The page says what happens to bare names, and which names are never mistaken."""
    control_plane.apply(build_job(namespace=namespace))
    theirs = {"apiVersion": "a.example.org/v1", "kind": "TrainJob", "metadata": {"name": "theirs"}}
    control_plane.apply(theirs, namespace=namespace)

    def is_first() -> bool:
        shutil.rmtree(os.environ["KUBECACHEDIR"], ignore_errors=True)
        return "theirs" in listed(control_plane, namespace, "trainjobs")

    until(is_first, what="kubectl to find the other kind first", seconds=60)
    assert ("theirs" in listed(control_plane, namespace, "tj")) == foreign
    for name in ("trainjobs.trainjob.dev", "trainjob.trainjob.dev", "tj.trainjob.dev"):
        assert listed(control_plane, namespace, name) == "trainjob.trainjob.dev/digits\n"
        assert f"`{name}`" in PAGE
    for command in re.findall(r"`kubectl (explain [^`]*)`", PAGE):
        assert "GROUP: trainjob.dev" in explain(control_plane, *command.split()[1:])
