"""Settings of the controller process, and its exit codes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from trainjob.cluster.kube.config import Access
from trainjob.cluster.kube.informer import Timeouts
from trainjob.controller.election import Election
from trainjob.core.settings import Settings


class ExitCode(IntEnum):
    """Why the process ended, besides click's 2 for wrong options."""

    STOPPED = 0
    """A stop was requested."""

    FAILED = 1
    """A part failed; the log names it."""

    LEASE_LOST = 3
    """Another replica leads, or may lead."""


@dataclass(frozen=True)
class OperatorSettings:
    """The settings of one process.

    Attributes:
        access: the API server.
        identity: the name of this process in the Lease; no other process, not even a later one, may use it.
        namespace: the namespace whose jobs to reconcile; None for all.
        key_namespace: that of the controller; who reads its Secrets has control of every job's agents.
        key_name: the Secret with the key from which the jobs' tokens are derived.
        election: None to work without leader election.
        host: the address to serve health and metrics on.
        port: its port; 0 for any free one.
        workers: how many jobs are reconciled concurrently.
        timeouts: the intervals and timeouts of the caches.
        integrations: the names of those that jobs may use.
        plan: the settings for every job; the agent bundle is added later.
    """

    access: Access
    identity: str
    key_namespace: str
    key_name: str = "trainjob-agent-key"
    namespace: str | None = None
    election: Election | None = None
    host: str = "0.0.0.0"  # noqa: S104 - the kubelet and Prometheus come from other machines
    port: int = 8080
    workers: int = 16
    timeouts: Timeouts = field(default_factory=Timeouts)
    integrations: tuple[str, ...] = ()
    plan: Settings = field(default_factory=Settings)
