"""Objects that a job needs: what is there of a name, and what the cluster has refused to create."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from trainjob.core.backoff import refusal_delay, time_left


@dataclass(frozen=True)
class Dependent:
    """A Service or claim of a name that the job needs.

    Attributes:
        ours: whether this very job owns it (or created it to be retained).
        uid: its uid.
        resource_version: of the state that was read.
        spec: its spec.
    """

    name: str
    ours: bool
    uid: str = ""
    resource_version: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Refusal:
    """The cluster's answer to the latest attempt to create something for the job.

    Attributes:
        what: kind and name of the object.
        reason: Kubernetes' word, such as `Forbidden` or `Invalid`.
        message: the cluster's own sentence.
        role: of the pod that was refused; empty for anything else.
        times: refusals in a row, this one included.
        at: when, by the controller's clock.
    """

    what: str
    reason: str
    message: str
    role: str = ""
    times: int = 1
    at: datetime | None = None

    @property
    def permanent(self) -> bool:
        """Tell whether only a change of the job can help: a template that the API server can't accept."""
        return self.reason in ("Invalid", "BadRequest")

    def after(self, before: Refusal | None) -> Refusal:
        """Return this refusal as the next one in a row."""
        return replace(self, times=before.times + 1 if before else 1)

    def patience_left(self, now: datetime) -> timedelta:
        """Return how long not to ask again; 0 or less when it is time to."""
        return time_left(self.at, refusal_delay(self.times), now) if self.at else timedelta(0)

    def next_attempt(self, now: datetime) -> timedelta:
        """Return when to look again: for the next attempt, or if it is due now, for the one after it."""
        left = self.patience_left(now)
        return left if left > timedelta(0) else refusal_delay(self.times + 1)


def is_same_policy(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two specs of NetworkPolicies are the same once the API server has stored them."""
    return bool(_stored(one) == _stored(other))


def _stored(value: Any, name: str = "") -> Any:
    if isinstance(value, Mapping):
        fields = {key: _stored(each, key) for key, each in value.items()}
        if name in ("podSelector", "namespaceSelector"):
            fields = {key: each for key, each in fields.items() if each != {}}
        return {key: each for key, each in fields.items() if each is not None and each != []}
    if isinstance(value, list | tuple):
        if name == "ports":
            value = [{"protocol": "TCP", **port} for port in value]
        return [_stored(each) for each in value]
    return value
