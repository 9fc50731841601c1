"""Events: one object a series, in the background, and never an error."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.kube.api_server import FakeApiServer, Seen, failing
from support.kube.kube_cluster import open_client, running, until
from support.world.jobs import build_job
from trainjob.cluster.kube.events import MOST_WAITING, TRIES, EventSender, PodEvents
from trainjob.core.names import JobKey


class Told:
    """A sender and the server behind it."""

    def __init__(self, server: FakeApiServer, sender: EventSender, job: dict[str, Any]) -> None:
        self.server, self.sender, self.job = server, sender, job

    def post(self, message: str = "worker 0 failed", reason: str = "Restarting") -> None:
        self.sender.post(self.job, type_="Normal", reason=reason, message=message)

    def counts(self) -> dict[str, int]:
        return {event["message"]: event["count"] for event in self.server.all("Event")}

    def done(self, verb: str) -> int:
        return sum(seen.verb == verb for seen in self.server.seen)


@asynccontextmanager
async def open_sender(*, started: bool = True) -> AsyncIterator[Told]:
    async with FakeApiServer().serve() as server, open_client(server.url) as api:
        sender = EventSender(api, lambda: datetime(2026, 1, 1, tzinfo=UTC))
        told = Told(server, sender, server.put(build_job()))
        async with running(*([sender.run()] if started else [])):
            yield told


async def test_a_repeated_event_is_counted() -> None:
    async with open_sender() as told:
        for count in (1, 2, 3):
            told.post()
            await until(lambda expected=count: told.counts() == {"worker 0 failed": expected})
        told.post("worker 1 failed")
        await until(lambda: told.counts() == {"worker 0 failed": 3, "worker 1 failed": 1})
        assert (told.done("create"), told.done("patch")) == (2, 2)


async def test_what_waits_goes_out_at_once() -> None:
    async with open_sender(started=False) as told:
        for _ in range(7):
            told.post()
        async with running(told.sender.run()):
            await until(lambda: told.counts() == {"worker 0 failed": 7})
        assert (told.done("create"), told.done("patch")) == (1, 0)


async def test_an_event_that_has_expired_is_posted_again() -> None:
    async with open_sender() as told:
        told.post()
        await until(told.counts)
        event = told.server.all("Event")[0]
        told.server.remove("Event", event["metadata"]["name"])
        told.post()
        await until(lambda: told.counts() == {"worker 0 failed": 1})


@pytest.mark.parametrize("failure", [lambda: failing(500, "InternalError"), ConnectionResetError])
async def test_an_answer_that_is_lost_makes_no_second_event(failure: Callable[[], Any]) -> None:
    async with open_sender() as told:
        lost: list[Seen] = []

        def lose(seen: Seen) -> Any:
            lost.append(seen)
            return failure() if len(lost) == 1 else None

        told.server.fault_after = lose
        told.post()
        await until(lambda: told.done("create") == 2)
        told.post("marker")
        await until(lambda: len(told.counts()) == 2)
        assert told.counts() == {"worker 0 failed": 1, "marker": 1}


@pytest.mark.parametrize(
    ("code", "reason", "tries"),
    [(403, "Forbidden", 1), (404, "NotFound", 1), (422, "Invalid", 1), (500, "InternalError", TRIES)],
)
async def test_one_that_can_not_be_sent_holds_nothing_up(code: int, reason: str, tries: int) -> None:
    async with open_sender() as told:
        told.server.fault = lambda seen: (
            failing(code, reason) if (seen.body or {}).get("message") == "bad" else None
        )
        told.post("bad")
        told.post("good")
        await until(lambda: told.counts() == {"good": 1})
        assert told.done("create") == tries + 1


async def test_a_flood_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async with open_sender(started=False) as told:
        with caplog.at_level(logging.WARNING):
            for number in range(MOST_WAITING + 5):
                told.post(f"message {number}")
        assert len(caplog.records) == 5


async def test_a_storm_in_one_namespace_neither_costs_nor_delays_anothers_events() -> None:
    async with open_sender(started=False) as told:
        for number in range(MOST_WAITING + 5):
            told.post(f"message {number}")
        other = told.server.put(build_job(namespace="other"))
        told.sender.post(other, type_="Normal", reason="Created", message="heard")
        sent: list[str] = []
        told.server.fault = lambda seen: sent.append(seen.body["message"]) if seen.body else None
        async with running(told.sender.run()):
            await until(lambda: len(told.counts()) == MOST_WAITING + 1)
    assert sent.index("heard") == 1


def event_about(uid: str, reason: str, at: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{uid}.{reason}", "namespace": "default"},
        "involvedObject": {"uid": uid},
        "reason": reason,
        "lastTimestamp": at,
    }


def pod_placed_at(at: str) -> dict[str, Any]:
    labels = {"role": "worker", "index": "0", "incarnation": "1"}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
    return {
        "metadata": {"name": "w", "uid": "u", "labels": {f"trainjob.dev/{k}": v for k, v in labels.items()}},
        "status": {"phase": "Pending", "conditions": [scheduled]},
    }


@pytest.mark.parametrize("allowed", [True, False])
async def test_events_are_read_about_slow_pods_alone_and_seldom(allowed: bool) -> None:
    now = [datetime(2026, 1, 1, 0, 0, 29, tzinfo=UTC)]
    key, pod = JobKey("default", "digits"), pod_placed_at("2026-01-01T00:00:00Z")
    async with FakeApiServer().serve() as server, open_client(server.url) as api:
        if not allowed:
            server.fault = lambda seen: failing(403, "Forbidden") if seen.kind == "Event" else None
        server.put(event_about("u", "FailedMount", "2026-01-01T00:00:20Z"))
        server.put(event_about("u", "Scheduled", "2026-01-01T00:00:00Z"))
        events = PodEvents(api, lambda: now[0])
        assert await events.of(key, [pod]) == {}
        assert server.seen == []
        now[0] += timedelta(seconds=1)
        for seconds, requests in ((0, 1), (14, 1), (1, 2)):
            now[0] += timedelta(seconds=seconds)
            found = {name: event["reason"] for name, event in (await events.of(key, [pod])).items()}
            assert found == ({"w": "FailedMount"} if allowed else {})
            assert len(server.seen) == requests
        assert server.seen[0].query["fieldSelector"] == "involvedObject.uid=u"
        assert await events.of(key, []) == {}
