"""What an answer of the API server that isn't a success means to the caller."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainjob.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound, Refused, Unavailable

LONGEST_WAIT = 60.0
"""Seconds, whatever is asked for: a proxy that says a day must not stop a job for one."""

LONGEST_EXCERPT = 200
"""Characters of an answer that is no JSON, for the log."""


class Expired(Unavailable):
    """The resourceVersion or the continuation of a list is too old (HTTP 410): list anew."""


class Unauthorized(Unavailable):
    """The token isn't accepted (HTTP 401): it may have been rotated."""


def error_of(code: int, body: bytes, retry_after: str | None = None) -> ClusterError:
    """Return the error that an answer stands for.

    Args:
        code: the HTTP status, outside 200-299.
        body: a `Status` object as JSON; anything else comes from something before the API server.
        retry_after: the header of that name.
    """
    status = _status_object(body)
    if status is None:
        return _foreign_error(code, body, seconds_of(retry_after))
    return error_of_status(code, status, seconds_of(retry_after))


def error_of_status(code: int, status: Mapping[str, Any], retry_after: float | None = None) -> ClusterError:
    """Return the error that a `Status` object stands for; the HTTP status is given beside it."""
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or reason or f"HTTP {code}")
    given = status.get("details")
    details: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
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
            return Unavailable(message, _wait(retry_after, details))
    if code == 422 and "metadata.uid" in _causes(details, "field"):
        return Conflict(message)  # so it answers a patch whose uid is another object's
    if 400 <= code < 500:
        return Refused(_cause(details) or reason or f"HTTP {code}", message)
    return Unavailable(message, _wait(retry_after, details))


def seconds_of(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header; dates, which the API server never sends, are no number."""
    try:
        seconds = float(retry_after) if retry_after is not None else None
    except ValueError:
        return None
    return min(seconds, LONGEST_WAIT) if seconds is not None and 0 <= seconds < float("inf") else None


def _status_object(body: bytes) -> dict[str, Any] | None:
    try:
        status = json.loads(body)
    except ValueError:
        return None
    return status if isinstance(status, dict) and status.get("kind") == "Status" else None


def _foreign_error(code: int, body: bytes, retry_after: float | None) -> ClusterError:
    """A proxy's page, or an API that isn't installed: a 404 of theirs says nothing about one object."""
    excerpt = body[:LONGEST_EXCERPT].decode(errors="replace").strip()
    message = f"HTTP {code}: {excerpt}" if excerpt else f"HTTP {code}"
    if code == 401:
        return Unauthorized(message)
    if code == 410:
        return Expired(message)
    if code == 413:
        return Refused("RequestEntityTooLarge", message)
    return Unavailable(message, retry_after)


def _cause(details: Mapping[str, Any]) -> str:
    """Return the one cause that says more than the reason does: `Forbidden` may be a namespace's end."""
    return "NamespaceTerminating" if "NamespaceTerminating" in _causes(details, "reason") else ""


def _causes(details: Mapping[str, Any], key: str) -> list[object]:
    causes = details.get("causes")
    if not isinstance(causes, list):
        return []
    return [cause.get(key) for cause in causes if isinstance(cause, Mapping)]


def _wait(retry_after: float | None, details: Mapping[str, Any]) -> float | None:
    if retry_after is not None:
        return retry_after
    seconds = details.get("retryAfterSeconds")
    return min(float(seconds), LONGEST_WAIT) if isinstance(seconds, (int, float)) and seconds > 0 else None
