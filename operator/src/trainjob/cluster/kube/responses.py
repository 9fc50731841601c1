"""Responses of the API server other than success, as errors by their meaning to the caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainjob.cluster.protocol import (
    AlreadyExists,
    ClusterError,
    Conflict,
    NotFound,
    Refused,
    RequestFailure,
    Unavailable,
    read_json,
)

LONGEST_WAIT = 60.0
"""Seconds, the limit of a requested wait: a proxy that asks for a day must not stop a job for a day."""

LONGEST_EXCERPT = 300
"""Characters of a response that is no `Status`, for the message."""


_UNKNOWN = RequestFailure()


class Expired(Unavailable):
    """The resourceVersion or the continuation of a list is too old (HTTP 410): list again."""


class TooLong(Unavailable):
    """The response is larger than was asked for: ask for less."""


class Unauthorized(Unavailable):
    """The token isn't accepted (HTTP 401): it may have been rotated."""


class Unreachable(Unavailable):
    """There was no response, or it broke off."""


def error_of(
    code: int, body: bytes, retry_after: str | None = None, request: RequestFailure = _UNKNOWN
) -> ClusterError:
    """Return the error for a response that is no success.

    Args:
        code: the HTTP status, outside 200-299.
        body: a `Status` object as JSON, or anything else from a proxy or for a missing API.
        retry_after: the header of that name.
        request: the request that failed.
    """
    status = _status_object(body)
    if status is not None:
        return error_of_status(code, status, seconds_of(retry_after), request)
    excerpt = " ".join(body.decode(errors="replace").split())[:LONGEST_EXCERPT]
    failure = replace(request, code=code, message=excerpt)
    return _with(failure, _proxy_error(code, excerpt, seconds_of(retry_after)))


def error_of_status(
    code: int,
    status: Mapping[str, Any],
    retry_after: float | None = None,
    request: RequestFailure = _UNKNOWN,
) -> ClusterError:
    """Return the error for a `Status` object and the HTTP status beside it."""
    details = status.get("details")
    failure = replace(
        request,
        code=code,
        reason=str(status.get("reason") or ""),
        message=str(status.get("message") or ""),
        details=details if isinstance(details, Mapping) else {},
    )
    return _with(failure, _error_of_status(failure, retry_after))


def _error_of_status(failure: RequestFailure, retry_after: float | None) -> ClusterError:
    code, reason = failure.code, failure.reason
    message = failure.message or reason or f"HTTP {code}"
    if 400 <= code < 500 and code != 429 and _is_denied(failure):
        return Refused("Forbidden", message)
    match code:
        case 404:
            return NotFound(message)
        case 409:
            return AlreadyExists(message) if reason == "AlreadyExists" else Conflict(message)
        case 401:
            return Unauthorized(message)
        case 410:
            return Expired(message)
        case 408 | 429:
            return Unavailable(message, _wait(retry_after, failure.details))
    if code == 422 and any(cause.get("field") == "metadata.uid" for cause in failure.causes):
        return Conflict(message)  # the response to a patch with the uid of another object
    if 400 <= code < 500:
        # A cause is more precise than the reason: `Forbidden` may be a namespace's end.
        ends = any(cause.get("reason") == "NamespaceTerminating" for cause in failure.causes)
        return Refused("NamespaceTerminating" if ends else reason or f"HTTP {code}", message)
    return Unavailable(message, _wait(retry_after, failure.details))


def _is_denied(failure: RequestFailure) -> bool:
    """Return whether an admission policy or webhook has denied the request, whatever its code and reason say.

    What it allows may change, while a template that the API server can't accept stays wrong. A policy's
    denial is like a mistake in the object, but its cause has neither a reason nor a field. A webhook writes
    the whole response, except what the API server puts before its message.
    """
    by_policy = any(not cause.get("reason") and not cause.get("field") for cause in failure.causes)
    return by_policy or failure.message.startswith("admission webhook ")


def _proxy_error(code: int, excerpt: str, retry_after: float | None) -> ClusterError:
    """Return the error for a proxy's page or a missing API: their 404 says nothing about one object."""
    message = f"HTTP {code}: {excerpt}" if excerpt else f"HTTP {code}"
    match code:
        case 401:
            return Unauthorized(message)
        case 410:
            return Expired(message)
        case 413:
            return Refused("RequestEntityTooLarge", message)
    return Unavailable(message, retry_after)


def unreachable(request: RequestFailure, why: str) -> Unreachable:
    """Return the error for a request without a response."""
    text = f"{request.verb} {request.resource}: no answer from the API server ({why})"
    error = Unreachable(text)
    error.failure = replace(request, message=why)
    return error


def seconds_of(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header; None for a date, which the API server never sends."""
    try:
        seconds = float(retry_after) if retry_after is not None else None
    except ValueError:
        return None
    return min(seconds, LONGEST_WAIT) if seconds is not None and 0 <= seconds < float("inf") else None


def _with(failure: RequestFailure, error: ClusterError) -> ClusterError:
    error.failure = failure
    return error


def _status_object(body: bytes) -> dict[str, Any] | None:
    try:
        status = read_json(body)
    except (ValueError, RecursionError):
        return None
    return status if isinstance(status, dict) and status.get("kind") == "Status" else None


def _wait(retry_after: float | None, details: Mapping[str, Any]) -> float | None:
    if retry_after is not None:
        return retry_after
    seconds = details.get("retryAfterSeconds")
    return min(float(seconds), LONGEST_WAIT) if isinstance(seconds, (int, float)) and seconds > 0 else None
