"""Finds jobs for commands, and reads them leniently."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from trainjob.api import TrainJobStatus
from trainjob.cli.cluster.errors import NoJob, ServerProblem, is_missing, no_such_job
from trainjob.cli.cluster.resources import PODS, TRAINJOBS
from trainjob.core.conditions import COMPLETE, FAILED, is_true
from trainjob.core.names import LABEL_JOB
from trainjob.core.pods import read_time

if TYPE_CHECKING:
    from trainjob.cli.cluster.server import Manifest, Server


# A job as commands read it.


PENDING = "Pending"


class Outcome(Enum):
    """Whether a job has finished, and how."""

    GOING_ON = "going on"
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True)
class Job:
    """The parts of a job that commands use.

    Attributes:
        uid: distinguishes it from earlier and later jobs of its name.
        spec: as it is stored.
        created_at: by the API server's clock, or None.
        deleting: its deletion has been requested.
    """

    name: str
    namespace: str
    uid: str
    spec: Mapping[str, Any]
    status: TrainJobStatus
    created_at: datetime | None = None
    deleting: bool = False

    @property
    def in_place(self) -> bool:
        """Return whether its training restarts in the existing pods."""
        return self.spec.get("restartStrategy") != "Recreate"

    @property
    def outcome(self) -> Outcome:
        """Return whether it has finished, and how."""
        if is_true(self.status, COMPLETE):
            return Outcome.COMPLETE
        return Outcome.FAILED if is_true(self.status, FAILED) else Outcome.GOING_ON

    @property
    def is_over(self) -> bool:
        """Return whether it has finished."""
        return self.outcome is not Outcome.GOING_ON

    @property
    def state(self) -> str:
        """Return its state in one word."""
        return self.status.state or PENDING


def read_job(manifest: Mapping[str, Any]) -> Job:
    """Return the job; an invalid status, as after an edit by hand, counts as empty."""
    meta = manifest.get("metadata") or {}
    spec = manifest.get("spec")
    return Job(
        name=str(meta.get("name", "")),
        namespace=str(meta.get("namespace") or "default"),
        uid=str(meta.get("uid", "")),
        spec=spec if isinstance(spec, Mapping) else {},
        status=_status(manifest.get("status")),
        created_at=read_time(meta.get("creationTimestamp")),
        deleting=bool(meta.get("deletionTimestamp")),
    )


def _status(raw: object) -> TrainJobStatus:
    try:
        return TrainJobStatus.model_validate(raw or {})
    except ValidationError:
        return TrainJobStatus()


# Finding a job by its name.


def find_job(server: Server, namespace: str, name: str) -> Manifest:
    """Return the job.

    Raises:
        NoJob: there is none of that name; the message has suggestions.
    """
    if not name:
        # Mostly an unset shell variable; the API server would return all jobs.
        raise NoJob("the job's name is empty")
    try:
        return server.get(TRAINJOBS, namespace, name)
    except ServerProblem as problem:
        if not is_missing(problem):
            raise
    raise missing_job(server, namespace, name)


def missing_job(server: Server, namespace: str, name: str) -> NoJob:
    """Return the error for a job that doesn't exist."""
    here = _listed(server, namespace)
    elsewhere = _listed(server, None, name) or []
    names = None if here is None else [metadata["name"] for metadata in here]
    return NoJob(no_such_job(name, namespace, names, [metadata["namespace"] for metadata in elsewhere]))


def pods_of(server: Server, namespace: str, name: str) -> tuple[Manifest, ...]:
    """Return every pod with this job's label."""
    return tuple(server.list(PODS, namespace, {"labelSelector": f"{LABEL_JOB}={name}"}).get("items") or ())


def _listed(server: Server, namespace: str | None, name: str | None = None) -> list[dict[str, Any]] | None:
    # Only for suggestions: without permission to list there are none.
    query = {"fieldSelector": f"metadata.name={name}"} if name else {}
    with suppress(ServerProblem):
        return [item["metadata"] for item in server.list(TRAINJOBS, namespace, query).get("items") or ()]
    return None
