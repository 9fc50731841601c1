"""The agents' programs at an API server: one for a namespace and version, checked, and collected."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import count, repeat
from typing import Any

import pytest
from aiohttp import web

from support.kube.api_server import FakeApiServer, Seen, failing
from support.kube.kube_cluster import QUICK, open_client, open_kube, until
from support.world.jobs import build_job
from trainjob.cluster import Conflict, NotFound, ObjectRef, Refused
from trainjob.cluster.kube.agent_programs import CHECKED_SECONDS, AgentPrograms
from trainjob.cluster.kube.informer import Timeouts
from trainjob.core.agent import program_name
from trainjob.core.manifests import build_program
from trainjob.core.settings import Bundle

NOW = Bundle(b"the present program", b"key")
BEFORE = Bundle(b"an earlier one", b"key")
CONTENT = {"trainjob.pyz": base64.b64encode(NOW.pyz).decode()}


class Shared:
    """An API server, and what the controller knows of its jobs and pods."""

    def __init__(self, server: FakeApiServer, programs: AgentPrograms) -> None:
        self.server = server
        self.programs = programs
        self.jobs: list[dict[str, Any]] = []
        self.pods: list[dict[str, Any]] = []

    def calls(self) -> list[str]:
        """What was asked for since the last time."""
        calls = [(seen.verb, "PartialObjectMetadata" in seen.query["accept"]) for seen in self.server.seen]
        self.server.seen.clear()
        return [f"{verb} metadata" if partial else verb for verb, partial in calls]

    def names(self) -> set[str]:
        return {stored["metadata"]["name"] for stored in self.server.all("ConfigMap")}


@asynccontextmanager
async def open_shared(times: Iterable[float] = count(step=CHECKED_SECONDS)) -> AsyncIterator[Shared]:
    """Yield them; by these times a check is out of date when the next one begins."""
    clock = iter(times)
    async with FakeApiServer().serve() as server, open_client(server.url) as api:
        programs = AgentPrograms(
            api, None, lambda: shared.jobs, lambda: shared.pods, time=lambda: next(clock)
        )
        shared = Shared(server, programs)
        yield shared


def pod_with(digest: str, phase: str = "Running") -> dict[str, Any]:
    sources = [{"configMap": {"name": program_name(digest)}}, {"secret": {"name": "token"}}]
    volume = {"name": "trainjob-bundle", "projected": {"sources": sources}}
    metadata = {"name": f"pod-of-{digest}", "namespace": "default"}
    return {"metadata": metadata, "spec": {"volumes": [volume]}, "status": {"phase": phase}}


async def test_the_jobs_of_a_burst_need_one_check() -> None:
    async with open_shared(repeat(0.0)) as shared:
        for _ in range(3):
            await shared.programs.provide(build_program("default", NOW))
        assert shared.calls() == ["create"]


async def test_a_collected_program_is_created_again_at_once() -> None:
    async with open_shared(repeat(0.0)) as shared:
        await shared.programs.provide(build_program("default", NOW))
        unneeded = await shared.programs.sweep(NOW, frozenset())
        await shared.programs.sweep(NOW, unneeded)
        assert shared.names() == set()
        await shared.programs.provide(build_program("default", NOW))
        assert shared.names() == {program_name(NOW.digest)}


async def test_it_is_sent_once_for_all_jobs_and_found_again_after_a_restart() -> None:
    async with open_shared() as shared:
        await shared.programs.provide(build_program("default", NOW))
        assert shared.calls() == ["create"]
        for _ in range(3):
            await shared.programs.provide(build_program("default", NOW))
        assert shared.calls() == ["get metadata"] * 3
        async with open_client(shared.server.url) as api:
            await AgentPrograms(api, None, list, list).provide(build_program("default", NOW))
        assert shared.calls() == ["create", "get metadata", "get"]
        await shared.programs.provide(build_program("lab", NOW))
        assert [stored["metadata"]["namespace"] for stored in shared.server.all("ConfigMap")] == [
            "default",
            "lab",
        ]


async def test_one_that_was_deleted_is_created_again() -> None:
    async with open_shared() as shared:
        for _ in range(2):
            await shared.programs.provide(build_program("default", NOW))
            assert shared.names() == {program_name(NOW.digest)}
            shared.server.remove("ConfigMap", program_name(NOW.digest))


@pytest.mark.parametrize(
    "planted",
    [
        {"immutable": True, "binaryData": {"trainjob.pyz": base64.b64encode(b"evil").decode()}},
        {"immutable": True, "binaryData": {**CONTENT, "more": ""}},
        {"immutable": True, "binaryData": CONTENT, "data": {"token": "x"}},
        {"binaryData": CONTENT},
        {},
    ],
)
async def test_another_one_of_its_name_is_replaced(
    planted: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    name = program_name(NOW.digest)
    async with open_shared() as shared:
        theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **planted}
        shared.server.put(theirs)
        await shared.programs.provide(build_program("default", NOW))
        found = shared.server.find("ConfigMap", name)
        assert found is not None
        assert (found["immutable"], found["binaryData"]) == (True, CONTENT)
        assert "data" not in found
        assert f"ConfigMap default/{name} doesn't have the content that its name stands for" in caplog.text
        # One that comes in its place later is another object, and is looked at again.
        shared.server.remove("ConfigMap", name)
        shared.server.put(theirs)
        await shared.programs.provide(build_program("default", NOW))
        found = shared.server.find("ConfigMap", name)
        assert found is not None
        assert found["binaryData"] == CONTENT


async def test_one_that_is_planted_again_and_again_holds_the_pods_up() -> None:
    """No pod starts with it: what isn't provided is asked for again by the next pass."""
    async with open_shared() as shared:
        theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": program_name(NOW.digest)}}

        def plant(seen: Seen) -> None:
            if seen.verb == "create" and not shared.server.all("ConfigMap"):
                shared.server.put(theirs)

        shared.server.fault = plant
        with pytest.raises(Conflict, match="created by another program again and again"):
            await shared.programs.provide(build_program("default", NOW))


