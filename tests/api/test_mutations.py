"""Hundreds of damaged jobs: each is accepted, or refused with a field that exists; nothing else happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
from support_api import REMOVED, change_job, errors_of, walk_values
from support_jobs import build_job

from trainjob.api import rules
from trainjob.api.generate.crd import object_schema
from trainjob.api.paths import format_path, value_at

WRONG_VALUES: tuple[Any, ...] = (
    "two",
    "",
    "x" * 5000,
    "{{ 7*7 }}",
    "a: b\n- c",
    -1,
    0,
    1.5,
    2**31,
    10**40,
    1e308,
    True,
    None,
    [],
    [None],
    [[]],
    {},
    {"": None},
    {"a": {"b": [1]}},
    REMOVED,
)

FULL = build_job(
    evaluator={"replicas": 1, "env": [{"name": "A", "value": "1"}], "completionTimeoutSeconds": 60},
    worker={
        "replicas": 2,
        "minReplicas": 1,
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "resources": {"limits": {"cpu": "1"}},
        "priorityClassName": "batch",
    },
    chief={"replicas": 1},
    ps={"replicas": 1, "affinity": {}},
    output={
        "claim": {
            "size": "10Gi",
            "storageClassName": "nfs",
            "accessModes": ["ReadWriteMany"],
            "retain": True,
        },
        "mountPath": "/output",
        "resume": "Auto",
    },
    suspend=False,
    activeDeadlineSeconds=3600,
    ttlSecondsAfterFinished=60,
    managedBy="kueue.x-k8s.io/multikueue",
    maxRestarts=3,
    restartStrategy="InPlace",
    startTimeoutSeconds=600,
    stallTimeoutSeconds=60,
)


def mutations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each field of a full job with each wrong value, and each object with a field that nobody knows."""
    for steps, value in walk_values(FULL):
        path = format_path(steps)
        if not steps:
            continue
        for wrong in WRONG_VALUES:
            yield (
                f"{path}={'removed' if wrong is REMOVED else repr(wrong)[:20]}",
                change_job({path: wrong}, FULL),
            )
        if isinstance(value, dict):
            yield f"{path}.unknown", change_job({f"{path}.unknown": 1}, FULL)


def names_a_field(path: str, raw: Any) -> bool:
    """Whether the path leads to something in `raw`, or to one step below something in it."""
    known = {format_path(steps) for steps, _ in walk_values(raw)}
    # A missing field is one step below what should hold it; a list or an object stands for all of its parts.
    return path in known or any(
        path.startswith((f"{parent}.", f"{parent}[")) and path.count(".", len(parent)) <= 1
        for parent in known
        if parent
    )


def test_the_full_job_is_good() -> None:
    assert errors_of(FULL) == {}


def test_each_mutation_is_accepted_or_refused_with_a_field() -> None:
    verdicts = {"accepted": 0, "refused": 0}
    for name, raw in mutations():
        errors = errors_of(raw)
        verdicts["refused" if errors else "accepted"] += 1
        for path, messages in errors.items():
            assert path, name
            assert path in ("spec", "metadata", "kind", "apiVersion") or names_a_field(path, raw), (
                name,
                path,
            )
            assert all(message and "\n" not in message and len(message) < 400 for message in messages), (
                messages
            )
    assert sum(verdicts.values()) > 1000
    assert verdicts["accepted"] > 50
    assert verdicts["refused"] > 500


def test_schema_of_the_api_server_agrees_on_types_and_ranges() -> None:
    schema = jsonschema.Draft4Validator(object_schema())
    compared = 0
    for name, raw in mutations():
        if ".unknown" in name or "=None" in name or name.startswith(("kind", "apiVersion", "metadata")):
            # Unknown fields and nulls are pruned before the schema is asked; the rest is not the schema's.
            continue
        compared += 1
        errors = errors_of(raw)
        if not schema.is_valid(raw):
            assert errors, name
            continue
        by_rules = {(error.path, error.message) for error in rules.check(raw)}
        others = {
            (path, message)
            for path, messages in errors.items()
            for message in messages
            if (path, message) not in by_rules and "unknown field" not in message
        }
        assert not others, name
    assert compared > 500


def test_wrong_value_leaves_the_rest_checked() -> None:
    for path in ("spec.worker", "spec.evaluator", "spec.output", "spec.template"):
        raw = change_job({path: "x", "spec.maxRestarts": -1})
        assert {path, "spec.maxRestarts"} <= set(errors_of(raw))
        assert value_at(raw, "spec", "maxRestarts") == -1
