"""The narrow seam between the controller and whatever runs the pods."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainjob.core.names import JobKey, ObjectRef

# What a cluster may answer to a write, told apart by what the caller should do next.
#
# ClusterError
# ├── NotFound         the object is gone: look again
# ├── AlreadyExists    the name is taken (perhaps by an object that is still terminating): look again
# ├── Conflict         the object has changed, or is another one of that name: look again
# ├── Refused          the request is wrong or not allowed: tell the user, time alone may not mend it
# └── Unavailable      nobody answered, or asked to wait: try again later


class ClusterError(Exception):
    """A cluster did not do what it was asked to; the subclass says what to do."""


class NotFound(ClusterError):
    """The object does not exist (any more)."""


class AlreadyExists(ClusterError):
    """An object of that kind and name exists, terminating ones included."""


class Conflict(ClusterError):
    """The uid or resourceVersion given as a precondition is not the stored one."""


class Refused(ClusterError):
    """The request was understood and turned down.

    Attributes:
        reason: Kubernetes' word for it, such as `Invalid` or `Forbidden`.
        message: the cluster's own sentence, for the user.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class Unavailable(ClusterError):
    """The cluster could not answer.

    Attributes:
        retry_after: seconds that it asked to wait, or None.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


# How deeply nested the objects may be that the process can read.


DEEPEST_OBJECT = 10_000
"""Levels of JSON that the API server takes; a pod template may have any fields, so anybody can send that."""

_FRAMES_A_LEVEL = 2  # what `copy.deepcopy` takes


def allow_deep_objects() -> None:
    """Have Python follow any object that the API server stores.

    Its own limit is reached at a tenth of that: one object, in any namespace, would end the list and the
    watch of everybody's jobs.
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _FRAMES_A_LEVEL * DEEPEST_OBJECT + 5_000))


# Waiting for something to happen, for a limited time.


async def happens_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Tell whether the event is set within so many seconds; None waits without end.

    Not `asyncio.wait_for`: up to Python 3.11 it goes on when it is cancelled at the moment of the event.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


# Objects cross it as Kubernetes writes them: JSON objects with `apiVersion`, `kind`, `metadata`. Reading them
# is `trainjob.core`'s part, so that every cluster, real or not, is understood by the same code.


Manifest = dict[str, Any]
"""One Kubernetes object as JSON."""


@dataclass(frozen=True)
class Snapshot:
    """All that concerns one job, as it was at one moment.

    Attributes:
        job: the TrainJob itself, with its status.
        pods: every pod labelled as this job's, whoever owns it, terminating ones included.
        service: the Service of the job's name, whoever owns it.
        claim: the PersistentVolumeClaim that the job would create, whoever owns it.
        network_policy: the NetworkPolicy of the job's name, whoever owns it.
        progress: the latest progress report of each pod that has one, by pod name
            (the keys of a report are in `docs/contract.md`).
        gang: what the job's leading agent said last (its keys are in `docs/contract.md`), with `age`, the
            seconds since then, and `unreachableSeconds`, for how long nobody has answered; None before it
            has ever answered.
    """

    job: Manifest
    pods: tuple[Manifest, ...] = ()
    service: Manifest | None = None
    claim: Manifest | None = None
    network_policy: Manifest | None = None
    progress: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    gang: Mapping[str, Any] | None = None


class Cluster(Protocol):
    """What the controller may ask for. Every method may raise `ClusterError`."""

    def watch(self, notify: Callable[[JobKey], None]) -> None:
        """Call `notify` with a job's key whenever something about that job may have changed, from now on."""

    async def observe(self, key: JobKey) -> Snapshot | None:
        """Return the job and all that belongs to it, or None when there is no such job."""

    async def create(self, manifest: Manifest) -> None:
        """Create one object.

        Raises:
            AlreadyExists: the name is taken, also by an object that is still terminating.
            Refused: the object is wrong, or a quota or a policy forbids it.
        """

    async def replace(self, manifest: Manifest) -> None:
        """Replace an object that is there; `metadata` has the uid and resourceVersion that it was seen with.

        Raises:
            NotFound: it is gone.
            Conflict: it has changed since, or is another one of that name.
            Refused: a policy forbids it.
        """

    async def delete(self, ref: ObjectRef, grace_seconds: int | None = None) -> None:
        """Ask for the object's end; a pod may go on for its grace period.

        Raises:
            NotFound: it is gone already.
            Conflict: an object of that name with another uid is there.
        """

    async def set_labels(self, ref: ObjectRef, labels: Mapping[str, str | None]) -> None:
        """Set these labels, and remove those given as None; others stay. Raises as `delete` does."""

    async def write_status(self, key: JobKey, uid: str, resource_version: str, status: Manifest) -> None:
        """Replace the job's status.

        Raises:
            NotFound: the job is gone.
            Conflict: the job has changed since it had `resource_version`, or is another one of that name.
        """

    def set_order(self, key: JobKey, order: Mapping[str, Any] | None) -> None:
        """Keep telling the job's leading agent this from now on; None: it is not to be asked any more.

        Its answers appear in snapshots as `gang`.
        """

    async def post_event(self, job: Manifest, *, type_: str, reason: str, message: str) -> None:
        """Tell the user what happened to `job`; `type_` is `Normal` or `Warning`."""
