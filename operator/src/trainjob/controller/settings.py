"""What whoever starts the controller decides, and how its process ends."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, field
from enum import IntEnum

from trainjob.cluster.kube.config import Access
from trainjob.cluster.kube.informer import Timeouts
from trainjob.controller.agent_key import KeyPlace
from trainjob.controller.election import LeaseDurations
from trainjob.core.settings import Settings

# The exit codes of `trainjob controller`, beside click's 2 for wrong options.


_log = logging.getLogger(__name__)


class ExitCode(IntEnum):
    """Why the process has ended."""

    STOPPED = 0
    """It was asked to."""

    FAILED = 1
    """A part of it has failed; the log says which."""

    LEASE_LOST = 3
    """Another replica leads, or may lead."""


def leave_within(seconds: float, code: ExitCode) -> threading.Timer:
    """End the process by then, whatever hangs; a thread sees to it, since the event loop may be what does."""

    def leave() -> None:
        _log.critical("Still not stopped after %g s: leaving with exit code %d", seconds, code)
        logging.shutdown()
        os._exit(code)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
    return timer


# What whoever starts the controller decides.


@dataclass(frozen=True)
class Election:
    """How replicas agree on one that works.

    Attributes:
        namespace: where their Lease is.
        name: the Lease's name.
        terms: the durations.
    """

    namespace: str
    name: str = "trainjob-controller"
    terms: LeaseDurations = field(default_factory=LeaseDurations)


@dataclass(frozen=True)
class OperatorSettings:
    """The settings of one process.

    Attributes:
        access: the API server.
        identity: the name of this process in the Lease; no other process, also no later one, may have it.
        namespace: the namespace whose jobs to look after; None for all.
        key: where the key is kept from which the jobs' tokens are derived.
        election: None to work without asking whether another replica does.
        host: the address to serve health and metrics on.
        port: its port; 0 for any free one.
        workers: how many jobs are looked at at once.
        pace: how the caches are kept up to date.
        plan: what holds for every job; the bundle for agents comes on top.
    """

    access: Access
    identity: str
    key: KeyPlace
    namespace: str | None = None
    election: Election | None = None
    host: str = "0.0.0.0"  # noqa: S104 - the kubelet and Prometheus come from other machines
    port: int = 8080
    workers: int = 16
    pace: Timeouts = field(default_factory=Timeouts)
    plan: Settings = field(default_factory=Settings)
