"""The small HTTP server: `/livez`, `/readyz`, `/metrics`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from trainjob.operator.health import Check, Health, report
from trainjob.operator.metrics import CONTENT_TYPE, Metrics

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = logging.getLogger(__name__)


@asynccontextmanager
async def serve(host: str, port: int, health: Health, metrics: Metrics) -> AsyncIterator[int]:
    """Serve while in the context, and give the port.

    Raises:
        OSError: the address is taken or isn't this machine's.
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
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    return answer
