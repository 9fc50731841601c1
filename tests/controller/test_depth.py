from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from support.kube.api_server import DEEP, FakeApiServer
from support.kube.kube_cluster import running, until
from support.world.jobs import build_job
from trainjob.cluster.kube.config import Access
from trainjob.cluster.protocol import DEEPEST_OBJECT, allow_deep_objects, read_json
from trainjob.controller.operator import Operator
from trainjob.controller.process_settings import OperatorSettings

AROUND = 20
"""Levels of the job above the template's field, and of the event in which it comes."""


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(before)


def build_deep_job() -> dict[str, Any]:
    job = build_job(name="deep")
    deep: dict[str, Any] = {}
    for _ in range(DEEP - AROUND):
        deep = {"a": deep}
    job["spec"]["template"]["spec"]["x"] = deep
    return job


def has_pods(server: FakeApiServer, job: str) -> bool:
    names = [pod["metadata"]["name"] for pod in server.all("Pod")]
    return sum(name.startswith(f"{job}-") for name in names) == 3


async def test_a_job_as_deep_as_the_api_server_accepts_harms_no_other() -> None:
    async with FakeApiServer().serve() as server:
        settings = OperatorSettings(
            Access(server.url), identity="me", key_namespace="trainjob", host="127.0.0.1", port=0
        )
        operator = Operator(settings, leave_within=lambda _seconds, _code: None)

        async def run() -> None:
            await operator.run()

        async with running(run()):
            await until(lambda: server.open_watches()["TrainJob"] == 1)
            server.put(build_deep_job())
            await until(lambda: has_pods(server, "deep"))
            server.drop_watches()  # it is in the next list, too
            server.put(build_job())
            await until(lambda: has_pods(server, "digits"))


def test_what_the_api_server_sends_can_be_read() -> None:
    allow_deep_objects()
    deep = read_json(b'{"a":' * DEEPEST_OBJECT + '"\u00fc"'.encode() + b"}" * DEEPEST_OBJECT)
    for _ in range(DEEPEST_OBJECT):
        deep = deep["a"]
    assert deep == "\u00fc"


def test_a_higher_limit_is_left_as_it_is() -> None:
    sys.setrecursionlimit(50_000)
    allow_deep_objects()
    assert sys.getrecursionlimit() == 50_000
