"""How large a job may be: what its pods repeat is bounded, each part by itself and all pods together."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from support.world.changes import change_job, errors_of
from support.world.jobs import build_job
from trainjob.api import InvalidTrainJob, parse
from trainjob.api.rules import size
from trainjob.api.rules.size import LARGEST_PART, TooLarge, without_too_large
from trainjob.core.names import Replica, build_tf_config

KIB = 1024
BEGUN = {"startTime": "2026-01-01T00:00:00Z"}

AFFINITY = "spec.template.spec.affinity"
TOO_LARGE: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({AFFINITY: {"podAffinity": "x" * 1_300_000}}, f"{AFFINITY}.podAffinity", "1269.5 KiB"),
    ({"spec.template.spec.containers[0].env": [{"name": "A", "value": "é" * 40_000}]},
     "spec.template.spec.containers[0].env", "78.1 KiB"),
    ({"spec.template.metadata.annotations": {"a/b": "x" * 70_000}}, "spec.template.metadata.annotations[a/b]",
     "68.4 KiB"),
    ({AFFINITY: "x" * 40_000, "spec.template.spec.note": "x" * 40_000}, "spec.template.spec", "78.2 KiB"),
    ({"spec.worker.affinity": {"a": "x" * 70_000}}, "spec.worker.affinity.a", "68.4 KiB"),
    ({"spec.chief": {"template": {"spec": {"a": "x" * 70_000}}}}, "spec.chief.template.spec.a", "68.4 KiB"),
    ({"spec.evaluator": {"resources": {"a": "x" * 70_000}}}, "spec.evaluator.resources.a", "68.4 KiB"),
    ({"spec.output": {"csi": {"driver": "d", "volumeAttributes": {"a": "x" * 70_000}}}},
     "spec.output.csi.volumeAttributes.a", "68.4 KiB"),
)  # fmt: skip


@pytest.mark.parametrize(("changes", "path", "found"), TOO_LARGE)
def test_a_part_that_is_too_large_is_named_by_its_innermost_field(
    changes: dict[str, Any], path: str, found: str
) -> None:
    assert errors_of(change_job(changes)) == {
        path: [
            f"is {found} as JSON; at most 64 KiB are allowed, since each pod repeats it:"
            " keep files in the image, a ConfigMap or a volume"
        ]
    }


def test_the_limit_is_the_last_size_that_is_accepted() -> None:
    job = change_job({"spec.template.spec.note": ""})
    room = LARGEST_PART - len(json.dumps(job["spec"]["template"], separators=(",", ":")))
    assert errors_of(change_job({"spec.template.spec.note": "x" * room})) == {}
    assert list(errors_of(change_job({"spec.template.spec.note": "x" * (room + 1)}))) == ["spec.template"]


@pytest.mark.parametrize("changes", [changes for changes, _, _ in TOO_LARGE])
def test_what_is_not_kept_is_still_reported(changes: dict[str, Any]) -> None:
    job = change_job(changes)
    kept = without_too_large(job)
    assert errors_of(kept) == errors_of(job)
    assert errors_of(without_too_large(kept)) == errors_of(job)
    assert len(json.dumps(kept)) < 2 * KIB
    assert job == change_job(changes)


def test_a_job_without_large_parts_is_kept_whole() -> None:
    job = build_job()
    assert without_too_large(job) == job
    assert not any(isinstance(part, TooLarge) for part in without_too_large(job)["spec"].values())


@pytest.mark.parametrize(
    ("changes", "path", "found"),
    [
        ({"spec.worker.replicas": 600}, "spec.worker.replicas", "35."),
        (
            {"spec.worker.replicas": 3, "spec.chief": {}, "spec.ps": {"replicas": 600}},
            "spec.ps.replicas",
            "35.",
        ),
        (
            {
                "spec.worker.replicas": 400,
                "spec.output": {"csi": {"driver": "a", "volumeAttributes": {"note": "x" * 40 * KIB}}},
            },
            "spec.worker.replicas",
            "39.",
        ),
    ],
)
def test_all_pods_together_are_bounded(changes: dict[str, Any], path: str, found: str) -> None:
    large = {"spec.template.spec.note": "x" * 60 * KIB}
    (message,) = errors_of(change_job({**large, **changes}))[path]
    assert message.startswith(f"the templates and the output of all pods together are {found}")
    assert "at most 32 MiB are allowed: ask for fewer replicas, or keep files in" in message
    assert errors_of(change_job(changes)) == {}


def test_a_role_with_a_template_of_its_own_repeats_no_other() -> None:
    small = deepcopy(build_job()["spec"]["template"])
    large = {"spec.template.spec.note": "x" * 60 * KIB, "spec.worker.replicas": 1000}
    assert errors_of(change_job({**large, "spec.worker.template": small})) == {}
    assert errors_of(change_job(large))


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({"spec.worker.replicas": 1000}, True),  # and an evaluator
        ({"spec.worker.replicas": 999, "spec.chief": {}}, True),
        ({"spec.worker.replicas": 1000, "spec.chief": {}}, False),
        ({"spec.worker.replicas": 500, "spec.chief": {}, "spec.ps": {"replicas": 499}}, True),
        ({"spec.worker.replicas": 500, "spec.chief": {}, "spec.ps": {"replicas": 500}}, False),
    ],
)
def test_a_thousand_replicas_train_at_most(changes: dict[str, Any], good: bool) -> None:
    assert (errors_of(change_job(changes)) == {}) is good


@pytest.mark.parametrize(
    "changes",
    [
        {"spec.worker.replicas": 1000, "spec.chief": {}, "spec.ps": {"replicas": 1000}},
        {AFFINITY: "x" * 1_300_000},
        {"spec.template.spec.note": "x" * 60 * KIB, "spec.worker.replicas": 1000},
    ],
)
def test_a_job_that_has_started_continues_at_any_size(changes: dict[str, Any]) -> None:
    job = change_job({**changes, "status": BEGUN})
    with pytest.raises(InvalidTrainJob):
        parse(job)  # a file may hold any status
    assert parse(job, has_begun=True).status.start_time is not None


@pytest.mark.parametrize(
    "value",
    [10**5000, float("nan"), {1: 2}, {"a": object()}, "\ud800"],
    ids=["integer", "nan", "key", "object", "text"],
)
def test_what_is_no_json_is_left_to_others(value: Any) -> None:
    assert list(size.find_too_large({"spec": {"template": {"spec": value}}})) == []


@pytest.mark.parametrize(
    ("name", "namespace", "most"), [("digits", "research", 1000), ("j" * 42, "n" * 63, 751)]
)
def test_all_addresses_fit_into_one_variable_of_linux(name: str, namespace: str, most: int) -> None:
    def with_workers(number: int) -> dict[str, Any]:
        return build_job(name=name, namespace=namespace, workers=number)

    job = parse(with_workers(most))
    variable = "TF_CONFIG=" + build_tf_config(job, Replica("worker", most - 1))
    assert len(variable) < 128 * KIB
    if most < size.MOST_REPLICAS:
        assert len(variable) > 120 * KIB
        (message,) = errors_of(with_workers(most + 1))["spec.worker.replicas"]
        assert f"with these names of the job and its namespace, {most} do" in message
