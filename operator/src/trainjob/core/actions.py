"""What a plan asks for: writes to the job's objects, and events for its user."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from trainjob.api import TrainJobStatus
from trainjob.core.names import LABEL_LIVE
from trainjob.core.objects import ObjectRef
from trainjob.core.observed import Observed
from trainjob.core.pods import Pod


@dataclass(frozen=True)
class Create:
    """Create this object; that it exists already is no error, it is looked at again.

    Attributes:
        may_exist: nobody can look at it, and one that is there is as good.
    """

    manifest: dict[str, Any]
    may_exist: bool = False

    def __str__(self) -> str:
        return f"create {self.manifest['kind']} {self.manifest['metadata']['name']}"


@dataclass(frozen=True)
class Delete:
    """Ask for this object's end; that it is gone already is no error."""

    ref: ObjectRef

    def __str__(self) -> str:
        return f"delete {self.ref.kind} {self.ref.name}"


@dataclass(frozen=True)
class Label:
    """Set labels, or remove those that are None."""

    ref: ObjectRef
    labels: tuple[tuple[str, str | None], ...]

    def __str__(self) -> str:
        return f"label {self.ref.kind} {self.ref.name}"


Action = Create | Delete | Label


@dataclass(frozen=True)
class Event:
    """Something that the user wants to know, once."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """What to do, in this order: write the status if it differs, post the events, then act.

    The status comes first so that a decision (a new attempt, a failure) is on record before anything is done
    about it: a controller that dies in between goes on from the record. Creations alone carry out what is on
    record already, and go ahead of it: when many jobs come at once, their pods don't wait for each other's
    status.

    Attributes:
        requeue: when to look again although nothing may have changed, or None.
        order: what to keep telling the job's leading agent, or None.
    """

    status: TrainJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue: timedelta | None = None
    order: dict[str, Any] | None = None

    @property
    def only_creates(self) -> bool:
        """Tell whether there is something to create, and nothing else to be done to any object."""
        return bool(self.actions) and all(isinstance(action, Create) for action in self.actions)


def pod_ref(observed: Observed, pod: Pod) -> ObjectRef:
    """Return the reference of one of the job's pods."""
    return ObjectRef("Pod", observed.meta.namespace, pod.name, pod.uid)


def stop_pods(observed: Observed, pods: tuple[Pod, ...]) -> tuple[Action, ...]:
    """Return what ends these pods, out of the Service first: its names are their successors' from now on."""
    live = (Label(pod_ref(observed, pod), ((LABEL_LIVE, None),)) for pod in pods if pod.live)
    return (*live, *(Delete(pod_ref(observed, pod)) for pod in pods if not pod.deleting))
