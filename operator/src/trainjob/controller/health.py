"""Liveness and readiness of the process, and the HTTP server that reports them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from trainjob.controller import Load
from trainjob.controller.metrics import CONTENT_TYPE, Metrics

_log = logging.getLogger(__name__)

STUCK_SECONDS = 300.0
"""Longer than any pass over a job takes: each of its requests has a timeout."""

Checks = Callable[[], Mapping[str, str]]
"""Returns what is wrong, by what is checked; empty if nothing is."""


def check_watch(silent_seconds: float, patience_seconds: float) -> str:
    """Return what is wrong with a watch, which receives or tries something now and then."""
    is_fine = silent_seconds <= patience_seconds
    return "" if is_fine else f"nothing received or tried for {silent_seconds:.0f} s"


def check_work(load: Load | None) -> str:
    """Return why the work loop makes no progress; a standby replica has none."""
    if load is not None and load.longest > STUCK_SECONDS:
        return f"one job has kept a worker busy for {load.longest:.0f} s"
    if load is not None and load.unserved > STUCK_SECONDS:
        return f"{load.waiting} jobs wait, and none was started for {load.unserved:.0f} s"
    return ""


@asynccontextmanager
async def serve(host: str, port: int, live: Checks, ready: Checks, metrics: Metrics) -> AsyncIterator[int]:
    """Serve `/livez`, `/readyz` and `/metrics` while in the context, and yield the port.

    Args:
        host: the address.
        port: the port; 0 for any free one.
        live: made at each request; the kubelet restarts the container when one keeps failing.
        ready: made at each request; a rollout waits for these.
        metrics: of the process.

    Raises:
        OSError: the address is in use or isn't this machine's.
    """

    def answer(checks: Checks) -> web.Response:
        problems = checks()
        lines = [f"{name}: {problem or 'ok'}\n" for name, problem in problems.items()]
        return web.Response(status=503 if any(problems.values()) else 200, text="".join(lines))

    async def answer_live(_request: web.Request) -> web.Response:
        return answer(live)

    async def answer_ready(_request: web.Request) -> web.Response:
        return answer(ready)

    async def answer_metrics(_request: web.Request) -> web.Response:
        return web.Response(body=await metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/livez", answer_live)
    app.router.add_get("/readyz", answer_ready)
    app.router.add_get("/metrics", answer_metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound = int(runner.addresses[0][1])
        _log.info("Serving /livez, /readyz and /metrics on port %d", bound)
        yield bound
    finally:
        await runner.cleanup()
