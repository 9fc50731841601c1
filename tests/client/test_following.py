from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from support.cli.requests import Answer, Asked, Break
from support.cli.server import CliServer
from support.cli.stored_jobs import RUNNING, stored_job, stored_pod
from trainjob.client.handle import ClusterJob
from trainjob.client.job_logs import LogCursor, LogLine, Wanted
from trainjob.client.jobs import follow, job_scope
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access
from trainjob.cluster.kube.informer import Backoff, Change, Failed, Gone, Seen, Timeouts
from trainjob.cluster.kube.responses import Unreachable
from trainjob.cluster.protocol import Refused, Unavailable

QUICK = Timeouts(first_retry=0.01, longest_retry=0.1)

Changes = AsyncGenerator[Change]


@asynccontextmanager
async def following(timeouts: Timeouts = QUICK) -> AsyncIterator[tuple[CliServer, Changes]]:
    with CliServer().serve() as server:
        async with ApiClient(Access(server.url)) as api:
            yield server, follow(api, job_scope("default"), timeouts)


def told(change: Change) -> tuple[str, str]:
    """The kind of a change, and the state of the job that it is about."""
    manifest = change.manifest if isinstance(change, Seen | Gone) else {}
    return type(change).__name__, manifest.get("status", {}).get("state", "")


async def take(found: Changes, number: int) -> list[tuple[str, str]]:
    return [told(await anext(found)) for _ in range(number)]


def fail(api: CliServer, verb: str, *problems: Exception) -> None:
    """Have the next requests with this verb fail, one after the other."""
    left = list(problems)

    def rule(asked: Asked) -> None:
        if asked.verb == verb and left:
            raise left.pop(0)

    api.rules.append(rule)


async def test_what_is_there_and_what_changes() -> None:
    async with following() as (api, found):
        api.put(stored_job("Pending"))
        assert await take(found, 2) == [("Seen", "Pending"), ("Listed", "")]
        api.put(stored_job("Running"))
        assert await take(found, 1) == [("Seen", "Running")]
        api.delete("trainjobs", "digits")
        assert await take(found, 1) == [("Gone", "Running")]


async def test_a_watch_that_breaks_off_continues_where_it_was() -> None:
    async with following() as (api, found):
        assert await take(found, 1) == [("Listed", "")]
        fail(api, "watch", Break())
        api.put(stored_job("Pending"))
        assert await take(found, 1) == [("Seen", "Pending")]
        api.cut_watches()
        api.put(stored_job("Running"))
        assert await take(found, 1) == [("Seen", "Running")]
        assert api.count("list") == 1


async def test_a_deletion_that_was_missed() -> None:
    async with following() as (api, found):
        api.put(stored_job("Running"))
        api.put(stored_job("Pending", name="other"))
        assert [kind for kind, _ in await take(found, 3)] == ["Seen", "Seen", "Listed"]
        api.delete("trainjobs", "digits")
        api.forget_history()
        assert await take(found, 2) == [("Gone", "Running"), ("Listed", "")]
        assert api.count("list") == 2


async def test_an_expired_version_as_the_answer_to_a_watch() -> None:
    async with following() as (api, found):
        fail(api, "watch", Answer(410, "Expired", "too old"))
        assert await take(found, 2) == [("Listed", ""), ("Listed", "")]


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_server_that_restarts(verb: str) -> None:
    async with following() as (api, found):
        # A request on an open connection that breaks off is sent again once, without a word.
        fail(api, verb, *[Break()] * 4, Answer(503, "ServiceUnavailable", "starting"), Break())
        seen = [await anext(found)]
        api.put(stored_job("Running"))
        while not isinstance(seen[-1], Seen):
            seen.append(await anext(found))
        failed = [change for change in seen if isinstance(change, Failed)]
        assert {type(change.error) for change in failed} == {Unavailable, Unreachable}
        numbers = [change.failures for change in failed]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_it_waits_as_long_as_it_is_asked_to() -> None:
    async with following() as (api, found):
        answer = Answer(429, "TooManyRequests", "slow down")
        answer.headers = {"Retry-After": "0.5"}
        fail(api, "list", answer)
        failed = await anext(found)
        assert isinstance(failed, Failed)
        assert failed.wait == 0.5
        assert await take(found, 1) == [("Listed", "")]


async def test_what_is_refused_for_good_is_raised() -> None:
    async with following() as (api, found):
        fail(api, "watch", Answer(403, "Forbidden", "no"))
        assert await take(found, 1) == [("Listed", "")]
        with pytest.raises(Refused, match="no"):
            await anext(found)


async def test_a_watch_that_ends_at_once_is_not_asked_without_end() -> None:
    timeouts = Timeouts(first_retry=0.1, longest_retry=0.4)
    async with following(timeouts) as (api, found):
        api.ends_watches_at_once = True
        assert await take(found, 2) == [("Listed", "")] * 2  # listed again after some failures
        assert api.count("watch") < 10


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0.2), (2, 0.4), (3, 0.8), (7, 10.0), (5000, 10.0)])
def test_backoff(failures: int, seconds: float) -> None:
    backoff = Backoff(0.2, 10.0, rand=lambda: 1.0)
    assert [backoff.next() for _ in range(failures)][-1] == pytest.approx(seconds)


async def test_a_log_is_read_no_further_than_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    read, feed = 0, LogCursor.feed

    def count(cursor: LogCursor, piece: bytes) -> list[LogLine]:
        nonlocal read
        lines = feed(cursor, piece)
        read += len(lines)
        return lines

    monkeypatch.setattr(LogCursor, "feed", count)
    with CliServer().serve() as server:
        server.put(stored_job())
        server.put(stored_pod(container=RUNNING))
        text = f"2026-01-02T03:04:05Z {'x' * 1000}"
        server.write_log("digits-worker-0-1", *[text] * 9999, "2026-01-02T03:04:06Z last")
        async with ApiClient(Access(server.url)) as api:
            job = ClusterJob(api, "default", "digits")
            lines = job.log_lines(Wanted(), follow=True)
            await anext(lines)
            await asyncio.sleep(0.5)  # time for all 10 MB, if nothing holds them back
            assert read < 3000
            while (await anext(lines))[1] != "last":
                pass
            await lines.aclose()
    assert read == 10_000
