"""What TrainJob's rules refuse is reported by the field of the TFJob that it comes from."""

from typing import Any

import pytest

from support.world.tfjobs import build_replicas, build_tfjob, refusals_of

WORKER = "spec.tfReplicaSpecs.Worker.template.spec"
CHIEF = "spec.tfReplicaSpecs.Chief.template.spec"
LABELS = "spec.tfReplicaSpecs.Worker.template.metadata.labels"
NO_NAME = {"value": "x"}


@pytest.mark.parametrize(
    ("role", "entry", "path"),
    [
        ("Worker", {"container": {"env": [NO_NAME]}}, f"{WORKER}.containers[0].env[0].name"),
        ("Worker", {"container": {"command": "python"}}, f"{WORKER}.containers[0].command"),
        ("Worker", {"pod": {"volumes": [{}]}}, f"{WORKER}.volumes[0].name"),
        ("Worker", {"pod": {"nodeSelector": {"a": 1}}}, f"{WORKER}.nodeSelector.a"),
        (
            "Worker",
            {"metadata": {"labels": {"a/b": 1}}},
            f"{LABELS}[a/b]",
        ),
        ("Worker", {"pod": {"containers": "x"}}, f"{WORKER}.containers"),
        ("Worker", {"pod": {"containers": []}}, f"{WORKER}.containers"),
        ("Chief", {"container": {"env": [NO_NAME]}}, f"{CHIEF}.containers[0].env[0].name"),
        ("Chief", {"container": {"resources": ["x"]}}, f"{CHIEF}.containers[0].resources"),
        ("Chief", {"container": {"args": "x"}}, f"{CHIEF}.containers[0].args"),
        ("Chief", {"pod": {"tolerations": "x"}}, f"{CHIEF}.tolerations"),
        ("Chief", {"pod": {"nodeSelector": {"a": 1}}}, f"{CHIEF}.nodeSelector.a"),
    ],
)
def test_by_the_tfjobs_field(role: str, entry: dict[str, Any], path: str) -> None:
    replicas = {"Worker": build_replicas(2), role: build_replicas(**entry)}
    assert list(refusals_of(build_tfjob(replicas))) == [path]


def test_a_list_that_has_lost_items_is_named_as_a_whole() -> None:
    env = [{"name": "TF_CONFIG", "value": "x"}, NO_NAME]
    tfjob = build_tfjob({"Worker": build_replicas(2, container={"env": env})})
    assert list(refusals_of(tfjob)) == [f"{WORKER}.containers[0].env"]


def test_what_is_the_trainjobs_alone_is_said_so() -> None:
    tfjob = build_tfjob(
        {"Worker": build_replicas(2, container={"volumeMounts": "x"})}, metadata={"name": None}
    )
    assert refusals_of(tfjob)["metadata.name"].startswith("required")
