"""The web server of `trainjob ui`: a page, and a stream of what it shows.

It listens on 127.0.0.1 and only reads. A machine may have several users, and a browser opens pages of
anybody: everything lies below a secret path, to which an address with a token leads once, and each request
needs a `Host` that is this machine, so that no name of another site can lead here (DNS rebinding). There is
no cookie: browsers send the cookies of a machine to all of its ports. The page loads nothing from elsewhere
and runs no script but its own, whatever the texts of jobs are.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from importlib.resources import files
from typing import Any

from aiohttp import web

from trainjob.client.job_logs import Wanted
from trainjob.client.log_lines import StopNoise, is_harmless
from trainjob.client.problems import ClusterProblem
from trainjob.client.web.live_jobs import LiveJob, LiveJobs
from trainjob.core.agent_reports import read_replica
from trainjob.core.wording import printable
from trainjob_trainer.contract.reports import shorten

HOST = "127.0.0.1"

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_FILES = {
    "": ("page.html", "text/html"),
    "page.js": ("page.js", "text/javascript"),
    "page.css": ("page.css", "text/css"),
}
_TOKEN = "token"  # noqa: S105 - the name of a parameter

_REFRESH_SECONDS = 0.4
"""Between two messages about the same."""

_LOG_SECONDS = 0.15
_TAIL, _SHARED_TAIL = 2000, 200
"""Lines before the end of one replica's log, and of each replica's."""

_MOST_WAITING = 5000
"""Lines of a log that wait for a reader; the page keeps as many."""

_LONGEST_LINE = 1000
"""Characters of a line on the page."""

_ALIVE_SECONDS = 15.0
_PATIENCE_SECONDS = 30.0
"""A page that has read nothing for so long is asleep or gone; it connects again when it wakes up."""


@asynccontextmanager
async def serve(
    jobs: LiveJobs, port: int = 0, on_opened: Callable[[str], None] = lambda _: None
) -> AsyncGenerator[str]:
    """Serve while in the context, and yield the address to open; the caller keeps the jobs up to date.

    An address opens the page once: others may read it in the list of processes, or where it was printed.
    `on_opened` then receives the next one.

    Raises:
        OSError: the port is in use.
    """
    path = f"/{secrets.token_urlsafe(24)}/"
    token = secrets.token_urlsafe(24)

    def address() -> str:
        return f"http://{HOST}:{runner.addresses[0][1]}/?{_TOKEN}={token}"

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal token
        if re.sub(r":\d+$", "", request.host) not in (HOST, "localhost"):
            raise web.HTTPForbidden(text=f"open http://{HOST} or http://localhost\n")
        if request.method == "GET" and _is_same(request.query.get(_TOKEN, ""), token):
            token = secrets.token_urlsafe(24)
            on_opened(address())
            raise web.HTTPSeeOther(path)
        if not _is_same(request.path[: len(path)], path):
            raise web.HTTPForbidden(
                text="an address of `trainjob ui` works once: open the last one that it has printed\n"
            )
        return await handler(request)

    app = web.Application(middlewares=[guard])

    def file(name: str, kind: str) -> Handler:
        content = (files("trainjob.client.web") / name).read_bytes()

        async def respond(_request: web.Request) -> web.Response:
            return web.Response(body=content, content_type=kind, charset="utf-8")

        return respond

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        query = request.query
        await _Stream(jobs, response, query.get("job", ""), query.get("replica", "")).run()
        if request.transport is not None:
            request.transport.abort()  # what waits there is for a reader that doesn't read
        return response

    async def add_headers(_request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(_HEADERS)

    for inner, (name, kind) in _FILES.items():
        app.router.add_get(path + inner, file(name, kind), allow_head=False)
    app.router.add_get(f"{path}stream", stream, allow_head=False)
    app.on_response_prepare.append(add_headers)
    # A reader that leaves ends its stream.
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, port)
        await site.start()
        yield address()
    finally:
        await runner.cleanup()


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _is_same(given: str, expected: str) -> bool:
    return secrets.compare_digest(given.encode(errors="replace"), expected.encode())


# The stream: server-sent events of one connection. `jobs` has all rows; `job` has the details of the job that
# was asked for, or null if there is none; `log` has lines of its log, and `log-start` comes before the first.


class _Stream:
    """One connection of a page, with the key of the chosen job, and the replica whose log is shown."""

    def __init__(self, jobs: LiveJobs, response: web.StreamResponse, key: str, replica: str) -> None:
        self._jobs, self._response, self._key, self._replica = jobs, response, key, replica

    async def run(self) -> None:
        """Send until the reader leaves, or reads nothing for too long."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send_rows())
                if self._key:
                    group.create_task(self._send_details())
                    group.create_task(self._send_logs())
        except* (ConnectionError, TimeoutError):
            pass

    async def _send(self, event: str, data: Any) -> None:
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await self._response.write(f"event: {event}\ndata: {text}\n\n".encode())

    async def _send_rows(self) -> None:
        version = -1
        while True:
            with suppress(TimeoutError):  # a message now and then keeps the connection alive
                async with asyncio.timeout(_ALIVE_SECONDS):
                    version = await self._jobs.later_than(version)
            await self._send("jobs", {"rows": self._jobs.rows, "problem": printable(self._jobs.problem)})
            await asyncio.sleep(_REFRESH_SECONDS)

    async def _send_details(self) -> None:
        sent: object = self
        while True:
            uid = self._job and self._job.view.uid
            async with self._jobs.objects_of(self._key) as objects:
                version = -1
                while uid == (self._job and self._job.view.uid):
                    version = await self._jobs.later_than(version)
                    job = self._job
                    details = await job.details(objects, self._jobs.beside(job)) if job is not None else None
                    if details != sent:
                        await self._send("job", details)
                    sent = details
                    await asyncio.sleep(_REFRESH_SECONDS)

    @property
    def _job(self) -> LiveJob | None:
        return self._jobs.jobs.get(self._key)

    # The log: its last lines, what is added, and again from there if the job runs once more. While the page
    # doesn't read, newer lines replace older ones.

    async def _send_logs(self) -> None:
        done: LiveJob | None = None
        while True:
            version = -1
            while (job := self._job) is None or job is done:
                version = await self._jobs.later_than(version)
            await self._send("log-start", None)
            await self._send_log(job)
            done = job

    async def _send_log(self, job: LiveJob) -> None:
        one = read_replica(self._replica) if self._replica else None
        wanted = Wanted(one.role, one.index) if one is not None else Wanted()
        waiting, noise = deque[tuple[str, str, bool]](maxlen=_MOST_WAITING), StopNoise()
        left_out = 0

        async def flush() -> None:
            nonlocal left_out
            if waiting:
                sent = [*waiting]
                if left_out:
                    left_out += 1
                    sent[0] = (
                        "",
                        f"{left_out:,} lines are left out: they came faster than this page can read",
                        False,
                    )
                waiting.clear()
                left_out = 0
                await self._send("log", sent)

        async def keep_flushing() -> None:
            while True:
                await asyncio.sleep(_LOG_SECONDS)
                await flush()

        async with asyncio.TaskGroup() as group:
            flushing = group.create_task(keep_flushing())
            try:
                lines = job.handle.log_lines(wanted, follow=True, tail=_SHARED_TAIL if one is None else _TAIL)
                async with aclosing(lines):
                    async for replica, line in lines:
                        is_noise = is_harmless(line) or noise.has(replica, line)
                        left_out += len(waiting) == _MOST_WAITING
                        waiting.append((replica, shorten(printable(line), _LONGEST_LINE), is_noise))
            except ClusterProblem as problem:
                waiting.append(("", printable(str(problem)), False))
            flushing.cancel()
        await flush()
