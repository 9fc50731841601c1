from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kube.api_server import status_object
from trainjob.cluster import AlreadyExists, ClusterError, Conflict, NotFound, Refused, Unavailable
from trainjob.cluster.kube.responses import Expired, Unauthorized, error_of


def told(code: int, reason: str = "", message: str = "said so", **details: Any) -> bytes:
    return json.dumps(status_object(code, reason, message, **details)).encode()


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (409, "", Conflict),
        (401, "Unauthorized", Unauthorized),
        (410, "Expired", Expired),
        (410, "Gone", Expired),
        (408, "Timeout", Unavailable),
        (429, "TooManyRequests", Unavailable),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (504, "Timeout", Unavailable),
    ],
)
def test_each_answer_says_what_to_do_next(code: int, reason: str, kind: type[ClusterError]) -> None:
    error = error_of(code, told(code, reason))
    assert type(error) is kind
    assert str(error) == "said so"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (400, "BadRequest"),
        (403, "Forbidden"),
        (405, "MethodNotAllowed"),
        (413, "RequestEntityTooLarge"),
        (415, "UnsupportedMediaType"),
        (422, "Invalid"),
    ],
)
def test_a_refusal_keeps_kubernetes_reason_and_message(code: int, reason: str) -> None:
    error = error_of(code, told(code, reason, 'unknown field "spec.containers[0].imagee"'))
    assert isinstance(error, Refused)
    assert (error.reason, error.message) == (reason, 'unknown field "spec.containers[0].imagee"')


BY_POLICY = "ValidatingAdmissionPolicy 'labels' with binding 'labels' denied request: no label"
BY_WEBHOOK = 'admission webhook "pods.example.com" denied the request: no label'
OF_A_FIELD = [
    {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.containers[0].image"}
]


@pytest.mark.parametrize(
    ("code", "reason", "message", "causes"),
    [
        (422, "Invalid", f'pods "a" is forbidden: {BY_POLICY}', [{"message": BY_POLICY}]),
        (401, "Unauthorized", f'pods "a" is forbidden: {BY_POLICY}', [{"message": BY_POLICY}]),
        (413, "RequestEntityTooLarge", f'pods "a" is forbidden: {BY_POLICY}', [{"message": BY_POLICY}]),
        (400, "", BY_WEBHOOK, []),
        (400, "BadRequest", BY_WEBHOOK, []),
        (403, "Forbidden", BY_WEBHOOK, []),
        (404, "NotFound", BY_WEBHOOK, []),
        (409, "Conflict", BY_WEBHOOK, []),
        (422, "Invalid", BY_WEBHOOK, OF_A_FIELD),
    ],
)
def test_a_denial_by_a_policy_or_webhook_is_not_the_templates_fault(
    code: int, reason: str, message: str, causes: list[dict[str, str]]
) -> None:
    error = error_of(code, told(code, reason, message, causes=causes))
    assert isinstance(error, Refused)
    assert (error.reason, error.message) == ("Forbidden", message)


@pytest.mark.parametrize(
    ("code", "reason", "message", "causes"),
    [
        (422, "Invalid", 'Pod "a" is invalid: spec.containers[0].image: Required value', OF_A_FIELD),
        (422, "Invalid", 'Pod "a" is invalid', []),
        (400, "BadRequest", 'Pod in version "v1" cannot be handled as a Pod: strict decoding error', []),
    ],
)
def test_what_the_api_server_can_not_accept_stays_refused(
    code: int, reason: str, message: str, causes: list[dict[str, str]]
) -> None:
    error = error_of(code, told(code, reason, message, causes=causes))
    assert isinstance(error, Refused)
    assert error.reason == reason


def test_the_end_of_a_namespace_differs_from_other_prohibitions() -> None:
    causes = [{"reason": "NamespaceTerminating", "message": "namespace lab is being terminated"}]
    error = error_of(403, told(403, "Forbidden", causes=causes))
    assert isinstance(error, Refused)
    assert error.reason == "NamespaceTerminating"


def test_another_uid_in_a_patch_is_a_conflict() -> None:
    causes = [{"reason": "FieldValueInvalid", "message": "field is immutable", "field": "metadata.uid"}]
    assert isinstance(error_of(422, told(422, "Invalid", causes=causes)), Conflict)


@pytest.mark.parametrize(
    ("header", "details", "wait"),
    [
        ("7", {}, 7.0),
        (None, {"retryAfterSeconds": 3}, 3.0),
        ("7", {"retryAfterSeconds": 3}, 7.0),
        ("86400", {}, 60.0),
        (None, {"retryAfterSeconds": 86400}, 60.0),
        (None, {}, None),
        (None, {"retryAfterSeconds": 0}, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {}, None),
        ("-1", {}, None),
        ("inf", {}, None),
        ("nan", {}, None),
    ],
)
@pytest.mark.parametrize("code", [429, 503])
def test_it_waits_as_long_as_it_is_asked_to(
    code: int, header: str | None, details: dict[str, Any], wait: float | None
) -> None:
    error = error_of(code, told(code, **details), header)
    assert isinstance(error, Unavailable)
    assert error.retry_after == wait


@pytest.mark.parametrize("body", [b"404 page not found", b"<html>", b"", b"[]", b'{"kind": "Pod"}', b"\xff"])
@pytest.mark.parametrize("code", [301, 400, 403, 404, 409, 502])
def test_an_answer_of_something_else_says_nothing_about_the_object(code: int, body: bytes) -> None:
    assert type(error_of(code, body)) is Unavailable


def test_a_proxy_may_refuse_what_is_too_large() -> None:
    assert isinstance(error_of(413, b"too large"), Refused)


@given(st.integers(300, 599), st.binary(max_size=300), st.none() | st.text(max_size=20))
def test_every_answer_is_some_error_of_a_cluster(code: int, body: bytes, header: str | None) -> None:
    assert isinstance(error_of(code, body, header), ClusterError)


@settings(max_examples=settings().max_examples // 3)
@given(
    st.integers(300, 599),
    st.dictionaries(
        st.sampled_from(["reason", "message", "details", "code"]),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["causes", "reason"]), inner),
        ),
    ),
)
def test_a_status_of_any_shape_is_some_error_of_a_cluster(code: int, status: dict[str, Any]) -> None:
    assert isinstance(error_of(code, json.dumps({**status, "kind": "Status"}).encode()), ClusterError)
