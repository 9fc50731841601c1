"""What whoever installs the controller decides for all of its jobs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Isolation:
    """Who may connect to a job's pods, beside the job's own.

    Attributes:
        controller_namespace: where the controller's pods run, or None when it is no pod.
        extra_ingress: rules of a NetworkPolicy's `spec.ingress`, for scrapers and the like.
    """

    controller_namespace: str | None = None
    extra_ingress: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Bundle:
    """What every pod with an agent is given.

    Attributes:
        pyz: the agent and the trainer library, one zip that Python runs; empty where the machine has them.
        key: the controller's own, from which each job's token is derived.
    """

    pyz: bytes = field(repr=False)
    key: bytes = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """Return the program's SHA-256 in hex; empty without a program."""
        return hashlib.sha256(self.pyz).hexdigest() if self.pyz else ""

    @cached_property
    def encoded(self) -> str:
        """Return the program in base64: one text for all manifests."""
        return base64.b64encode(self.pyz).decode()


@dataclass(frozen=True)
class Settings:
    """The settings that decisions depend on.

    Attributes:
        isolation: what each job's NetworkPolicy lets in, or None for no NetworkPolicy.
        bundle: for jobs that restart in place.
        lease: how often the controllers' Lease had changed hands when this one got it; 0 without a Lease.
    """

    isolation: Isolation | None = None
    bundle: Bundle = field(default_factory=lambda: Bundle(b"", b""))
    lease: int = 0
