"""Each rule, by a job that breaks it and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from support.world.changes import change_job, errors_of
from support.world.jobs import build_job
from support.world.wrong_jobs import ACCEPTED, BROKEN


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
