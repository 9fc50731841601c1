from __future__ import annotations

import json
from typing import Any

import pytest

from support.golden import Golden
from support.kube.api_server import status_object
from trainjob.cli.ending import Exit, code_of
from trainjob.client.problems import describe_problem, explain, is_missing, is_passing, lacks_api, no_such_job
from trainjob.cluster.kube.responses import error_of, unreachable
from trainjob.cluster.protocol import ClusterError, RequestFailure

GET = RequestFailure("get", "trainjobs", "digits")
LIST = RequestFailure("list", "trainjobs")
CREATE = RequestFailure("create", "trainjobs")
RBAC = 'trainjobs.trainjob.dev is forbidden: User "jo" cannot list resource "trainjobs"'


def refused(
    request: RequestFailure, code: int, reason: str = "", message: str = "", **details: Any
) -> ClusterError:
    return error_of(code, json.dumps(status_object(code, reason, message, **details)).encode(), None, request)


MISSING = refused(GET, 404, "NotFound", 'trainjobs "digits" not found', name="digits", kind="trainjobs")
NO_NAMESPACE = refused(
    CREATE, 404, "NotFound", 'namespaces "nowhere" not found', name="nowhere", kind="namespaces"
)
NO_CRD = error_of(404, b"404 page not found\n", None, LIST)
NO_KIND = refused(GET, 404, "NotFound", "the server could not find the requested resource")
UNREACHABLE = unreachable(
    RequestFailure("list", "trainjobs", server="https://cluster:6443"), "Connection refused"
)


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (NO_CRD, Exit.NO_CLUSTER),
        (NO_KIND, Exit.NO_CLUSTER),
        (NO_NAMESPACE, Exit.FAILED),
        (refused(LIST, 401, "Unauthorized", "Unauthorized"), Exit.NO_CLUSTER),
        (refused(LIST, 403, "Forbidden", RBAC), Exit.NO_CLUSTER),
        (refused(LIST, 500, "InternalError", "etcd"), Exit.NO_CLUSTER),
        (refused(CREATE, 422, "Invalid", "no good"), Exit.FAILED),
        (error_of(418, b"", None, LIST), Exit.FAILED),
        (UNREACHABLE, Exit.NO_CLUSTER),
    ],
)
def test_a_problem_in_one_sentence(problem: ClusterError, code: Exit, golden: Golden) -> None:
    explained = explain(problem)
    golden(str(explained))
    assert str(explained) == describe_problem(problem)
    assert "\n" not in str(explained)
    assert code_of(explained) == code


@pytest.mark.parametrize(
    ("problem", "missing", "no_api", "passing"),
    [
        (MISSING, True, False, False),
        (NO_NAMESPACE, False, False, False),
        (NO_CRD, False, True, False),
        (NO_KIND, False, True, False),
        (refused(RequestFailure("list", "pods"), 404), False, False, False),
        (refused(LIST, 429, "TooManyRequests"), False, False, True),
        (refused(LIST, 503, "ServiceUnavailable"), False, False, True),
        (refused(LIST, 403, "Forbidden"), False, False, False),
        (UNREACHABLE, False, False, True),
    ],
)
def test_what_a_problem_means(problem: ClusterError, missing: bool, no_api: bool, passing: bool) -> None:
    assert (is_missing(problem), lacks_api(problem), is_passing(problem)) == (missing, no_api, passing)


def test_an_answer_that_is_no_status_is_shortened() -> None:
    failure = error_of(502, b"<html>\n  Bad Gateway" + b"x" * 1000).failure
    assert failure.message.startswith("<html> Bad Gateway")
    assert len(failure.message) == 300
    assert failure.reason == ""


@pytest.mark.parametrize(
    ("here", "elsewhere"),
    [(["digit", "other"], []), (["other"], []), ([], []), (None, []), (["digit"], ["b", "a"])],
)
def test_a_job_that_is_not_there(here: list[str] | None, elsewhere: list[str], golden: Golden) -> None:
    golden(no_such_job("digits", "default", here, elsewhere))
