"""Problems with a cluster or a job in it: the API server's responses as messages, and exceptions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from trainjob.api.constants import API_VERSION, PLURAL

if TYPE_CHECKING:
    from trainjob.api import Document
    from trainjob.cluster.protocol import ClusterError, RequestFailure


_TRANSIENT = frozenset([0, 408, 429, 500, 502, 503, 504])
"""HTTP status codes after which the same request may succeed a little later; 0: there was no response."""

_NO_API = (
    f"this cluster has no {PLURAL} of {API_VERSION}: the CRD is not installed (or this is the wrong cluster: "
    "see --context)"
)


def is_passing(error: ClusterError) -> bool:
    """Return whether the same request may succeed a little later."""
    return error.failure.code in _TRANSIENT


def is_missing(error: ClusterError) -> bool:
    """Return whether the requested object doesn't exist, while its kind does."""
    failure = error.failure
    return failure.code == 404 and bool(failure.name) and failure.details.get("name") == failure.name


def lacks_api(error: ClusterError) -> bool:
    """Return whether the cluster doesn't know TrainJobs at all: the CRD is not installed."""
    failure = error.failure
    # The response names a missing object, and a missing namespace.
    return failure.resource == PLURAL and failure.code == 404 and not failure.details.get("name")


def describe_problem(error: ClusterError) -> str:
    """Return the problem in one sentence, with what to do about it."""
    from trainjob.core.wording import printable  # noqa: PLC0415 - most commands end without a problem

    failure = error.failure
    words = printable(failure.message or failure.reason) or f"HTTP status {failure.code}"
    if failure.code == 0:
        return f"the API server {failure.server} can't be reached: {words}"
    if lacks_api(error):
        return _NO_API
    if failure.code == 401:
        return f"the API server doesn't accept your credentials ({words}): log in to the cluster again"
    if failure.code == 403:
        return f"the API server doesn't allow it: {words}"
    if failure.code == 404 and failure.details.get("kind") == "namespaces":
        return f"there is no namespace {failure.details.get('name')!r} in this cluster"
    if is_passing(error):
        return f"the API server can't {failure.verb} {failure.resource} now: {words}"
    return f"the API server refuses to {failure.verb} {failure.resource}: {words}"


# Refusals of the API server: its messages, with the lines of the file.


_UNKNOWN = re.compile(r'unknown field "([^"]+)"')
_VARIABLE = re.compile(r"\.env\[\d+\].*")
_STRICT = "strict decoding error: "
_ROOT = ("", "<nil>")


def describe_refusal(
    failure: RequestFailure, document: Document, root: str = "", about: str = ""
) -> tuple[str, ...]:
    """Return one line for each mistake.

    Args:
        failure: the API server's response.
        document: the refused object, or its source.
        root: the path in the document to which the response's fields are relative, such as `spec.template`.
        about: the name of the object, if it isn't the document itself.
    """
    return tuple(
        f"{document.source}:{document.line_of(_within(root, field))} {about}{words}"
        for field, words in _mistakes(failure)
    )


def _mistakes(failure: RequestFailure) -> Iterable[tuple[str, str]]:
    named = [(str(c.get("field", "")), str(c.get("message", ""))) for c in failure.causes]
    # The structural schema and a rule may give the same cause for one field.
    causes = dict.fromkeys((f, f"{f}: {m}" if f not in _ROOT else m) for f, m in named if m)
    if causes:
        return causes
    _, strict, rest = failure.message.partition(_STRICT)
    if strict:
        return [(found[1] if (found := _UNKNOWN.search(part)) else "", part) for part in rest.split(", ")]
    return [("", failure.message or failure.reason or f"HTTP status {failure.code}")]


def _within(root: str, field: str) -> str:
    if field in _ROOT:
        return root
    # The controller's variables come before the user's, so the index differs from the one in the file.
    plain = _VARIABLE.sub(".env", field) if root else field
    return f"{root}.{plain}" if root else plain


class ClusterProblem(Exception):
    """The cluster refused a request for good; the sentence says what and why."""


class NoCluster(ClusterProblem):
    """The cluster can't be used: no kubeconfig, no response, no permission, no TrainJob API."""


class NoJob(ClusterProblem):
    """The job doesn't exist, or no longer exists."""


class TimeIsOver(ClusterProblem):
    """The awaited event did not happen in time."""


def explain(error: ClusterError) -> ClusterProblem:
    """Return the exception for a failed request."""
    sentence = describe_problem(error)
    if lacks_api(error) or error.failure.code in (401, 403) or is_passing(error):
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
    if name.endswith((".py", ".ipynb", ".yaml", ".yml")):
        return f"{name} is a file, and this command takes a job's name: trainjob get lists them"
    sentence = f"there is no TrainJob {name!r} in namespace {namespace}"
    others = sorted(elsewhere)
    if others:
        also = f" (also in {', '.join(others[1:])})" if others[1:] else ""
        return f"{sentence}; there is one in namespace {others[0]}{also}: use -n {others[0]}"
    similar = difflib.get_close_matches(name, here or (), n=3)
    if similar:
        return f"{sentence}; did you mean {' or '.join(similar)}?"
    if here is not None and not here:
        return f"{sentence}, which has no TrainJobs at all: check --namespace and --context"
    return sentence