async def test_a_refusal_is_the_clusters() -> None:
    async with open_shared() as shared:
        words = "exceeded quota: count/configmaps"
        shared.server.fault = lambda seen: failing(403, "Forbidden", words) if seen.verb == "create" else None
        with pytest.raises(Refused, match="exceeded quota"):
            await shared.programs.provide(build_program("default", NOW))


async def test_what_is_unused_goes_at_the_second_look() -> None:
    async with open_shared() as shared:
        for bundle in (NOW, BEFORE):
            shared.server.put(build_program("default", bundle))
        shared.server.put(build_program("empty", NOW))
        other = {"name": "theirs", "labels": {"trainjob.dev/agent-program": "true"}}
        shared.server.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": other})
        shared.jobs = [build_job()]
        shared.pods = [pod_with(BEFORE.digest)]
        first = await shared.programs.sweep(NOW, frozenset())
        assert {full_name for full_name, _ in first} == {("empty", program_name(NOW.digest))}
        assert len(shared.server.all("ConfigMap")) == 4
        shared.pods = [pod_with(BEFORE.digest, "Succeeded")]
        second = await shared.programs.sweep(NOW, first)
        assert [s["metadata"]["namespace"] for s in shared.server.all("ConfigMap")] == ["default"] * 3
        await shared.programs.sweep(NOW, second)
        assert shared.names() == {program_name(NOW.digest), "theirs"}
        shared.jobs = [{**build_job(), "status": {"completionTime": "2026-01-01T00:00:00Z"}}]
        third = await shared.programs.sweep(NOW, frozenset())
        await shared.programs.sweep(NOW, third)
        assert shared.names() == {"theirs"}


async def test_one_that_is_needed_again_in_between_stays() -> None:
    async with open_shared() as shared:
        shared.server.put(build_program("default", BEFORE))
        first = await shared.programs.sweep(NOW, frozenset())
        shared.pods = [pod_with(BEFORE.digest)]
        second = await shared.programs.sweep(NOW, first)
        shared.pods = []
        assert second == frozenset()
        await shared.programs.sweep(NOW, second)
        assert shared.names() == {program_name(BEFORE.digest)}


async def test_another_object_of_the_name_is_not_the_one_that_was_seen() -> None:
    async with open_shared() as shared:
        shared.server.put(build_program("default", BEFORE))
        first = await shared.programs.sweep(NOW, frozenset())
        shared.server.remove("ConfigMap", program_name(BEFORE.digest))
        shared.server.put(build_program("default", BEFORE))
        await shared.programs.sweep(NOW, first)
        assert shared.names() == {program_name(BEFORE.digest)}


async def test_a_job_that_comes_while_it_is_deleted_does_not_lose_it() -> None:
    """The job has seen it there; the deletion, decided before, comes after that."""
    async with open_shared() as shared:
        await shared.programs.provide(build_program("default", NOW))
        first = await shared.programs.sweep(NOW, frozenset())

        def come(seen: Seen) -> None:
            if seen.verb == "delete":
                shared.jobs = [build_job()]

        shared.server.fault = come
        await shared.programs.sweep(NOW, first)
        assert "delete" in shared.calls()
        assert shared.names() == {program_name(NOW.digest)}


async def test_it_looks_now_and_then_even_after_errors_of_the_api_server() -> None:
    async with FakeApiServer().serve() as server:
        server.put(build_program("default", BEFORE))
        garbled = web.json_response({"items": [{"metadata": "?"}]})
        ills = iter((failing(503, "ServiceUnavailable"), failing(403, "Forbidden"), garbled))
        server.fault = lambda seen: next(ills, None) if seen.kind == "ConfigMap" else None
        timeouts = Timeouts(watch=QUICK.watch, inactivity=QUICK.inactivity, first_retry=0.01, collect=0.01)
        async with open_kube(server.url, timeouts=timeouts) as cluster:
            collecting = asyncio.ensure_future(cluster.collect_programs(NOW))
            await until(lambda: not server.all("ConfigMap"))
            assert not collecting.done()
            collecting.cancel()


async def test_the_cluster_provides_it_and_deletes_a_jobs_secret_unseen() -> None:
    async with FakeApiServer().serve() as server:
        server.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "digits-agent-1"}})
        async with open_kube(server.url) as cluster:
            await cluster.synced()
            await cluster.create(build_program("default", NOW))
            await cluster.create(build_program("default", NOW))
            ref = ObjectRef("Secret", "default", "digits-agent-1", uid="")
            await cluster.delete(ref)
            with pytest.raises(NotFound):
                await cluster.delete(ref)
        assert server.writes() == [
            f"create ConfigMap {program_name(NOW.digest)}",
            *["delete Secret digits-agent-1"] * 2,
        ]
        deletion = next(seen.body for seen in server.seen if seen.verb == "delete")
        assert deletion is not None
        assert "preconditions" not in deletion
