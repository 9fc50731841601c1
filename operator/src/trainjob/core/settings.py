"""The settings of a controller's installation, for all of its jobs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainjob.core.integration import Integration


@dataclass(frozen=True)
class Isolation:
    """The clients that may connect to a job's pods, besides the job's own pods.

    Attributes:
        controller_namespace: the namespace of the controller's pods, or None if it runs outside a pod.
        extra_ingress: rules of a NetworkPolicy's `spec.ingress`, such as for scrapers.
    """

    controller_namespace: str | None = None
    extra_ingress: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Bundle:
    """The program of the agents, and the key for their tokens.

    Attributes:
        pyz: the agent and the trainer library, one zip that Python runs; empty if the machine has them.
        key: the controller's key, from which each job's token is derived.
    """

    pyz: bytes = field(repr=False)
    key: bytes = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """Return the program's SHA-256 in hex; empty without a program."""
        return hashlib.sha256(self.pyz).hexdigest() if self.pyz else ""

    @cached_property
    def encoded(self) -> str:
        """Return the program in base64, one text for all manifests."""
        return base64.b64encode(self.pyz).decode()


@dataclass(frozen=True)
class Settings:
    """The settings that decisions depend on.

    Attributes:
        isolation: what each job's NetworkPolicy admits, or None for no NetworkPolicy.
        bundle: for jobs that restart in place.
        lease: the transitions of the controllers' Lease when this one acquired it; 0 without a Lease.
        integrations: with queues and schedulers; none on one machine, where no job waits.
        limits_memory: whether memory limits are enforced; on one machine, where control groups can be made.
    """

    isolation: Isolation | None = None
    bundle: Bundle = field(default_factory=lambda: Bundle(b"", b""))
    lease: int = 0
    integrations: tuple[Integration, ...] = ()
    limits_memory: bool = True
