"""Bad specs: the API server says what `trainjob validate` says, and holds on to what may not change."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from typing import Any

import pytest
from testbed import Cluster

from support.kube.judged_jobs import OF_CREATION, Asked, ask_of_all
from support.kube.verdicts import Verdict, judge_changes, judge_creations
from support.world.changes import REMOVED, change_job, steps_of
from support.world.mutations import FULL
from support.world.wrong_jobs import ACCEPTED
from trainjob.api.errors import value_at
from trainjob.api.rules.spec import IMMUTABLE_RULES

Manifest = dict[str, Any]


pytestmark = pytest.mark.usefixtures("crd")


@pytest.fixture(scope="module")
def asked(control_plane: Cluster) -> list[Asked]:
    return ask_of_all(control_plane)


async def test_good_jobs_are_accepted(control_plane: Cluster) -> None:
    jobs = [FULL, *map(change_job, ACCEPTED)]
    # kubectl turns YAML's 2.0 into 2.
    plain = [json.loads(re.sub(r"\b2\.0\b", "2", json.dumps(job))) for job in jobs]
    verdicts = await judge_creations(control_plane, plain)
    assert [verdict.answer for verdict in verdicts if not verdict.accepted] == []


def test_what_the_api_server_says_by_our_rules_is_what_validate_says(asked: list[Asked]) -> None:
    different = [
        (job.name, field, said)
        for job in asked
        # What is wrong in itself may break rules, too, which nobody needs to be told.
        if len(job.rules_broken) == len(list(job.verdict.causes))
        for field, said in job.rules_broken
        if not any(_leads_to(field, path) and told.startswith(said) for path, told in job.told)
    ]
    assert different == []


def _leads_to(field: str, path: str) -> bool:
    return path == field or path.startswith((f"{field}.", f"{field}["))


def test_every_rule_is_broken_by_some_job(asked: list[Asked]) -> None:
    said = {re.sub(r"at most \d+", "fewer", said) for job in asked for _, said in job.rules_broken}
    rules = {rule.message.removeprefix("metadata.name: ") for rule in OF_CREATION}
    assert said == rules


def test_no_rule_is_left_to_validate_alone(asked: list[Asked]) -> None:
    let_through = [
        (job.name, path, told)
        for job in asked
        if job.verdict.accepted
        for path, told in job.told
        # The API server doesn't look into the templates of roles.
        if not re.match(r"spec\.(worker|chief|ps|evaluator)\.template\.", path)
        if any(told.startswith(rule.message.removeprefix("metadata.name: ")) for rule in OF_CREATION)
    ]
    assert let_through == []


def test_what_the_api_server_refuses_is_refused_here(asked: list[Asked]) -> None:
    only_there = {job.name for job in asked if not job.verdict.accepted and not job.told}
    # Where it is to be created, and what else metadata may hold, only the API server knows.
    assert {name for name in only_there if not name.startswith("metadata.namespace=")} == {"metadata.unknown"}


async def test_what_may_be_changed(control_plane: Cluster, namespace: str, asked: list[Asked]) -> None:
    """A job that exists, in each way in which it could have been created otherwise."""
    control_plane.apply({**FULL, "metadata": {"name": "digits", "namespace": namespace}})
    stored = control_plane.get("trainjobs.trainjob.dev", "digits", namespace=namespace)
    created = [job.verdict.answer["spec"] for job in asked if job.verdict.accepted]
    changes = [spec for spec in created if spec != stored["spec"]]
    verdicts = await judge_changes(control_plane, namespace, [{**stored, "spec": spec} for spec in changes])
    wrong = [
        (spec, verdict.answer)
        for spec, verdict in zip(changes, verdicts, strict=True)
        if verdict.accepted is not _may_become(stored["spec"], spec) or not _is_told_why(verdict)
    ]
    assert wrong == []
    assert {verdict.accepted for verdict in verdicts} == {True, False}


def _may_become(before: Manifest, after: Manifest) -> bool:
    def fixed(spec: Manifest) -> Manifest:
        spec = deepcopy(spec)
        for field in ("suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
            spec.pop(field, None)
        spec["worker"].pop("replicas")
        return spec

    return fixed(before) == fixed(after)


def _is_told_why(verdict: Verdict) -> bool:
    sentences = {rule.message for rule in IMMUTABLE_RULES}
    return verdict.accepted or any(said in sentences for _, said in verdict.causes)


OBJECTS_OF_KUBERNETES = [
    ("spec.template.spec", "nodeSelector", "tolerations"),
    ("spec.template.spec.containers[0]", "command", "args"),
    ("spec.template.spec.containers[0].env[0]", "value", "valueFrom"),
    ("spec.template.spec.containers[0].volumeMounts[0]", "name", "subPath"),
    ("spec.template.spec.volumes[0]", "emptyDir", "hostPath"),
    ("spec.worker.env[0]", "value", "valueFrom"),
    ("spec.worker.resources", "limits", "requests"),
    ("spec.worker.tolerations[0]", "key", "effect"),
    ("spec.worker.affinity", "nodeAffinity", "podAffinity"),
    ("spec.evaluator.template", "metadata", "new"),
    ("spec.output.csi", "fsType", "readOnly"),
]
"""With two fields that take turns in the same object."""


async def test_one_field_does_not_pass_for_another(control_plane: Cluster, namespace: str) -> None:
    """To a rule two objects are equal that have as many fields, unless the schema names the fields."""
    before, swaps = FIELDS_TAKE_TURNS, []
    control_plane.apply({**before, "metadata": {"name": "digits", "namespace": namespace}})
    stored = control_plane.get("trainjobs.trainjob.dev", "digits", namespace=namespace)
    for path, old, new in OBJECTS_OF_KUBERNETES:
        value = value_at(stored, *steps_of(path), old)
        assert value is not None, path
        swaps.append(change_job({f"{path}.{old}": REMOVED, f"{path}.{new}": value}, stored))
    verdicts = await judge_changes(control_plane, namespace, swaps)
    told = {
        path: _is_told_why(verdict) and not verdict.accepted
        for (path, _, _), verdict in zip(OBJECTS_OF_KUBERNETES, verdicts, strict=True)
    }
    assert told == dict.fromkeys(told, True)


FIELDS_TAKE_TURNS = change_job(
    {
        "spec.output": {"csi": {"driver": "csi.example.com", "fsType": "ext4"}},
        "spec.evaluator.template": {"metadata": {}, "spec": {"containers": [{"name": "trainer"}]}},
        "spec.worker.env": [{"name": "A", "value": "b"}],
        "spec.worker.resources": {"limits": {"cpu": "1"}},
        "spec.worker.tolerations": [{"key": "gpu", "operator": "Exists"}],
        "spec.worker.affinity": {"nodeAffinity": {}},
        "spec.template.spec.nodeSelector": {"pool": "gpu"},
        "spec.template.spec.volumes": [{"name": "data", "emptyDir": {}}],
        "spec.template.spec.containers[0].env": [{"name": "A", "value": "b"}],
        "spec.template.spec.containers[0].volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
)
