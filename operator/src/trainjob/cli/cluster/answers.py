"""What an API server answers when it doesn't do what it was asked, and what to make of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainjob.api.group import API_VERSION, PLURAL

_TRANSIENT = frozenset([408, 429, 500, 502, 503, 504])
_SHOWN_BODY = 300


@dataclass(frozen=True)
class Request:
    """What was asked, as far as messages name it.

    Attributes:
        verb: in Kubernetes' words: `get`, `list`, `watch`, `create`, `patch`.
        resource: the plural, such as `pods`; `pods/log` for logs.
        namespace: None for all of them.
    """

    verb: str
    resource: str
    namespace: str | None = None
    name: str = ""


@dataclass(frozen=True)
class Answer:
    """A `Status` that isn't Success, read from whatever came.

    Attributes:
        code: of HTTP.
        reason: Kubernetes' word, such as `NotFound`; empty when it isn't Kubernetes that speaks.
        message: the API server's own sentence.
        details: which object it is about, and the causes.
        retry_after: seconds that it asks to wait, or None.
    """

    code: int
    reason: str = ""
    message: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    retry_after: float | None = None

    @property
    def is_passing(self) -> bool:
        """Tell whether the same request may do better a little later."""
        return self.code in _TRANSIENT

    @property
    def causes(self) -> tuple[Mapping[str, Any], ...]:
        """Return the single mistakes, where it names them."""
        return tuple(cause for cause in self.details.get("causes") or () if isinstance(cause, Mapping))


class ServerProblem(Exception):
    """The API server did not do what it was asked.

    Attributes:
        request: what that was.
    """

    request: Request


class Refused(ServerProblem):
    """It answered, and the answer is no.

    Attributes:
        answer: what it said.
    """

    def __init__(self, request: Request, answer: Answer) -> None:
        super().__init__(answer.message)
        self.request, self.answer = request, answer


class Unreachable(ServerProblem):
    """It did not answer, or the answer broke off.

    Attributes:
        why: in the words of the network.
        server: its address.
    """

    def __init__(self, request: Request, why: str, server: str) -> None:
        super().__init__(why)
        self.request, self.why, self.server = request, why, server


def read_answer(code: int, body: str | bytes | None, retry_after: str | None = None) -> Answer:
    """Return the answer; a body that isn't a `Status` (a proxy's page, say) is shortened to its beginning."""
    wait = float(retry_after) if retry_after and retry_after.isdecimal() else None
    text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    try:
        status = json.loads(text)
    except ValueError:
        status = None
    if not isinstance(status, dict) or status.get("kind") != "Status":
        return Answer(code, message=" ".join(text.split())[:_SHOWN_BODY], retry_after=wait)
    return read_status(status, code=code, retry_after=wait)


def read_status(status: Mapping[str, Any], *, code: int = 0, retry_after: float | None = None) -> Answer:
    """Return the answer of a `Status` object, which a watch may also bring."""
    details = status.get("details")
    return Answer(
        code=code or int(status.get("code") or 0),
        reason=str(status.get("reason") or ""),
        message=str(status.get("message") or ""),
        details=details if isinstance(details, Mapping) else {},
        retry_after=retry_after,
    )


def is_passing(problem: ServerProblem) -> bool:
    """Tell whether the same request may do better a little later."""
    return isinstance(problem, Unreachable) or (isinstance(problem, Refused) and problem.answer.is_passing)


def is_missing(problem: ServerProblem) -> bool:
    """Tell whether the object that was asked for is not there, while its kind is."""
    if not isinstance(problem, Refused) or problem.answer.code != 404:
        return False
    return bool(problem.request.name) and problem.answer.details.get("name") == problem.request.name


def lacks_api(problem: ServerProblem) -> bool:
    """Tell whether the cluster doesn't know TrainJobs at all: its CRD is not installed."""
    if not isinstance(problem, Refused) or problem.request.resource != PLURAL:
        return False
    # A missing object is named by the answer, and so is a missing namespace.
    return problem.answer.code == 404 and not problem.answer.details.get("name")


def describe_problem(problem: ServerProblem) -> str:
    """Return one sentence, and what to do about it."""
    if isinstance(problem, Unreachable):
        return f"the API server {problem.server} can't be reached: {problem.why}"
    assert isinstance(problem, Refused)  # noqa: S101 - there are two kinds
    return _describe(problem.request, problem.answer) if not lacks_api(problem) else _NO_API


_NO_API = (
    f"this cluster has no {PLURAL} of {API_VERSION}: the CRD is not installed"
    " (or it is another cluster than you mean: see --context)"
)


def _describe(request: Request, answer: Answer) -> str:
    words = answer.message or answer.reason or f"HTTP status {answer.code}"
    if answer.code == 401:
        return f"the API server doesn't accept your credentials ({words}): log in to the cluster again"
    if answer.code == 403:
        return f"the API server doesn't allow it: {words}"
    if answer.code == 404 and answer.details.get("kind") == "namespaces":
        return f"there is no namespace {answer.details.get('name')!r} in this cluster"
    if answer.is_passing:
        return f"the API server can't {request.verb} {request.resource} now: {words}"
    return f"the API server refuses to {request.verb} {request.resource}: {words}"
