from typing import Any

import pytest

from support.golden import Golden
from support.world.tfjobs import build_replicas, build_tfjob, notes_of, refusals_of, spec_of

CHIEF_AND_WORKERS = {"Chief": build_replicas(), "Worker": build_replicas(2)}
WITH_PS = {**CHIEF_AND_WORKERS, "PS": build_replicas()}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("activeDeadlineSeconds", 3600),
        ("ttlSecondsAfterFinished", 0),
        ("suspend", True),
        ("suspend", False),
        ("managedBy", "kueue.x-k8s.io/multikueue"),
    ],
)
def test_what_has_the_same_meaning_is_kept(field: str, value: Any) -> None:
    for spec in ({"runPolicy": {field: value}}, {field: value}):
        tfjob = build_tfjob(**spec)
        assert spec_of(tfjob)[field] == value
        assert not [path for path in notes_of(tfjob) if path.endswith(field)]


@pytest.mark.parametrize("policy", ["All", "None"])
def test_cleaning_that_is_not_carried_over(policy: str, golden: Golden) -> None:
    golden(notes_of(build_tfjob(runPolicy={"cleanPodPolicy": policy}))["spec.runPolicy.cleanPodPolicy"])
    golden(notes_of(build_tfjob(cleanPodPolicy=policy))["spec.cleanPodPolicy"])


@pytest.mark.parametrize("policy", ["Running", "", None])
def test_cleaning_as_here(policy: str | None) -> None:
    tfjob = build_tfjob(runPolicy={"cleanPodPolicy": policy})
    assert spec_of(tfjob)
    assert "spec.runPolicy.cleanPodPolicy" not in notes_of(tfjob)


def test_their_controller_is_left_out() -> None:
    tfjob = build_tfjob(runPolicy={"managedBy": "kubeflow.org/training-operator"})
    assert "managedBy" not in spec_of(tfjob)
    assert "left out" in notes_of(tfjob)["spec.runPolicy.managedBy"]


def test_a_deadline_beyond_all_years() -> None:
    tfjob = build_tfjob(runPolicy={"activeDeadlineSeconds": 2**40})
    assert "activeDeadlineSeconds" not in spec_of(tfjob)
    assert "left out" in notes_of(tfjob)["spec.runPolicy.activeDeadlineSeconds"]


def test_the_old_places_and_names(golden: Golden) -> None:
    tfjob = build_tfjob(ttlSecondsAfterFinishing=60, backoffLimit=7, runPolicy={"backoffLimit": 2})
    spec, notes = spec_of(tfjob), notes_of(tfjob)
    assert (spec["ttlSecondsAfterFinished"], spec["maxRestarts"]) == (60, 2)
    golden(notes["spec.backoffLimit"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("minAvailable", 3),
        ("minResources", {"cpu": "4"}),
        ("queue", "ads"),
        ("scheduleTimeoutSeconds", 60),
        ("minimum", 60),
    ],
)
def test_gang_scheduling_is_noted(field: str, value: Any, golden: Golden) -> None:
    notes = notes_of(build_tfjob(runPolicy={"schedulingPolicy": {field: value}}))
    golden(notes[f"spec.runPolicy.schedulingPolicy.{field}"])


def test_the_priority_class_goes_to_pods_that_have_none(golden: Golden) -> None:
    replicas = {"Worker": build_replicas(2), "Chief": build_replicas(pod={"priorityClassName": "high"})}
    tfjob = build_tfjob(replicas, runPolicy={"schedulingPolicy": {"priorityClass": "low"}})
    spec = spec_of(tfjob)
    assert spec["template"]["spec"]["priorityClassName"] == "low"
    assert spec["chief"] == {"priorityClassName": "high"}
    golden(notes_of(tfjob)["spec.runPolicy.schedulingPolicy.priorityClass"])


@pytest.mark.parametrize(
    ("replicas", "policy"),
    [
        (None, ""),
        (CHIEF_AND_WORKERS, ""),
        (None, "AllWorkers"),
        (CHIEF_AND_WORKERS, "AllWorkers"),
        ({"Worker": build_replicas(1)}, ""),
        (WITH_PS, ""),
        (WITH_PS, "AllWorkers"),
        (None, None),
    ],
)
def test_the_success_policy(replicas: dict[str, Any] | None, policy: str | None, golden: Golden) -> None:
    golden(notes_of(build_tfjob(replicas, successPolicy=policy)).get("spec.successPolicy"))


@pytest.mark.parametrize(("enabled", "noted"), [(True, True), (False, False), (None, False)])
def test_dynamic_workers(enabled: bool | None, noted: bool) -> None:
    assert ("spec.enableDynamicWorker" in notes_of(build_tfjob(enableDynamicWorker=enabled))) is noted


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"runPolicy": []}, "spec.runPolicy"),
        ({"runPolicy": {"cleanPodPolicy": "all"}}, "spec.runPolicy.cleanPodPolicy"),
        ({"runPolicy": {"cleanPodPolicy": []}}, "spec.runPolicy.cleanPodPolicy"),
        ({"runPolicy": {"suspend": "no"}}, "spec.runPolicy.suspend"),
        ({"suspend": 1}, "spec.suspend"),
        ({"runPolicy": {"activeDeadlineSeconds": 0}}, "spec.runPolicy.activeDeadlineSeconds"),
        ({"ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished"),
        ({"runPolicy": {"managedBy": "me"}}, "spec.runPolicy.managedBy"),
        ({"runPolicy": {"schedulingPolicy": 1}}, "spec.runPolicy.schedulingPolicy"),
        (
            {"runPolicy": {"schedulingPolicy": {"priorityClass": 1}}},
            "spec.runPolicy.schedulingPolicy.priorityClass",
        ),
        ({"successPolicy": "ChiefOnly"}, "spec.successPolicy"),
        ({"enableDynamicWorker": "yes"}, "spec.enableDynamicWorker"),
    ],
)
def test_values_that_can_not_be(spec: dict[str, Any], path: str, golden: Golden) -> None:
    golden(refusals_of(build_tfjob(**spec))[path])


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"runPolicy": {"retries": 3}}, "spec.runPolicy.retries"),
        ({"terminationPolicy": {}}, "spec.terminationPolicy"),
        ({"tfImage": "x"}, "spec.tfImage"),
    ],
)
def test_an_unknown_field_is_noted(spec: dict[str, Any], path: str, golden: Golden) -> None:
    golden(notes_of(build_tfjob(**spec))[path])
