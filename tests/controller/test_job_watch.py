from __future__ import annotations

import asyncio
import gc
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any
from weakref import WeakSet

import aiohttp
import kopf
import pytest
from aiohttp import web

from support.kube.api_server import FakeApiServer, Seen, failing
from support.kube.kube_cluster import running, until
from support.world.jobs import build_job
from trainjob.cluster.kube.config import Access, read_token_file
from trainjob.cluster.kube.informer import Timeouts
from trainjob.cluster.kube.transport import Call
from trainjob.controller.kopf_watch import JobWatch, Login, configure

Event = tuple[str, str]


class Mark:
    """Lives as long as the manifest that it is put into."""


class Heard:
    """The events of a watch.

    Attributes:
        alive: those whose manifests are still in memory.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.calls: list[Call] = []
        self.starts = 0
        self.restarts = 0
        self.begins = 0
        self.is_served: Callable[[], None] = lambda: None
        self.alive = WeakSet[Mark]()

    def take(self, kind: str, manifest: dict[str, Any]) -> None:
        self.events.append((kind, manifest["metadata"]["name"]))
        manifest["mark"] = mark = Mark()
        self.alive.add(mark)

    def count_start(self) -> None:
        self.starts += 1

    def count_restart(self) -> None:
        self.restarts += 1

    def count_begin(self) -> None:
        self.begins += 1

    async def look(self) -> None:
        self.is_served()


@asynccontextmanager
async def watching(server: FakeApiServer, **options: Any) -> AsyncIterator[tuple[Heard, JobWatch]]:
    heard = Heard()
    watch = _build_watch(server, heard, **options)
    async with running(watch.run()):
        yield heard, watch


async def test_every_event_arrives_with_its_type() -> None:
    async with FakeApiServer().serve() as server, watching(server) as (heard, _):
        await until(lambda: server.open_watches()["TrainJob"] == 1)
        server.put(build_job(name="new"))
        server.put(build_job(name="new", workers=3))
        server.remove("TrainJob", "new")
        await until(lambda: len(heard.events) == 3)
    assert heard.events == [("ADDED", "new"), ("MODIFIED", "new"), ("DELETED", "new")]
    assert server.writes() == []
    assert [(call.verb, call.code) for call in heard.calls] == [("list", 200), ("watch", 200)]


async def test_the_jobs_events_leave_the_memory() -> None:
    settings = kopf.OperatorSettings()
    configure(settings, 1.0)
    assert 0 < settings.queueing.idle_timeout < 1  # each job's latest event is held for so long
    async with FakeApiServer().serve() as server, watching(server) as (heard, _):
        await until(lambda: server.open_watches()["TrainJob"] == 1)
        for number in range(50):
            server.put(build_job(name=f"job-{number}"))
        await until(lambda: len(heard.events) == 50)
        await until(lambda: (gc.collect(), len(heard.alive))[1] <= 1, "only the watch holds its latest event")


async def test_however_many_jobs_there_are_the_watch_begins_after_one_request() -> None:
    """Also after a 410: then it is said that it has begun again, and somebody else compares."""
    async with FakeApiServer().serve() as server:
        for number in range(25):
            server.put(build_job(name=f"job-{number}"))
        async with watching(server) as (heard, _):
            for begins in (1, 2):
                await until(lambda begins=begins: (heard.begins, _watches(server)) == (begins, 1))
                server.put(build_job(name=f"new-{begins}"))
                await until(lambda begins=begins: len(heard.events) == begins)
                _restart(server)
        lists = [seen for seen in server.seen if seen.verb == "list"]
    assert heard.events == [("ADDED", "new-1"), ("ADDED", "new-2")]
    assert len(lists) == heard.begins


def test_an_api_server_that_refuses_watches_for_a_minute_is_asked_often() -> None:
    settings = kopf.OperatorSettings()
    configure(settings, 1.0)
    waits = list(islice(settings.networking.error_backoffs, 100))
    ends = list(accumulate(waits))
    assert all(wait <= 2.0 for wait, end in zip(waits, ends, strict=True) if end <= 60)
    assert waits[-1] == 10.0


async def test_one_namespace() -> None:
    async with FakeApiServer().serve() as server:
        server.put(build_job(name="elsewhere", namespace="other"))
        server.put(build_job(name="here", namespace="team"))
        async with watching(server, namespace="team") as (heard, _):
            await until(lambda: server.open_watches()["TrainJob"] == 1)
            server.remove("TrainJob", "elsewhere", "other")
            server.remove("TrainJob", "here", "team")
            await until(lambda: heard.events)
    assert heard.events == [("DELETED", "here")]


async def test_that_something_may_have_happened_while_the_watch_was_down_is_said() -> None:
    async with FakeApiServer().serve() as server, watching(server) as (heard, _):
        await until(lambda: server.open_watches()["TrainJob"] == 1)
        server.fault = _fail_watches(*(failing(503, "ServiceUnavailable") for _ in range(2)))
        server.end_watches()
        server.put(build_job(name="missed"))
        server.compact()
        await until(lambda: heard.begins == 2)
        assert heard.restarts == 0


@pytest.mark.parametrize("code", [410, 500])
async def test_an_error_in_the_watch_is_got_over(code: int) -> None:
    error = {"kind": "Status", "code": code, "message": "etcdserver: leader changed", "metadata": {}}
    async with FakeApiServer().serve() as server, watching(server) as (heard, _):
        await until(lambda: server.open_watches()["TrainJob"] == 1)
        server.send_line("TrainJob", json.dumps({"type": "ERROR", "object": error}).encode() + b"\n")
        server.put(build_job(name="later"))
        await until(lambda: heard.begins == 2)
        assert heard.restarts == (0 if code == 410 else 1)


async def test_a_frozen_watch_is_opened_again() -> None:
    timeouts = Timeouts(inactivity=0.5)
    async with FakeApiServer().serve() as server, watching(server, timeouts=timeouts) as (heard, _):
        await until(lambda: server.open_watches()["TrainJob"] == 1)
        server.freeze_watches()
        server.put(build_job(name="unheard"))
        await until(lambda: ("ADDED", "unheard") in heard.events)
        assert heard.restarts == 0


async def test_a_kopf_that_says_nothing_for_too_long_is_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeApiServer().serve() as server, watching(server) as (heard, watch):
        watch.patience_seconds = 0.5
        await until(lambda: heard.starts >= 2)
        watch.patience_seconds = 60.0
        await until(lambda: server.put(build_job(name="later")) and heard.events)
    assert "nothing received for 0 s" in caplog.text


async def test_a_kopf_that_ends_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeApiServer().serve() as server:
        server.fault = _fail_watches(failing(422, "Invalid", "a defect"))
        async with watching(server) as (heard, _):
            await until(lambda: server.open_watches()["TrainJob"] == 1)
            server.put(build_job(name="later"))
            await until(lambda: heard.events == [("ADDED", "later")])
            assert (heard.starts, heard.restarts) == (2, 1)
    assert "The watch of TrainJobs has ended: " in caplog.text
    assert "a defect" in caplog.text


async def test_it_waits_until_trainjobs_are_served() -> None:
    async with FakeApiServer().serve() as server, watching(server) as (heard, _):
        refusals = [ValueError("not there"), ValueError("not there yet")]

        def refuse() -> None:
            if refusals:
                raise refusals.pop()

        heard.is_served = refuse
        await until(lambda: heard.starts)
        assert refusals == []


async def test_a_rotated_token_is_read_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    async with FakeApiServer().serve() as server:
        server.tokens = {"first"}
        async with watching(
            server, access=Access(server.url, read_token=partial(read_token_file, token))
        ) as (heard, _):
            await until(lambda: server.open_watches()["TrainJob"] == 1)
            token.write_text("second")
            server.tokens = {"second"}
            server.end_watches()
            await until(lambda: server.open_watches()["TrainJob"] == 1)
            server.put(build_job(name="later"))
            await until(lambda: heard.events)
            assert heard.restarts == 0
    assert 401 in {call.code for call in heard.calls}


async def test_a_fixed_token_is_sent() -> None:
    async with FakeApiServer().serve() as server:
        server.tokens = {"fixed"}
        async with watching(server, access=Access(server.url, read_token=lambda _: "Bearer fixed")):
            await until(lambda: server.open_watches()["TrainJob"] == 1)
    assert {seen.token for seen in server.seen} == {"fixed"}


async def test_signals_are_the_callers_again_once_kopf_runs() -> None:
    loop = asyncio.get_running_loop()
    got = asyncio.Event()
    async with FakeApiServer().serve() as server, watching(server) as (heard, _):
        await until(lambda: server.open_watches()["TrainJob"] == 1)
        assert heard.starts == 1
        loop.add_signal_handler(signal.SIGTERM, got.set)
        signal.raise_signal(signal.SIGTERM)
        await got.wait()
        server.put(build_job(name="later"))
        await until(lambda: heard.events)
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)


@pytest.mark.parametrize("times", [1, 2, 3, 10])
async def test_every_session_is_closed_however_often_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    sessions: list[aiohttp.ClientSession] = []
    open_session = Login._open

    def remember(login: Login) -> aiohttp.ClientSession:
        sessions.append(open_session(login))
        return sessions[-1]

    monkeypatch.setattr(Login, "_open", remember)
    async with FakeApiServer().serve() as server:
        task = asyncio.create_task(_build_watch(server, Heard()).run())
        await until(lambda: server.open_watches()["TrainJob"] == 1)
        server.send_line("TrainJob", b"{garbage\n")
        await until(lambda: len(sessions) == 2 and server.open_watches()["TrainJob"] == 1)
        for _ in range(times):  # as a loop that ends does, beside those who wait for it
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(task, return_exceptions=True)
        assert [session.closed for session in sessions] == [True, True]


def _build_watch(server: FakeApiServer, heard: Heard, **options: Any) -> JobWatch:
    given = {
        "access": Access(server.url),
        "namespace": None,
        "timeouts": Timeouts(inactivity=30.0),
        **options,
    }
    return JobWatch(
        given.pop("access"),
        heard.take,
        is_served=heard.look,
        on_call=heard.calls.append,
        on_begin=heard.count_begin,
        on_restart=heard.count_restart,
        on_started=heard.count_start,
        **given,
    )


def _watches(server: FakeApiServer) -> int:
    return server.open_watches()["TrainJob"]


def _restart(server: FakeApiServer) -> None:
    """Let the server know only what happens from now on, as after a restart."""
    server.end_watches()
    server.put(build_job(name="unheard"))
    server.compact()


def _fail_watches(*answers: web.Response) -> Callable[[Seen], web.Response | None]:
    left = list(answers)

    def fault(seen: Seen) -> web.Response | None:
        return left.pop() if left and seen.verb == "watch" else None

    return fault
