"""Each rule, by a job that breaks it and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from support.world.changes import REMOVED, change_job, errors_of
from support.world.jobs import build_job
from support.world.mutations import FULL
from support.world.wrong_jobs import ACCEPTED, BROKEN
from trainjob.api import parse
from trainjob.api.rules.spec import IMMUTABLE, IMMUTABLE_RULES, find_immutable


@pytest.mark.parametrize(("changes", "path", "message"), BROKEN)
def test_a_broken_rule_is_reported(changes: dict[str, Any], path: str, message: str) -> None:
    errors = errors_of(change_job(changes))
    assert path in errors
    assert any(message in said for said in errors[path]), errors


@pytest.mark.parametrize("changes", ACCEPTED)
def test_good_job_is_accepted(changes: dict[str, Any]) -> None:
    assert errors_of(change_job(changes)) == {}


def test_every_error_comes_in_one_pass() -> None:
    changes = {
        "metadata.name": "9",
        "spec.worker.replicas": 0,
        "spec.worker.replica": 1,
        "spec.output.mountPath": "x",
        "spec.template.spec.hostNetwork": True,
        "spec.maxRestarts": "many",
    }
    assert set(errors_of(change_job(changes))) == set(changes)


def test_single_mistakes_are_reported_once() -> None:
    for changes, path, _ in BROKEN:
        errors = errors_of(change_job(changes))
        assert len(errors[path]) == len(set(errors[path])), errors


def test_role_template_is_checked_like_the_job_s() -> None:
    template = build_job(pod={"hostNetwork": True})["spec"]["template"]
    for role in ("worker", "chief", "evaluator"):
        errors = errors_of(change_job({f"spec.{role}.template": template}))
        assert list(errors) == [f"spec.{role}.template.spec.hostNetwork"]


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, {}),
        ({"spec.suspend": True, "spec.activeDeadlineSeconds": 5, "spec.worker.replicas": 3}, {}),
        ({"spec.ttlSecondsAfterFinished": REMOVED}, {}),
        ({"spec.maxRestarts": 9}, {"spec.maxRestarts": IMMUTABLE}),
        ({"spec.template.spec.containers[0].image": "x"}, {"spec.template": IMMUTABLE}),
        ({"spec.worker.minReplicas": 2}, {"spec.worker.minReplicas": IMMUTABLE}),
        ({"spec.stallTimeoutSeconds": REMOVED}, {"spec": "can't be added or removed; delete the job and"}),
        ({"spec.worker.minReplicas": REMOVED}, {"spec.worker": "can't be added or removed; delete the job"}),
    ],
)
def test_what_can_be_changed_is_what_the_api_server_lets_through(
    changes: dict[str, Any], refused: dict[str, str]
) -> None:
    before, after = parse(FULL).spec, parse(change_job(changes, FULL)).spec
    found = {error.path: error.message for error in find_immutable(before, after)}
    assert found.keys() == refused.keys()
    assert all(refused[path] in message for path, message in found.items())
    assert set(found.values()) <= {rule.message for rule in IMMUTABLE_RULES}


def test_a_default_that_is_written_out_changes_nothing() -> None:
    before, after = parse(build_job()).spec, parse(build_job(maxRestarts=3, suspend=False)).spec
    assert list(find_immutable(before, after)) == []
