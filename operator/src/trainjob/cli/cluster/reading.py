"""A job as commands read it: leniently, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from pydantic import ValidationError

from trainjob.api import TrainJobStatus
from trainjob.core.conditions import COMPLETE, FAILED, is_true
from trainjob.core.pods import read_time

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
