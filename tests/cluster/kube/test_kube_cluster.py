"""The Cluster protocol, against an API server that does what tests want."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from support.kube.api_server import FakeApiServer, Seen, failing, status_object
from support.kube.fake_agents import FakeAgent, build_report
from support.kube.kube_cluster import QUICK, open_client, open_kube, until
from support.world.jobs import build_job
from trainjob.api import parse
from trainjob.cluster import (
    AlreadyExists,
    Conflict,
    JobKey,
    NotFound,
    ObjectRef,
    Refused,
    Snapshot,
    Unavailable,
)
from trainjob.cluster.agents.poller import AgentIntervals, AgentPolling, pod_address
from trainjob.cluster.kube.cluster import KubeCluster
from trainjob.core.manifests import build_objects

KEY = JobKey("default", "digits")


def objects_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    return build_objects(parse(job))


async def look(cluster: KubeCluster, key: JobKey = KEY) -> Snapshot:
    snapshot = await cluster.observe(key)
    assert snapshot is not None
    return snapshot


def ref_of(manifest: dict[str, Any], uid: str | None = None) -> ObjectRef:
    meta = manifest["metadata"]
    return ObjectRef(manifest["kind"], meta["namespace"], meta["name"], uid or meta["uid"])


@pytest.mark.parametrize("late", ["TrainJob", "Pod", "Service", "PersistentVolumeClaim", "NetworkPolicy"])
async def test_nothing_can_be_observed_before_every_cache_is_filled(late: str) -> None:
    async with FakeApiServer().serve() as server:
        server.put(build_job())
        closed = [True]

        def fault(seen: Seen) -> web.StreamResponse | None:
            shut = closed[0] and seen.verb == "list" and seen.kind == late
            return failing(503, "ServiceUnavailable") if shut else None

        server.fault = fault
        async with open_kube(server.url, feed=False) as cluster:
            looking = asyncio.ensure_future(cluster.observe(KEY))
            await until(lambda: sum(s.kind == late for s in server.seen) >= 3)
            assert not looking.done()
            assert not cluster.health().synced
            closed[0] = False
            assert await looking is not None
            assert cluster.health().synced


async def test_what_was_written_is_seen_at_once() -> None:
    async with FakeApiServer().serve() as server:
        job = server.put(build_job())
        async with open_kube(server.url) as cluster:
            await cluster.synced()
            server.losing = True  # no watch will report it
            for manifest in objects_of(job):
                await cluster.create(manifest)
            snapshot = await look(cluster)
            assert len(snapshot.pods) == 3
            assert "Service" in snapshot.related
            change = {"trainjob.dev/live": None, "trainjob.dev/x": "y"}
            await cluster.set_labels(ref_of(snapshot.pods[0]), change)
            labels = (await look(cluster)).pods[0]["metadata"]["labels"]
            assert "trainjob.dev/live" not in labels
            assert labels["trainjob.dev/x"] == "y"
            await cluster.write_status(
                KEY, job["metadata"]["uid"], job["metadata"]["resourceVersion"], {"state": "Starting"}
            )
            assert (await look(cluster)).job["status"] == {"state": "Starting"}


async def test_a_deleted_pod_is_seen_to_end_and_then_goes() -> None:
    async with FakeApiServer().serve() as server:
        job = server.put(build_job())
        for manifest in objects_of(job):
            server.put({**manifest, "status": {"phase": "Running"}})
        async with open_kube(server.url) as cluster:
            pod = (await look(cluster)).pods[0]
            server.losing = True
            await cluster.delete(ref_of(pod))
            assert "deletionTimestamp" in (await look(cluster)).pods[0]["metadata"]
            server.losing = False
            await until(lambda: server.open_watches()["Pod"])
            ended = asyncio.Event()
            cluster.watch(lambda _key: ended.set())
            await cluster.delete(ref_of(pod), grace_seconds=0)
            await ended.wait()
            assert len((await look(cluster)).pods) == 2


async def test_a_pod_that_is_gone_is_forgotten() -> None:
    async with FakeApiServer().serve() as server:
        job = server.put(build_job())
        pod = server.put(objects_of(job)[-1])
        async with open_kube(server.url) as cluster:
            assert len((await look(cluster)).pods) == 1
            server.losing = True
            server.remove("Pod", pod["metadata"]["name"])
            with pytest.raises(NotFound):
                await cluster.delete(ref_of(pod))
            assert (await look(cluster)).pods == ()


async def test_another_pod_of_that_name_is_left_alone_and_known_from_then_on() -> None:
    async with FakeApiServer().serve() as server:
        job = server.put(build_job())
        old = server.put(objects_of(job)[-1])
        async with open_kube(server.url) as cluster:
            await cluster.synced()
            server.losing = True
            server.remove("Pod", old["metadata"]["name"])
            new = server.put(objects_of(job)[-1])
            for write in (cluster.delete(ref_of(old)), cluster.set_labels(ref_of(old), {"x": "y"})):
                with pytest.raises(Conflict):
                    await write
            assert [p["metadata"]["uid"] for p in (await look(cluster)).pods] == [new["metadata"]["uid"]]
        assert server.find("Pod", new["metadata"]["name"]) == new


@pytest.mark.parametrize("kind", ["Service", "NetworkPolicy"])
async def test_an_object_in_the_way_is_seen_for_a_while(kind: str) -> None:
    async with FakeApiServer().serve() as server:
        server.put(build_job())
        theirs = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "digits", "namespace": "default"}}
        server.put(theirs)
        async with open_kube(server.url) as cluster:

            async def seen() -> Any:
                snapshot = await look(cluster)
                return snapshot.related.get(kind)

            assert await seen() is None
            ours = {**theirs, "metadata": {**theirs["metadata"], "labels": {"trainjob.dev/job": "digits"}}}
            with pytest.raises(AlreadyExists):
                await cluster.create(ours)
            assert "ownerReferences" not in (await seen())["metadata"]
            server.remove(kind, "digits")
            await cluster.create(ours)
            assert (await seen())["metadata"]["labels"]


async def test_a_pod_that_an_unseen_try_created_is_found() -> None:
    async with FakeApiServer().serve() as server:
        job = server.put(build_job())
        pod = objects_of(job)[-1]
        async with open_kube(server.url) as cluster:
            await cluster.synced()
            server.losing = True
            server.fault_after = lambda seen: ConnectionResetError() if seen.verb == "create" else None
            with pytest.raises(Unavailable):
                await cluster.create(pod)
            assert (await look(cluster)).pods == ()
            server.fault_after = lambda _seen: None
            with pytest.raises(AlreadyExists):
                await cluster.create(pod)
            assert len((await look(cluster)).pods) == 1


async def test_a_status_is_written_to_the_job_that_was_seen_only() -> None:
    async with FakeApiServer().serve() as server:
        job = server.put(build_job())
        uid, version = job["metadata"]["uid"], job["metadata"]["resourceVersion"]
        async with open_kube(server.url, feed=False) as cluster:
            await cluster.synced()
            changed = server.put(build_job(workers=4))
            with pytest.raises(Conflict):
                await cluster.write_status(KEY, uid, version, {"state": "Running"})
            assert (await look(cluster)).job["spec"]["worker"]["replicas"] == 4
            with pytest.raises(Conflict):
                await cluster.write_status(KEY, "another", changed["metadata"]["resourceVersion"], {})
            server.remove("TrainJob", "digits")
            with pytest.raises(NotFound):
                await cluster.write_status(KEY, uid, changed["metadata"]["resourceVersion"], {})
            assert await cluster.observe(KEY) is None


async def test_one_missed_end_makes_it_look_for_more() -> None:
    async with FakeApiServer().serve() as server:
        job = server.put(build_job())
        server.put(build_job(name="letters"))
        async with open_kube(server.url, feed=False) as cluster:
            await cluster.synced()
            server.remove("TrainJob", "digits")
            server.remove("TrainJob", "letters")
            with pytest.raises(NotFound):
                await cluster.write_status(KEY, job["metadata"]["uid"], "1", {})
            await until(lambda: cluster.job_keys() == ())


async def test_a_refusal_has_the_clusters_own_message() -> None:
    async with FakeApiServer().serve() as server:
        job = server.put(build_job())
        answer = status_object(
            403, "Forbidden", "namespace lab is ending", causes=[{"reason": "NamespaceTerminating"}]
        )
        async with open_kube(server.url) as cluster:
            await cluster.synced()
            server.fault = lambda seen: (
                web.json_response(answer, status=403) if seen.verb == "create" else None
            )
            with pytest.raises(Refused) as raised:
                await cluster.create(objects_of(job)[0])
            assert raised.value.reason == "NamespaceTerminating"


async def test_every_listener_is_notified_of_changes() -> None:
    async with FakeApiServer().serve() as server:
        job = server.put(build_job())
        async with open_kube(server.url) as cluster:
            told: list[list[JobKey]] = [[], []]
            for keys in told:
                cluster.watch(keys.append)
            await cluster.synced()
            await until(lambda: server.open_watches()["Pod"])
            for keys in told:
                keys.clear()
            await cluster.create(objects_of(job)[-1])
            assert told == [[KEY], [KEY]]
            marker = {"kind": "Pod", "metadata": {"name": "z", "labels": {"trainjob.dev/job": "marker"}}}
            server.put(marker)  # after this one the echo of the creation has been heard
            await until(lambda: told[0][-1].name == "marker")
            assert [key.name for key in told[0]] == ["digits", "marker"]


async def test_one_namespace_only() -> None:
    async with FakeApiServer().serve() as server:
        for namespace in ("lab", "other"):
            job = server.put(build_job(namespace=namespace))
            server.put(objects_of(job)[-1])
        async with open_kube(server.url, namespace="lab") as cluster:
            assert len((await look(cluster, JobKey("lab", "digits"))).pods) == 1
            assert await cluster.observe(JobKey("other", "digits")) is None
            assert cluster.job_keys() == (JobKey("lab", "digits"),)
            assert len(list(cluster.jobs())) == 1


async def test_restarts_and_silence_are_reported_by_resource() -> None:
    async with FakeApiServer().serve() as server:
        restarts: list[str] = []
        async with open_kube(server.url, on_restart=restarts.append, timeouts=QUICK) as cluster:
            await until(lambda: sum(server.open_watches().values()) == 5)
            server.send_line("Pod", b"garbage\n")
            await until(lambda: restarts == ["pods"])
            silent = cluster.health().silent
            assert set(silent) == {"pods", "services", "persistentvolumeclaims", "networkpolicies"}
            assert all(seconds >= 0 for seconds in silent.values())


async def test_health_can_be_asked_before_it_runs() -> None:
    async with FakeApiServer().serve() as server, open_client(server.url) as api:
        health = KubeCluster(api).health()
        assert not health.synced
        assert set(health.silent.values()) == {0.0}


async def test_a_secret_is_created_and_never_read() -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "digits-agent",
            "namespace": "default",
            "labels": {"trainjob.dev/job": "digits"},
        },
        "data": {},
    }
    async with FakeApiServer().serve() as server:
        async with open_kube(server.url) as cluster:
            await cluster.synced()
            await cluster.create(secret)
            with pytest.raises(AlreadyExists):
                await cluster.create(secret)
        assert [seen.verb for seen in server.seen if seen.kind == "Secret"] == ["create", "create"]


def build_polling(port: int, intervals: AgentIntervals) -> AgentPolling:
    address_of = partial(pod_address, port=port)
    return AgentPolling(token_of=lambda uid: f"token of {uid}", address_of=address_of, intervals=intervals)


async def test_agents_are_asked_once_there_is_an_order_and_their_pod_runs() -> None:
    agent = FakeAgent("token of uid-1")
    async with FakeApiServer().serve() as server, agent.serve() as port:
        job = server.put(build_job())
        assert job["metadata"]["uid"] == "uid-1"
        pods = [server.put(m) for m in objects_of(job) if m["kind"] == "Pod"]
        # Once the first haste is over, only a change of the pod is a reason to look for its agent again.
        intervals = AgentIntervals(steady=10_000.0, hasty=0.01, hasty_for=0.05)
        loop = asyncio.get_running_loop()
        polling = build_polling(port, intervals)
        async with open_kube(server.url, polling=polling) as cluster:
            told: list[JobKey] = []
            await cluster.synced()
            cluster.set_target(KEY, {"world": {"worker": 2}})
            over = loop.time() + 2 * intervals.hasty_for
            await until(lambda: loop.time() > over)
            assert (await look(cluster)).agent_report is None
            state = {
                "containerStatuses": [{"name": "trainer", "state": {"running": {}}}],
                "podIP": "127.0.0.1",
            }
            leader = next(p for p in pods if "-worker-0-" in p["metadata"]["name"])
            cluster.watch(told.append)
            server.put({**leader, "status": state})
            await until(lambda: agent.targets)
            await until(lambda: told.count(KEY) >= 2)  # of the pod, and of the answer
            report = (await look(cluster)).agent_report
            assert report is not None
            assert (report["members"], report["unreachableSeconds"]) == (build_report()["members"], 0.0)
            cluster.set_target(KEY, None)
            assert (await look(cluster)).agent_report is None


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [{"uid": "uid-of-an-earlier-job", "controller": True}],
        [{"uid": "uid-1", "controller": False}],
        [{"uid": "uid-1"}],
    ],
)
async def test_a_pod_that_only_has_the_jobs_labels_hears_no_order(owners: list[dict[str, Any]]) -> None:
    """A user who may create pods could lead the job's training by it."""
    agent, foreign = FakeAgent("token of uid-1"), FakeAgent("token of uid-1")
    async with FakeApiServer().serve() as server, agent.serve() as port, foreign.serve("127.0.0.2", port):
        job = server.put(build_job())
        polling = build_polling(port, AgentIntervals(0.01, 0.01))
        pod = next(m for m in objects_of(job) if m["metadata"]["name"].startswith("digits-worker-0-"))
        status = {"containerStatuses": [{"name": "trainer", "state": {"running": {}}}]}
        labels = {**pod["metadata"]["labels"], "trainjob.dev/incarnation": "9"}
        forged = {**pod["metadata"], "name": "forged", "labels": labels, "ownerReferences": owners}
        server.put({**pod, "metadata": forged, "status": {**status, "podIP": "127.0.0.2"}})
        async with open_kube(server.url, polling=polling) as cluster:
            await cluster.synced()
            cluster.set_target(KEY, {"world": {"worker": 1}})
            server.put({**pod, "status": {**status, "podIP": "127.0.0.1"}})
            await until(lambda: len(agent.targets) > 5)
        assert foreign.targets == []


async def test_an_object_is_replaced_in_the_state_that_was_seen() -> None:
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "digits", "namespace": "default", "labels": {"trainjob.dev/job": "digits"}},
        "spec": {"podSelector": {}},
    }
    async with FakeApiServer().serve() as server:
        server.put(build_job())
        seen = server.put(policy)
        async with open_kube(server.url) as cluster:
            await cluster.synced()
            await cluster.replace({**seen, "spec": {"podSelector": {"matchLabels": {"a": "b"}}}})
            found = (await look(cluster)).related["NetworkPolicy"]
            assert found["spec"] == {"podSelector": {"matchLabels": {"a": "b"}}}
            with pytest.raises(Conflict):
                await cluster.replace({**seen, "spec": {}})
            server.remove("NetworkPolicy", "digits")
            with pytest.raises(NotFound):
                await cluster.replace({**found, "spec": {}})
            assert "NetworkPolicy" not in (await look(cluster)).related
