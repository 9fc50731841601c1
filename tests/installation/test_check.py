"""What `helm test` asks, against small servers; the API server's part is in tests/e2e."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from trainjob.api import parse
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access
from trainjob.installation.__main__ import EXAMPLE, check_api, check_ready
from trainjob.installation.crd_update import InstallationFailed


class Answers:
    """A server that gives these answers in turn, the last one again and again."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self.seen: list[web.BaseRequest] = []
        self._answers = list(answers)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.seen.append(request)
        status, text = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return web.Response(status=status, text=text)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        runner = web.ServerRunner(web.Server(self.answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()


async def test_ready() -> None:
    said: list[str] = []
    answers = Answers((200, "caches: ok"))
    async with answers.serve() as url:
        await check_ready(f"{url}/readyz", say=said.append)
    assert [request.path for request in answers.seen] == ["/readyz"]
    assert said == [f"{url}/readyz says that it is ready"]


async def test_ready_after_a_while() -> None:
    answers = Answers((503, "caches: not filled"), (200, ""))
    async with answers.serve() as url:
        await check_ready(url, say=[].append)
    assert len(answers.seen) == 2


async def test_never_ready_gives_the_last_answer() -> None:
    async with Answers((503, "caches: not filled")).serve() as url:
        with pytest.raises(InstallationFailed, match="is not ready: 503 caches: not filled"):
            await check_ready(url, say=[].append, patience_seconds=0.5)


async def test_a_server_that_is_not_there() -> None:
    async with Answers((200, "")).serve() as url:
        pass
    with pytest.raises(InstallationFailed, match="Cannot connect"):
        await check_ready(url, say=[].append, patience_seconds=0.5)


async def test_the_job_is_a_dry_run() -> None:
    answers = Answers((201, "{}"))
    async with answers.serve() as url, client(url) as api:
        await check_api(api, "training", say=[].append)
    (request,) = answers.seen
    assert request.path == "/apis/trainjob.dev/v1alpha1/namespaces/training/trainjobs"
    assert dict(request.query) == {"dryRun": "All", "fieldValidation": "Strict"}


async def test_without_the_crd() -> None:
    async with Answers((404, "404 page not found")).serve() as url, client(url) as api:
        with pytest.raises(InstallationFailed, match="no TrainJob can be created in training: HTTP 404"):
            await check_api(api, "training", say=[].append)


def test_the_job_is_a_good_one() -> None:
    assert (
        parse(
            EXAMPLE | {"metadata": {"name": "digits", "namespace": "training", "uid": "u"}}
        ).spec.worker.replicas
        == 2
    )


def client(url: str) -> ApiClient:
    return ApiClient(Access(url), timeout=5, connections=1)
