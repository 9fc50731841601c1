"""Hundreds of damaged jobs: each is accepted, or refused with a field that exists; nothing else happens."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from support.world.changes import change_job, errors_of, walk_values
from support.world.mutations import FULL, mutations
from trainjob.api import rules
from trainjob.api.errors import format_path, value_at
from trainjob.codegen.crd import object_schema


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


@pytest.fixture(scope="module")
def judged() -> list[tuple[str, dict[str, Any], dict[str, list[str]]]]:
    """Each mutation with its name and its errors."""
    return [(name, raw, errors_of(raw)) for name, raw in mutations()]


def test_each_mutation_is_accepted_or_refused_with_a_field(judged: Any) -> None:
    verdicts = {"accepted": 0, "refused": 0}
    for name, raw, errors in judged:
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


def test_schema_of_the_api_server_agrees_on_types_and_ranges(judged: Any) -> None:
    schema = jsonschema.Draft4Validator(object_schema())
    compared = 0
    for name, raw, errors in judged:
        if ".unknown" in name or "=None" in name or name.startswith(("kind", "apiVersion", "metadata")):
            # Unknown fields and nulls are pruned before the schema is asked; the rest is not the schema's.
            continue
        compared += 1
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
