"""A job as commands find and read it: by its name, leniently."""

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
from trainjob.cli.cluster.server import PODS, TRAINJOBS
from trainjob.core.conditions import COMPLETE, FAILED, is_true
from trainjob.core.names import LABEL_JOB
from trainjob.core.pods import read_time

if TYPE_CHECKING:
    from trainjob.cli.cluster.server import Manifest, Server


# A job as commands read it: leniently, whoever wrote it.


PENDING = "Pending"


class Outcome(Enum):
    """How far a job is."""

    GOING_ON = "going on"
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True)
class Job:
    """What commands show of a job.

    Attributes:
        uid: tells it from an earlier or later one of its name.
        spec: as it is stored.
        created_at: by the API server's clock, or None.
        deleting: it has been asked to go.
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
        """Tell whether its training restarts in pods that live on."""
        return self.spec.get("restartStrategy") != "Recreate"

    @property
    def outcome(self) -> Outcome:
        """Return how far it is."""
        if is_true(self.status, COMPLETE):
            return Outcome.COMPLETE
        return Outcome.FAILED if is_true(self.status, FAILED) else Outcome.GOING_ON

    @property
    def is_over(self) -> bool:
        """Tell whether nothing happens to it any more."""
        return self.outcome is not Outcome.GOING_ON

    @property
    def state(self) -> str:
        """Return its state in one word."""
        return self.status.state or PENDING


def read_job(manifest: Mapping[str, Any]) -> Job:
    """Return what can be read; a status that was damaged by hand counts as none."""
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


# Finding a job by its name, or what else may be meant.


def find_job(server: Server, namespace: str, name: str) -> Manifest:
    """Return the job.

    Raises:
        NoJob: there is none of that name; the sentence says what may be meant.
    """
    if not name:
        # An unset variable of the shell, mostly; the API server would take it for all jobs.
        raise NoJob("the job's name is empty")
    try:
        return server.get(TRAINJOBS, namespace, name)
    except ServerProblem as problem:
        if not is_missing(problem):
            raise
    raise missing_job(server, namespace, name)


def missing_job(server: Server, namespace: str, name: str) -> NoJob:
    """Return what to tell about a job that isn't there."""
    here = _listed(server, namespace)
    elsewhere = _listed(server, None, name) or []
    names = None if here is None else [metadata["name"] for metadata in here]
    return NoJob(no_such_job(name, namespace, names, [metadata["namespace"] for metadata in elsewhere]))


def pods_of(server: Server, namespace: str, name: str) -> tuple[Manifest, ...]:
    """Return every pod that is labelled as this job's."""
    return tuple(server.list(PODS, namespace, {"labelSelector": f"{LABEL_JOB}={name}"}).get("items") or ())


def _listed(server: Server, namespace: str | None, name: str | None = None) -> list[dict[str, Any]] | None:
    # A hint only: who may not list gets none.
    query = {"fieldSelector": f"metadata.name={name}"} if name else {}
    with suppress(ServerProblem):
        return [item["metadata"] for item in server.list(TRAINJOBS, namespace, query).get("items") or ()]
    return None
