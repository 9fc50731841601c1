"""What kopf is told: how to log in, how to behave, and where each event of a TrainJob goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kopf

from trainjob.api.group import GROUP, PLURAL, VERSION
from trainjob.cluster import Manifest
from trainjob.cluster.kube.listing import JOBS_A_PAGE
from trainjob.operator.login import Login
from trainjob.operator.storage import NoDiffBase, NoProgress

Take = Callable[[str | None, Manifest], None]
"""Called with the type of each event (None for what a list held) and the object."""

SERVER_SECONDS = 120  # the API server takes whole seconds only
"""How long one watch request lasts: a sign of life at least this often, also when no bookmark is sent."""


def build_registry(take: Take, login: Login, *, silence_seconds: float) -> kopf.OperatorRegistry:
    """Return everything that kopf shall call.

    Args:
        take: gets the events of TrainJobs.
        login: gives the session to use.
        silence_seconds: how long a watch may say nothing before it is opened anew.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure_kopf(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings, silence_seconds)

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        return await login()

    # The group makes it ours: other projects have kinds of the same name and plural.
    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def take_event(event: Any, **_: Any) -> None:
        take(event["type"], event["object"])

    return registry


def configure(settings: kopf.OperatorSettings, silence_seconds: float) -> None:
    """Have kopf read what we need and write nothing."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.persistence.progress_storage = NoProgress()
    settings.watching.chunk_size = JOBS_A_PAGE
    settings.watching.server_timeout = SERVER_SECONDS
    settings.watching.inactivity_timeout = silence_seconds
    settings.watching.connect_timeout = 10.0
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 10.0
    settings.networking.error_backoffs = _Backoffs()
    # The process ends by its own rules; kopf would send itself SIGKILL.
    settings.process.ultimate_exiting_timeout = None


class _Backoffs:
    """Waits between attempts, without end: an API server that is away for long must not end the watch."""

    def __iter__(self) -> Iterator[float]:
        yield from (0.2, 0.5, 1.0, 2.0, 5.0)
        while True:
            yield 10.0
