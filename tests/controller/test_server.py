from __future__ import annotations

import aiohttp

from trainjob.controller.health import serve
from trainjob.controller.metrics import Metrics


async def fetch(port: int, path: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def test_each_page_shows_how_things_are_now() -> None:
    problems = {"pods": "", "work": ""}
    async with serve("127.0.0.1", 0, lambda: problems, lambda: {"caches": ""}, Metrics()) as port:
        assert await fetch(port, "/livez") == (200, "text/plain; charset=utf-8", "pods: ok\nwork: ok\n")
        problems["work"] = "stuck"
        assert (await fetch(port, "/livez"))[::2] == (503, "pods: ok\nwork: stuck\n")
        assert (await fetch(port, "/readyz"))[::2] == (200, "caches: ok\n")
        status, form, text = await fetch(port, "/metrics")
        assert (status, form) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert "trainjob_leader 0.0" in text
        assert (await fetch(port, "/"))[0] == 404
