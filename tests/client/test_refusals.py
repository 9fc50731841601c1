from __future__ import annotations

from typing import Any

import click
import pytest

from support.golden import Golden
from trainjob.api import Document, read_documents
from trainjob.cli.documents import RefusedFile
from trainjob.cli.options import Duration, namespace_of
from trainjob.cli.submit import changed_fields, changes_told, refusal_told
from trainjob.client.problems import describe_refusal
from trainjob.cluster.protocol import RequestFailure

TEXT = """\
apiVersion: trainjob.dev/v1alpha1
kind: TrainJob
metadata:
  name: digits
spec:
  worker: {replicas: 2}
  output: {claim: {claimName: training}}
  template:
    spec:
      containers:
      - name: trainer
        image: x
        env:
        - {name: A, value: b}
"""


def document(text: str = TEXT) -> Document:
    (read,) = read_documents(text, source="job.yaml")
    return read


def answer(message: str = "", *causes: tuple[str, str]) -> RequestFailure:
    details = {"causes": [{"field": f, "message": m} for f, m in causes]}
    return RequestFailure(code=422, reason="Invalid", message=message, details=details)


UNKNOWN = (
    'Pod in version "v1" cannot be handled as a Pod: strict decoding error:'
    ' unknown field "spec.containers[0].imagePulPolicy", unknown field "spec.nodeNam"'
)


@pytest.mark.parametrize(
    ("refusal", "root"),
    [
        (answer("", ("spec.worker.replicas", "too many")), ""),
        (answer("", ("<nil>", "name: too long")), ""),
        (answer("", ("spec.containers[0].image", "no good"), ("spec.volumes", "no good")), "spec.template"),
        # Ours stand before the user's.
        (answer("", ("spec.containers[0].env[8].name", "no good")), "spec.template"),
        (answer(UNKNOWN), "spec.template"),
        (answer("exceeded quota: q"), "spec.template"),
        (RequestFailure(code=422), ""),
    ],
)
def test_the_api_servers_message_beside_the_lines(refusal: RequestFailure, root: str, golden: Golden) -> None:
    golden(*describe_refusal(refusal, document(), root))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": 1}, ()),
        ({"a": {"b": 1, "c": [1]}}, {"a": {"b": 2, "c": [1, 2]}}, ("spec.a.b", "spec.a.c")),
        ({}, {"suspend": True}, ("spec.suspend",)),
        ({"suspend": True}, {}, ("spec.suspend",)),
        (None, {"a": 1}, ("spec",)),
    ],
)
def test_which_fields_differ(before: Any, after: Any, expected: tuple[str, ...]) -> None:
    assert changed_fields(before, after) == expected


def test_what_applying_would_do(golden: Golden) -> None:
    golden(*changes_told((), "job.yaml"))
    golden(*changes_told(tuple(f"spec.f{n}" for n in range(10)), "job.yaml"))
    golden(*refusal_told(answer("", ("spec.output", "is immutable")), "job.yaml"))
    golden(*refusal_told(RequestFailure(code=422, message="no"), "f"))


@pytest.mark.parametrize(
    ("own", "asked", "expected"),
    [("", None, "context"), ("file", None, "file"), ("", "asked", "asked"), ("same", "same", "same")],
)
def test_the_namespace(own: str, asked: str | None, expected: str) -> None:
    text = TEXT.replace("name: digits", f"name: digits\n  namespace: {own}") if own else TEXT
    assert namespace_of(document(text), asked, "context") == expected


def test_two_namespaces() -> None:
    text = TEXT.replace("name: digits", "name: digits\n  namespace: file")
    with pytest.raises(RefusedFile, match=r"job.yaml:5 metadata.namespace: is file, but -n asks for asked"):
        namespace_of(document(text), "asked", "context")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5s", 1.5), ("15m", 900), ("1h30m", 5400), ("2h0m5s", 7205), ("0", 0)],
)
def test_a_time(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5", "5x", "1m1h", "nan"])
def test_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write seconds, or 90s"):
        Duration().convert(text, None, None)
