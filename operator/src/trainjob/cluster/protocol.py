"""The interface between the controller and the cluster that runs the pods."""

from __future__ import annotations

import asyncio
import json
import json.scanner
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from trainjob.core.names import JobKey, ObjectRef
from trainjob.core.observed import Snapshot

# Events.


class PostedEvent(NamedTuple):
    """An event about the job.

    Attributes:
        at: the time.
        type: `Normal` or `Warning`.
        reason: such as `Restarted`.
        message: one sentence.
    """

    at: datetime
    type: str
    reason: str
    message: str


# Errors of a cluster, by what the caller should do next.
#
# ClusterError
# ├── NotFound         the object is gone: observe again
# ├── AlreadyExists    the name is in use (perhaps by an object that is still terminating): observe again
# ├── Conflict         the object has changed, or is another one of that name: observe again
# ├── Refused          the request is wrong or not allowed: report it to the user, waiting may not help
# └── Unavailable      there was no answer, or a request to wait: try again later


@dataclass(frozen=True)
class RequestFailure:
    """A failed request and the response to it, for messages.

    Attributes:
        verb: as RBAC writes it, such as `get`.
        resource: the plural, with the subresource behind a slash.
        name: of the requested object; empty for lists.
        server: the address of the API server.
        code: the HTTP status; 0 without a response.
        reason: Kubernetes' reason, such as `NotFound`; empty when something else responds.
        message: of the API server, or the beginning of another response, or of the network.
        details: the object that it is about, and the causes.
    """

    verb: str = ""
    resource: str = ""
    name: str = ""
    server: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def causes(self) -> tuple[Mapping[str, Any], ...]:
        """The single mistakes, if the response names them."""
        causes = self.details.get("causes")
        return tuple(c for c in causes if isinstance(c, Mapping)) if isinstance(causes, list) else ()


class ClusterError(Exception):
    """A request to a cluster failed; the subclass says what to do.

    Attributes:
        failure: the request and the response, if the cluster is an API server.
    """

    failure = RequestFailure()


class NotFound(ClusterError):
    """The object does not exist (any more)."""


class AlreadyExists(ClusterError):
    """An object of that kind and name exists, terminating ones included."""


class Conflict(ClusterError):
    """The uid or resourceVersion given as a precondition is not the stored one."""


class Refused(ClusterError):
    """The cluster refused the request.

    Attributes:
        reason: Kubernetes' reason, such as `Invalid` or `Forbidden`.
        message: the cluster's message, for the user.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class Unavailable(ClusterError):
    """The cluster could not answer.

    Attributes:
        retry_after: seconds to wait, as the cluster asked, or None.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


# Nesting of objects.


DEEPEST_OBJECT = 10_000
"""Levels of JSON that the API server accepts; a pod template may have any fields, so any user can send it."""

_FRAMES_A_LEVEL = 2  # what `copy.deepcopy` needs


def allow_deep_objects() -> None:
    """Raise Python's recursion limit, so that it reads any object that the API server stores.

    The default limit is reached at a tenth of that depth: one such object, in any namespace, would end the
    list and the watch of all jobs.
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _FRAMES_A_LEVEL * DEEPEST_OBJECT + 5_000))


def read_json(text: bytes) -> Any:
    """Return what this JSON says, however deep it is.

    Python's decoder in C has a limit of its own from 3.12 on (3.12: 1,500 levels), which nothing raises.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is deeper than `allow_deep_objects` allows.
    """
    try:
        return json.loads(text)
    except RecursionError:
        decoder: Any = json.JSONDecoder()
        decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
        return decoder.decode(text.decode())


# Waiting with a time limit.


async def happens_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Return whether the event is set within so many seconds; None waits without a limit.

    Not `asyncio.wait_for`: up to Python 3.11 it ignores a cancellation at the moment of the event.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


# The protocol.
#
# Objects are JSON, as Kubernetes has them, with `apiVersion`, `kind` and `metadata`. `trainjob.core` reads
# them, so that the same code serves every cluster.


Manifest = dict[str, Any]
"""One Kubernetes object as JSON."""


class Cluster(Protocol):
    """The requests of the controller. Every method may raise `ClusterError`.

    Attributes:
        pods_wait_for_secrets: whether a pod may be created before a Secret that it mounts.
    """

    pods_wait_for_secrets: bool

    def watch(self, notify: Callable[[JobKey], None]) -> None:
        """From now on, call `notify` with a job's key whenever the job or its objects may have changed."""

    async def observe(self, key: JobKey) -> Snapshot | None:
        """Return the job with its objects, or None when there is no such job."""

    async def create(self, manifest: Manifest) -> None:
        """Create one object.

        Raises:
            AlreadyExists: the name is in use, perhaps by an object that is still terminating.
            Refused: the object is wrong, or a quota or a policy forbids it.
        """

    async def replace(self, manifest: Manifest) -> None:
        """Replace an existing object; `metadata` has the uid and resourceVersion that were observed.

        Raises:
            NotFound: it is gone.
            Conflict: it has changed since, or is another one of that name.
            Refused: a policy forbids it.
        """

    async def delete(self, ref: ObjectRef, grace_seconds: int | None = None) -> None:
        """Request the object's deletion; a pod may keep running for its grace period.

        Raises:
            NotFound: it is gone already.
            Conflict: the object of that name has another uid.
        """

    async def set_labels(self, ref: ObjectRef, labels: Mapping[str, str | None]) -> None:
        """Set these labels, and remove those given as None; others stay. Raises as `delete` does."""

    async def patch(
        self, ref: ObjectRef, resource_version: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> None:
        """Merge a patch into an object, or a subresource of it.

        Args:
            ref: the object.
            resource_version: of the version that the patch is for; empty for any.
            patch: a JSON merge patch.
            subresource: such as `status`; empty for the object itself.

        Raises:
            NotFound: it is gone.
            Conflict: it has changed since it had `resource_version`, or is another one of that name.
            Refused: a rule or a policy forbids it.
        """

    async def release(self, key: JobKey) -> None:
        """Let objects go that have a finalizer for a job which is gone; none, where there are none."""

    async def write_status(self, key: JobKey, uid: str, resource_version: str, status: Manifest) -> None:
        """Replace the job's status.

        Raises:
            NotFound: the job is gone.
            Conflict: the job has changed since it had `resource_version`, or is another one of that name.
        """

    def set_target(self, key: JobKey, target: Mapping[str, Any] | None) -> None:
        """Send this agent target with every poll of the job's leading agent; None stops the polling.

        The agent's reports appear in snapshots as `agent_report`.
        """

    async def post_event(self, job: Manifest, *, type_: str, reason: str, message: str) -> None:
        """Post an event about `job` for the user; `type_` is `Normal` or `Warning`."""
