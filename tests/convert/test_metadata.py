from typing import Any

import pytest

from support.golden import Golden
from support.world.tfjobs import build_tfjob, converted, notes_of, refusals_of

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def metadata_of(**metadata: Any) -> dict[str, Any]:
    made: dict[str, Any] = converted(build_tfjob(metadata=metadata)).manifest["metadata"]
    return made


def test_what_people_wrote_is_kept() -> None:
    metadata = {"namespace": "team", "labels": {"a": "b"}, "annotations": {"c": "d"}}
    assert metadata_of(**metadata) == {"name": "scans", **metadata}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("uid", "1-2"),
        ("resourceVersion", "3"),
        ("generation", 4),
        ("creationTimestamp", "2026-01-02T03:04:05Z"),
        ("managedFields", []),
        ("selfLink", "/apis"),
        ("ownerReferences", [{"kind": "Workflow"}]),
        ("finalizers", ["example.com/keep"]),
        ("unheard", 1),
    ],
)
def test_what_the_cluster_wrote_is_not(field: str, value: Any) -> None:
    assert metadata_of(**{field: value}) == {"name": "scans"}
    assert notes_of(build_tfjob(metadata={field: value}))[f"metadata.{field}"].startswith("left out: ")


def test_the_copy_that_kubectl_keeps_is_not_carried_over(golden: Golden) -> None:
    assert metadata_of(annotations={LAST_APPLIED: "{}"}) == {"name": "scans"}
    assert metadata_of(annotations={LAST_APPLIED: "{}", "c": "d"})["annotations"] == {"c": "d"}
    notes = notes_of(build_tfjob(metadata={"annotations": {LAST_APPLIED: "{}"}}))
    golden(notes[f"metadata.annotations[{LAST_APPLIED}]"])


def test_a_generated_name_becomes_a_name(golden: Golden) -> None:
    tfjob = build_tfjob(metadata={"generateName": "scans-", "name": None})
    assert converted(tfjob).manifest["metadata"] == {"name": "scans"}
    golden(notes_of(tfjob)["metadata.generateName"])
    assert "left out" in notes_of(build_tfjob(metadata={"generateName": "x-"}))["metadata.generateName"]


def test_of_kueues_labels_those_without_effect_are_noted() -> None:
    names = ("queue-name", "priority-class", "max-exec-time-seconds")
    tfjob = build_tfjob(metadata={"labels": {f"kueue.x-k8s.io/{name}": "1" for name in names}})
    noted = [path for path in notes_of(tfjob) if path.startswith("metadata.labels")]
    assert noted == ["metadata.labels[kueue.x-k8s.io/max-exec-time-seconds]"]


def test_the_status_is_left_out() -> None:
    tfjob = {**build_tfjob(), "status": {"conditions": []}}
    assert "status" not in converted(tfjob).manifest
    assert "left out" in notes_of(tfjob)["status"]


@pytest.mark.parametrize(
    ("metadata", "path"),
    [
        ({"name": "scans.north"}, "metadata.name"),
        ({"name": "s" * 50}, "metadata.name"),
        ({"name": 7}, "metadata.name"),
        ({"name": None}, "metadata.name"),
        ({"labels": [1]}, "metadata.labels"),
        ({"labels": {"a": 1}}, "metadata.labels.a"),
    ],
)
def test_metadata_that_is_refused(metadata: dict[str, Any], path: str, golden: Golden) -> None:
    golden(refusals_of(build_tfjob(metadata=metadata))[path])


@pytest.mark.parametrize("metadata", [None, [], "scans"])
def test_no_metadata_at_all(metadata: Any) -> None:
    assert "metadata" in refusals_of({**build_tfjob(), "metadata": metadata})


@pytest.mark.parametrize("spec", [None, [], "x"])
def test_no_spec_at_all(spec: Any) -> None:
    assert "spec" in refusals_of({**build_tfjob(), "spec": spec})
