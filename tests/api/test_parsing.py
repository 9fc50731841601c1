"""From JSON to the typed model: defaults, what is ignored, what stays as it is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from support.world.changes import change_job, errors_of
from support.world.jobs import build_job
from trainjob.api import FieldError, InvalidTrainJob, TrainJobStatus, longest_name, parse

ODD_TEXTS = (
    "{{ 7*7 }}",
    "{% raw %}",
    "a: b\n- c",
    "'single' \"double\" `back`",
    "🦆 ünïcode",
    "x" * 60,
    "$(HOME) ${HOME}",
    "\t tab",
    "no",
    "0123",
    "# not a comment",
    "",
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def test_defaults() -> None:
    job = parse(
        build_job(evaluator={}, worker={}, output={"claim": {"claimName": "a"}}),
    )
    spec = job.spec
    assert (spec.worker.replicas, spec.evaluator.replicas, spec.chief, spec.ps) == (1, 1, None, None)
    assert (spec.output.mount_path, spec.output.resume) == ("/output", "Auto")
    assert (spec.max_restarts, spec.restart_strategy, spec.suspend) == (3, "InPlace", False)
    assert (spec.start_timeout_seconds, spec.stall_timeout_seconds) == (600, None)
    assert (job.metadata.namespace, job.metadata.uid, job.status) == ("default", "", TrainJobStatus())


def test_absent_evaluator_is_one_evaluator() -> None:
    raw = build_job()
    del raw["spec"]["evaluator"]
    assert parse(raw).spec.evaluator.replicas == 1


def test_frozen() -> None:
    job = parse(build_job())
    with pytest.raises(ValidationError):
        job.spec.worker.replicas = 3  # type: ignore[misc]


def test_input_is_left_alone() -> None:
    raw = change_job({"spec.maxRestarts": None, "status": {"attempt": "x"}})
    before = repr(raw)
    parse(raw)
    assert repr(raw) == before


def test_integral_number_is_an_integer() -> None:
    replicas = parse(change_job({"spec.worker.replicas": 2.0})).spec.worker.replicas
    assert (replicas, type(replicas)) == (2, int)


def test_null_is_absence() -> None:
    nulls = {"spec.maxRestarts": None, "spec.output.claim.size": None, "spec.output.uri": None}
    assert parse(change_job(nulls)) == parse(build_job())


def test_null_in_the_template_stays() -> None:
    raw = change_job({"spec.template.spec.nodeName": None})
    assert parse(raw).spec.template == raw["spec"]["template"]


def test_metadata_of_the_api_server() -> None:
    metadata = parse(
        change_job(
            {
                "metadata.uid": "u",
                "metadata.generation": 4,
                "metadata.resourceVersion": "17",
                "metadata.creationTimestamp": "2026-01-02T03:04:05Z",
                "metadata.managedFields": [{}],
            }
        )
    ).metadata
    assert (metadata.uid, metadata.generation, metadata.resource_version) == ("u", 4, "17")
    assert metadata.creation_timestamp == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_damaged_status_is_read_as_far_as_it_can_be() -> None:
    status = {
        "attempt": 3,
        "restarts": {"counted": "many"},
        "conditions": [{"type": "Running"}],
        "addedLater": True,
        "message": "training",
    }
    assert parse(change_job({"status": status})).status == TrainJobStatus(attempt=3, message="training")


@pytest.mark.parametrize("raw", [None, [], "x", 7, True])
def test_something_else_than_an_object(raw: Any) -> None:
    with pytest.raises(InvalidTrainJob) as caught:
        parse(raw)
    assert [error.path for error in caught.value.errors] == [""]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_text_comes_out_as_it_went_in(text: str) -> None:
    container = {"command": [text, f"--flag={text}"], "env": [{"name": "A", "value": text}]}
    raw = build_job(container=container, metadata={"annotations": {"example.com/note": text}})
    job = parse(raw)
    assert job.spec.template == raw["spec"]["template"]
    assert job.metadata.annotations == {"example.com/note": text}


@given(JSON)
def test_any_json_is_refused_in_order(raw: Any) -> None:
    assert errors_of(raw)


@given(JSON, st.sampled_from(("metadata", "spec", "spec.worker", "spec.output", "spec.template", "status")))
def test_any_json_inside_a_good_job(value: Any, path: str) -> None:
    errors_of(change_job({path: value}))


@given(JSON)
def test_any_json_inside_the_template_stays(value: Any) -> None:
    raw = change_job({"spec.template.spec.containers[0].securityContext": value})
    # repr, since nan is not equal to itself
    assert repr(parse(raw).spec.template) == repr(raw["spec"]["template"])


def test_integer_too_long_to_print() -> None:
    errors = errors_of(change_job({"spec.maxRestarts": 10**5000}))
    assert errors == {"spec.maxRestarts": ["must be at most 2147483647, got a number of more than 20 digits"]}


@pytest.mark.parametrize(
    ("spec", "most"),
    [
        ({"workers": 1}, 42),
        ({"workers": 1, "evaluator": False}, 45),
        ({"workers": 10, "evaluator": False}, 45),
        ({"workers": 11, "evaluator": False}, 44),
        ({"workers": 1000, "evaluator": False}, 43),
        ({"workers": 1000}, 42),
    ],
)
def test_longest_name_leaves_room_for_every_pod(spec: dict[str, Any], most: int) -> None:
    job = parse(build_job(name="a" * most, **spec))
    assert longest_name(job.spec) == most
    suffix = "-evaluator-0" if job.spec.evaluator.replicas else f"-worker-{job.spec.worker.replicas - 1}"
    assert len("a" * most + suffix + "-12345678") == 63
    assert (
        f"at most {most} characters"
        in errors_of(build_job(name="a" * (most + 1), **spec))["metadata.name"][0]
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FieldError("spec.a", "is wrong"), "spec.a: is wrong"),
        (FieldError("spec.a", "is wrong", 7, "job.yaml"), "job.yaml:7 spec.a: is wrong"),
        (FieldError("spec.a", "is wrong", 7), "line 7 spec.a: is wrong"),
        (FieldError("", "is empty", None, "job.yaml"), "job.yaml: is empty"),
        (FieldError("", "is a list", 3, "job.yaml"), "job.yaml:3: is a list"),
        (FieldError("", "is a list"), "is a list"),
    ],
)
def test_the_text_of_an_error(error: FieldError, text: str) -> None:
    assert str(error) == text
