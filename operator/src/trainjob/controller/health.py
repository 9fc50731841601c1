"""Liveness and readiness of the process, and the HTTP server that reports them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from trainjob.controller import Load
from trainjob.controller.metrics import CONTENT_TYPE, Metrics

# The liveness and readiness checks.


STUCK_SECONDS = 300.0
"""Longer than any pass over a job takes: each of its requests has a timeout."""


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: what was checked.
        problem: what is wrong; empty if nothing is.
    """

    name: str
    problem: str = ""


def check_watch(name: str, silent_seconds: float, patience_seconds: float) -> Check:
    """Check that a watch works: it receives or tries something now and then."""
    if silent_seconds <= patience_seconds:
        return Check(name)
    return Check(name, f"nothing received or tried for {silent_seconds:.0f} s")


def check_work(load: Load | None) -> Check:
    """Check that the work loop makes progress; a standby replica has none."""
    if load is not None and load.longest > STUCK_SECONDS:
        return Check("work", f"one job has kept a worker busy for {load.longest:.0f} s")
    if load is not None and load.unserved > STUCK_SECONDS:
        return Check("work", f"{load.waiting} jobs wait, and none was started for {load.unserved:.0f} s")
    return Check("work")


def check_caches(is_synced: bool) -> Check:
    """Check that the caches have been filled once."""
    return Check("caches", "" if is_synced else "not filled for the first time yet")


def check_key(is_known: bool) -> Check:
    """Check that the key is known: without it agents get no tokens and can't be called."""
    return Check("agent key", "" if is_known else "not read yet")


@dataclass(frozen=True)
class Health:
    """The checks, made at each request.

    Attributes:
        live: the kubelet restarts the container when one of these keeps failing.
        ready: a rollout waits for these.
    """

    live: Callable[[], list[Check]]
    ready: Callable[[], list[Check]]


def report(checks: list[Check]) -> tuple[int, str]:
    """Return the HTTP status and the text, one line per check."""
    lines = [f"{check.name}: {check.problem or 'ok'}\n" for check in checks]
    return (503 if any(check.problem for check in checks) else 200), "".join(lines)


# The HTTP server: `/livez`, `/readyz`, `/metrics`.


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = logging.getLogger(__name__)


@asynccontextmanager
async def serve(host: str, port: int, health: Health, metrics: Metrics) -> AsyncIterator[int]:
    """Serve while in the context, and yield the port.

    Raises:
        OSError: the address is in use or isn't this machine's.
    """
    app = web.Application()
    app.router.add_get("/livez", _checks(health.live))
    app.router.add_get("/readyz", _checks(health.ready))
    app.router.add_get("/metrics", _metrics(metrics))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        bound = int(runner.addresses[0][1])
        _log.info("Serving /livez, /readyz and /metrics on port %d", bound)
        yield bound
    finally:
        await runner.cleanup()


def _checks(look: Callable[[], list[Check]]) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        status, text = report(look())
        return web.Response(status=status, text=text)

    return answer


def _metrics(metrics: Metrics) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=await metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    return answer
