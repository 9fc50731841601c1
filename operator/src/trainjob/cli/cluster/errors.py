"""Errors of commands for a cluster: the API server's responses as messages, and exit codes."""

import difflib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import click

from trainjob.api.constants import API_VERSION, PLURAL

# Exit codes of all commands for a cluster, as docs/cli.md lists them.


class Exit(IntEnum):
    """The exit code of a command."""

    GOOD = 0
    FAILED = 1
    """The job failed, a file has mistakes, the cluster refused it, or there is no profile."""
    USAGE = 2
    """The command line is wrong, a file can't be read, or the output can't be written."""
    NO_JOB = 3
    """There is no such job, or it was deleted meanwhile."""
    NO_CLUSTER = 4
    """The cluster can't be used: no kubeconfig, no response, no permission, no TrainJob API."""
    TIMEOUT = 124
    """The time given by --timeout is over; the code of `timeout` in coreutils."""
    INTERRUPTED = 130
    """Ctrl-C."""
    NOBODY_READS = 141
    """The program that read the output has exited, as after `| head`."""


def describe_exits(meanings: Mapping[Exit, str]) -> str:
    """Return the part of a command's help that explains its exit codes."""
    rows = (f"  {code.value:<4} {meaning}" for code, meaning in meanings.items())
    return "\n".join(["\b", "Exit codes:", *rows])


# Error responses of an API server.


_TRANSIENT = frozenset([408, 429, 500, 502, 503, 504])
_SHOWN_BODY = 300


@dataclass(frozen=True)
class Request:
    """The parts of a request that messages name.

    Attributes:
        verb: of Kubernetes: `get`, `list`, `watch`, `create`, `patch`.
        resource: the plural, such as `pods`; `pods/log` for logs.
        namespace: None for all of them.
    """

    verb: str
    resource: str
    namespace: str | None = None
    name: str = ""


@dataclass(frozen=True)
class Answer:
    """A `Status` other than Success, read from any response.

    Attributes:
        code: HTTP status code.
        reason: of Kubernetes, such as `NotFound`; empty when something else responds.
        message: of the API server.
        details: which object it is about, and the causes.
        retry_after: seconds that the API server asks to wait, or None.
    """

    code: int
    reason: str = ""
    message: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    retry_after: float | None = None

    @property
    def is_passing(self) -> bool:
        """Return whether the same request may succeed a little later."""
        return self.code in _TRANSIENT

    @property
    def causes(self) -> tuple[Mapping[str, Any], ...]:
        """Return the single mistakes, if the response names them."""
        return tuple(cause for cause in self.details.get("causes") or () if isinstance(cause, Mapping))


class ServerProblem(Exception):
    """The API server did not carry out a request.

    Attributes:
        request: the request.
    """

    request: Request


class Refused(ServerProblem):
    """The API server refused the request.

    Attributes:
        answer: its response.
    """

    def __init__(self, request: Request, answer: Answer) -> None:
        super().__init__(answer.message)
        self.request, self.answer = request, answer


class Unreachable(ServerProblem):
    """The API server did not respond, or the response broke off.

    Attributes:
        why: message of the network.
        server: its address.
    """

    def __init__(self, request: Request, why: str, server: str) -> None:
        super().__init__(why)
        self.request, self.why, self.server = request, why, server


def read_answer(code: int, body: str | bytes | None, retry_after: str | None = None) -> Answer:
    """Return the response; of a body that isn't a `Status` (a proxy's page, say), only the beginning."""
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
    """Return the response in a `Status` object, which may also come from a watch."""
    details = status.get("details")
    return Answer(
        code=code or int(status.get("code") or 0),
        reason=str(status.get("reason") or ""),
        message=str(status.get("message") or ""),
        details=details if isinstance(details, Mapping) else {},
        retry_after=retry_after,
    )


def is_passing(problem: ServerProblem) -> bool:
    """Return whether the same request may succeed a little later."""
    return isinstance(problem, Unreachable) or (isinstance(problem, Refused) and problem.answer.is_passing)


def is_missing(problem: ServerProblem) -> bool:
    """Return whether the requested object doesn't exist, while its kind does."""
    if not isinstance(problem, Refused) or problem.answer.code != 404:
        return False
    return bool(problem.request.name) and problem.answer.details.get("name") == problem.request.name


def lacks_api(problem: ServerProblem) -> bool:
    """Return whether the cluster doesn't know TrainJobs at all: the CRD is not installed."""
    if not isinstance(problem, Refused) or problem.request.resource != PLURAL:
        return False
    # The response names a missing object, and a missing namespace.
    return problem.answer.code == 404 and not problem.answer.details.get("name")


def describe_problem(problem: ServerProblem) -> str:
    """Return the problem in one sentence, with what to do about it."""
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


# Exceptions that end a command: one sentence on stderr and an exit code.


class ClusterProblem(click.ClickException):
    """Printed without a traceback, and without terminal control characters from a cluster or a pod."""

    exit_code = Exit.FAILED

    def show(self, file: object = None) -> None:
        """Print the sentence on stderr."""
        del file
        from trainjob.core.wording import printable  # noqa: PLC0415 - most commands end without a problem

        click.echo(printable(self.message), err=True)


class NoCluster(ClusterProblem):
    """The cluster can't be used."""

    exit_code = Exit.NO_CLUSTER


class NoJob(ClusterProblem):
    """The job doesn't exist, or no longer exists."""

    exit_code = Exit.NO_JOB


class TimeIsOver(ClusterProblem):
    """The awaited event did not happen in time."""

    exit_code = Exit.TIMEOUT


def explain(problem: ServerProblem) -> ClusterProblem:
    """Return the exception that ends a command for an unhandled problem."""
    sentence = describe_problem(problem)
    if isinstance(problem, Unreachable) or lacks_api(problem):
        return NoCluster(sentence)
    assert isinstance(problem, Refused)  # noqa: S101 - there are two kinds
    if problem.answer.code in (401, 403) or problem.answer.is_passing:
        return NoCluster(sentence)
    return ClusterProblem(sentence)


def no_such_job(name: str, namespace: str, here: Collection[str] | None, elsewhere: Iterable[str]) -> str:
    """Return the message for a job that doesn't exist, with suggestions.

    Args:
        name: of the requested job.
        namespace: of the requested job.
        here: names of the jobs in it, None if they can't be listed.
        elsewhere: other namespaces with a job of this name.
    """
    sentence = f"there is no TrainJob {name!r} in namespace {namespace}"
    others = sorted(elsewhere)
    if others:
        also = f" (also in {', '.join(others[1:])})" if others[1:] else ""
        return f"{sentence}; there is one in namespace {others[0]}{also}: use -n {others[0]}"
    similar = difflib.get_close_matches(name, here or (), n=3)
    if similar:
        return f"{sentence}; did you mean {' or '.join(similar)}?"
    if here is not None and not here:
        return f"{sentence}, nor any other: see --namespace and --context"
    return sentence
