"""The Workload of a job, and what Kueue's decision makes of the job's pods."""

from __future__ import annotations

from typing import Any

import pytest

from support.world.kueue import build_queued_job
from trainjob.api import TrainJob, parse
from trainjob.core.integration import Placement, placed_job
from trainjob.core.integrations.kueue import Kueue
from trainjob.core.integrations.workload import (
    Admission,
    QueueObjects,
    build_pod_sets,
    build_priority,
    build_workload,
    prebuilt_workload,
    read_admission,
    read_queue_objects,
    read_workload,
    workload_name,
)
from trainjob.core.manifests import build_pod

OBJECTS = QueueObjects(
    flavors={
        "default": {},
        "gpu": {"nodeLabels": {"pool": "gpu"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
    },
    workload_priorities={"urgent": 100},
    priorities={"batch": 7, "usual": 3},
)


def job_of(labels: dict[str, str] | None = None, **changes: Any) -> TrainJob:
    return parse(build_queued_job(labels, uid="some-uid", **changes))


def test_each_role_is_a_pod_set_with_the_template_of_its_pods() -> None:
    job = job_of(
        worker={"replicas": 4, "minReplicas": 2, "resources": {"limits": {"nvidia.com/gpu": 1}}},
        chief={},
        restartStrategy="InPlace",
    )
    workload = build_workload(job, "v1beta2", OBJECTS)
    assert workload["metadata"]["labels"].items() >= {
        ("kueue.x-k8s.io/job-uid", "some-uid"),
        ("trainjob.dev/job", "digits"),
    }
    assert workload["metadata"]["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]
    assert workload["metadata"]["ownerReferences"][0]["uid"] == "some-uid"
    assert workload["spec"]["queueName"] == "research"
    sets = {pods["name"]: pods for pods in workload["spec"]["podSets"]}
    counts = {name: (pods["count"], pods.get("minCount")) for name, pods in sets.items()}
    assert counts == {"chief": (1, None), "worker": (4, 2), "evaluator": (1, None)}
    limits = {name: pods["template"]["spec"]["containers"][0].get("resources") for name, pods in sets.items()}
    assert limits == {"chief": None, "worker": {"limits": {"nvidia.com/gpu": 1}}, "evaluator": None}


def test_parameters_of_provisioning_requests_reach_the_workload() -> None:
    parameter = {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": "600"}
    manifest = build_queued_job(uid="some-uid")
    manifest["metadata"]["annotations"] = {**parameter, "example.com/other": "1"}
    assert build_workload(parse(manifest), "v1beta2", OBJECTS)["metadata"]["annotations"] == parameter
    assert "annotations" not in build_workload(job_of(), "v1beta2", OBJECTS)["metadata"]


def test_names_of_workloads_differ_by_job() -> None:
    first, second = (
        build_workload(parse(build_queued_job(uid=uid)), "v1beta2", OBJECTS)["metadata"]["name"]
        for uid in ("one", "two")
    )
    assert first != second


def reference(group: str, kind: str, name: str) -> dict[str, Any]:
    return {"priorityClassRef": {"group": group, "kind": kind, "name": name}}


URGENT = {"kueue.x-k8s.io/priority-class": "urgent"}


@pytest.mark.parametrize(
    ("labels", "pod", "default", "version", "wanted"),
    [
        ({}, {}, "", "v1beta2", {"priority": 0}),
        (URGENT, {"priorityClassName": "batch"}, "", "v1beta2",
         {**reference("kueue.x-k8s.io", "WorkloadPriorityClass", "urgent"), "priority": 100}),
        ({}, {"priorityClassName": "batch"}, "usual", "v1beta2",
         {**reference("scheduling.k8s.io", "PriorityClass", "batch"), "priority": 7}),
        ({}, {}, "usual", "v1beta2",
         {**reference("scheduling.k8s.io", "PriorityClass", "usual"), "priority": 3}),
        (URGENT, {}, "", "v1beta1", {"priorityClassName": "urgent", "priority": 100,
         "priorityClassSource": "kueue.x-k8s.io/workloadpriorityclass"}),
        ({}, {"priorityClassName": "batch"}, "", "v1beta1", {"priorityClassName": "batch", "priority": 7,
         "priorityClassSource": "scheduling.k8s.io/priorityclass"}),
    ],
)  # fmt: skip
def test_priority(
    labels: dict[str, str], pod: dict[str, Any], default: str, version: str, wanted: dict[str, Any]
) -> None:
    objects = QueueObjects({}, OBJECTS.workload_priorities, OBJECTS.priorities, default)
    assert build_priority(job_of(labels, pod=pod), version, objects) == wanted


@pytest.mark.parametrize("labels", [{}, URGENT])
def test_a_priority_is_read_as_it_was_written(labels: dict[str, str]) -> None:
    for version, stored in (("v1beta2", {}), ("v1beta1", {"priorityClassSource": ""})):
        manifest = build_workload(job_of(labels), version, OBJECTS)
        manifest["spec"] = {**stored, **manifest["spec"]}
        found = read_workload(manifest, "some-uid")
        assert found is not None
        assert found.priority == build_priority(job_of(labels), version, OBJECTS)


def test_a_priority_class_that_does_not_exist_is_named() -> None:
    with pytest.raises(LookupError, match="WorkloadPriorityClass gone doesn't exist"):
        build_priority(job_of({"kueue.x-k8s.io/priority-class": "gone"}), "v1beta2", OBJECTS)


def test_the_default_priority_class_is_the_lowest_of_several() -> None:
    classes = [
        {"kind": "PriorityClass", "metadata": {"name": name}, "value": value, "globalDefault": value > 1}
        for name, value in (("low", 1), ("high", 9), ("usual", 5))
    ]
    assert read_queue_objects(classes).default_priority == "usual"


def admission_of(
    job: TrainJob | None = None, *, conditions: dict[str, str], checks: Any = (), **assigned: Any
) -> Admission | None:
    """Return the admission of two workers and an evaluator, by these assignments of the workers."""
    manifest = build_workload(job or job_of(), "v1beta2", OBJECTS)
    assignments = [
        {"name": "worker", "flavors": {"cpu": "gpu", "nvidia.com/gpu": "gpu"}, "count": 2, **assigned},
        {"name": "evaluator", "flavors": {"cpu": "default"}},
    ]
    manifest["status"] = {
        "conditions": [{"type": kind, "status": value} for kind, value in conditions.items()],
        "admission": {"clusterQueue": "all", "podSetAssignments": assignments},
        "admissionChecks": list(checks),
    }
    workload = read_workload(manifest, "some-uid")
    assert workload is not None
    return read_admission(workload, OBJECTS)


ADMITTED = {"Admitted": "True", "QuotaReserved": "True"}


@pytest.mark.parametrize(
    ("conditions", "assigned", "is_admitted"),
    [
        (ADMITTED, {}, True),
        ({**ADMITTED, "Evicted": "False"}, {}, True),
        ({**ADMITTED, "Evicted": "True"}, {}, False),
        ({"QuotaReserved": "True", "Admitted": "False"}, {}, False),
        ({"QuotaReserved": "True"}, {}, False),
        (ADMITTED, {"flavors": {"cpu": "not-known-yet"}}, False),
    ],
)
def test_a_job_is_admitted_once_its_conditions_and_flavors_are_there(
    conditions: dict[str, str], assigned: dict[str, Any], is_admitted: bool
) -> None:
    assert (admission_of(conditions=conditions, **assigned) is not None) == is_admitted


def test_pods_get_what_flavors_and_admission_checks_add() -> None:
    update = {
        "name": "worker",
        "annotations": {"a": "1"},
        "labels": {"l": "2"},
        "nodeSelector": {"n": "3"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
    }
    found = admission_of(conditions=ADMITTED, checks=[{"name": "provision", "podSetUpdates": [update]}])
    assert found is not None
    assert found.counts == {"worker": 2, "evaluator": 1}
    job = job_of(
        pod={"nodeSelector": {"zone": "b"}, "tolerations": [{"key": "own"}]},
        worker={"replicas": 2, "nodeSelector": {"disk": "ssd"}, "env": [{"name": "E", "value": "1"}]},
    )
    worker, evaluator = (
        build_pod(placed_job(job, found.placements), role=role, index=0, incarnation=1, attempt=1)
        for role in ("worker", "evaluator")
    )
    assert worker["spec"]["nodeSelector"] == {"disk": "ssd", "pool": "gpu", "n": "3"}
    assert worker["spec"]["tolerations"] == [
        {"key": "own"},
        {"key": "gpu", "operator": "Exists"},
        {"key": "spot", "operator": "Exists"},
    ]
    assert worker["metadata"]["annotations"] == {"a": "1"}
    assert worker["metadata"]["labels"]["l"] == "2"
    assert {"name": "E", "value": "1"} in worker["spec"]["containers"][0]["env"]
    assert evaluator["spec"]["nodeSelector"] == {"zone": "b"}
    assert job.spec.template["spec"]["nodeSelector"] == {"zone": "b"}


def test_an_evaluator_that_is_placed_still_gets_no_gpus() -> None:
    job = job_of(container={"resources": {"limits": {"nvidia.com/gpu": 1, "memory": "1Gi"}}})
    found = Admission({}, {"evaluator": Placement(node_selector={"pool": "cpu"})})
    pod = build_pod(placed_job(job, found.placements), role="evaluator", index=0, incarnation=1, attempt=1)
    assert pod["spec"]["containers"][0]["resources"] == {"limits": {"memory": "1Gi"}}


KUEUE = "kueue.x-k8s.io"


@pytest.mark.parametrize(
    ("annotations", "request_"),
    [
        ({}, {}),
        ({"podset-required-topology": "rack"}, {"required": "rack"}),
        ({"podset-preferred-topology": "rack"}, {"preferred": "rack"}),
        ({"podset-unconstrained-topology": "true"}, {"unconstrained": True}),
        ({"podset-unconstrained-topology": "False"}, {"unconstrained": False}),
        (
            {"podset-slice-required-topology": "rack", "podset-slice-size": "2"},
            {"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 2},
        ),
        (
            {"podset-required-topology": "rack", "podset-group-name": "all"},
            {"required": "rack", "podSetGroupName": "all"},
        ),
        # The API server names the field in its refusal.
        ({"podset-unconstrained-topology": "maybe"}, {"unconstrained": "maybe"}),
        ({"podset-slice-size": "two"}, {"podSetSliceSize": "two"}),
    ],
)
def test_a_pod_template_asks_for_a_place_in_the_topology(
    annotations: dict[str, str], request_: dict[str, Any]
) -> None:
    asked = {f"{KUEUE}/{name}": text for name, text in annotations.items()}
    for pods in build_pod_sets(job_with(asked)):
        assert pods["topologyRequest"] == {**request_, "podIndexLabel": "trainjob.dev/index"}


def job_with(annotations: dict[str, str], **changes: Any) -> TrainJob:
    """Return a job with these annotations in its template."""
    manifest = build_queued_job(uid="some-uid", **changes)
    manifest["spec"]["template"]["metadata"] = {"annotations": annotations}
    return parse(manifest)


@pytest.mark.parametrize("asks", [True, False])
def test_a_pod_that_is_placed_by_topology_waits_at_a_gate_for_its_node(asks: bool) -> None:
    asked = {f"{KUEUE}/podset-required-topology": "rack"} if asks else {}
    job = job_with(asked, pod={"schedulingGates": [{"name": "own"}]})
    found = admission_of(job, conditions=ADMITTED, topologyAssignment={"levels": ["rack"]})
    assert found is not None
    placed = placed_job(job, found.placements)
    pod = build_pod(placed, role="worker", index=1, incarnation=1, attempt=1, avoided=["lost"])
    labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
    assert (labels[f"{KUEUE}/podset"], labels["trainjob.dev/index"]) == ("worker", "1")
    implied = {} if asks else {f"{KUEUE}/podset-unconstrained-topology": "true"}
    assert annotations == {**asked, **implied, f"{KUEUE}/workload": workload_name("digits", "some-uid")}
    assert pod["spec"]["schedulingGates"] == [{"name": "own"}, {"name": f"{KUEUE}/topology"}]
    assert "affinity" not in pod["spec"]  # Kueue knows which nodes are lost
    own = build_pod(job, role="worker", index=1, incarnation=1, attempt=1, avoided=["lost"])
    assert "affinity" in own["spec"]
    assert found.placements["evaluator"].gates == ()


def test_a_workload_of_another_owner_is_none_of_the_jobs() -> None:
    manifest = build_workload(job_of(), "v1beta2", OBJECTS)
    assert read_workload(manifest, "another-uid") is None


NAME = "kueue.x-k8s.io/prebuilt-workload-name"


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ({}, ""),
        ({"labels": {NAME: "one"}}, "one"),
        ({"annotations": {NAME: "two"}}, "two"),
        ({"annotations": {NAME: "two"}, "labels": {NAME: "one"}}, "two"),
        ({"annotations": {NAME: ""}, "labels": {NAME: "one"}}, "one"),
    ],
)
def test_a_job_names_its_prebuilt_workload_in_an_annotation_or_label(
    metadata: dict[str, Any], name: str
) -> None:
    assert prebuilt_workload(metadata) == name


@pytest.mark.parametrize(
    ("metadata", "spec", "conditions", "waits"),
    [
        ({}, {}, {}, True),
        ({}, {}, {"QuotaReserved": "False", "Evicted": "True"}, True),
        ({}, {"active": False}, {}, False),
        ({}, {}, {"QuotaReserved": "True"}, False),
        ({}, {}, {"Finished": "True"}, False),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {}, {}, False),
    ],
)
def test_a_workload_without_quota_waits(
    metadata: dict[str, str], spec: dict[str, Any], conditions: dict[str, str], waits: bool
) -> None:
    status = {"conditions": [{"type": kind, "status": value} for kind, value in conditions.items()]}
    assert (Kueue().queue_of({"metadata": metadata, "spec": spec, "status": status}) is not None) == waits


@pytest.mark.parametrize(
    ("summary", "positions"),
    [
        ({}, {}),
        ({"items": [{"metadata": {"name": "a"}, "positionInLocalQueue": 4}]}, {"a": 5}),
        ({"items": [{"metadata": {"name": "a"}}, "no object", {"positionInLocalQueue": 1}]}, {"a": 1}),
    ],
)
def test_positions_are_counted_from_one(summary: dict[str, Any], positions: dict[str, int]) -> None:
    assert Kueue().read_positions(summary) == positions
