"""The controller on a KubeCluster: what it writes in a job's life, and that faults leave no trace."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import settings

from support.kube.api_server import FakeApiServer, Havoc, Kubelet, failing
from support.kube.chart import CONTROLLER_RULES, allowed
from support.kube.fake_agents import GhostAgents
from support.kube.kube_cluster import QUICK, cached, open_kube, running, stored, until
from support.world.jobs import build_job
from trainjob.api import parse
from trainjob.cluster import JobKey
from trainjob.cluster.kube.cluster import KubeCluster
from trainjob.cluster.kube.config import read_token_file
from trainjob.cluster.kube.informer import Timeouts
from trainjob.cluster.kube.transport import Call
from trainjob.controller import Controller
from trainjob.core.manifests import build_objects
from trainjob.core.settings import Bundle, Isolation, Settings

EVENTS = {"Created", "Started", "TrainingFinished", "Complete"}
"""Of a job that goes well, with an evaluator that takes longer than the training."""

OUTPUT = {"claim": {"size": "1Gi"}}

BUNDLE = Bundle(b"a program" * 20_000, b"the key of the controller")


OnReconciled = Callable[[JobKey, float], None]


@asynccontextmanager
async def open_controller(
    server: FakeApiServer,
    on_reconciled: OnReconciled = lambda _key, _seconds: None,
    agents: GhostAgents | None = None,
    **options: Any,
) -> AsyncIterator[KubeCluster]:
    agents = agents or GhostAgents(lambda: server.uncopied("Pod"))
    async with open_kube(server.url, polling=agents.polling, **options) as cluster:
        settings = Settings(isolation=Isolation(), bundle=BUNDLE)
        controller = Controller(cluster, workers=4, settings=settings, on_reconciled=on_reconciled)
        async with running(controller.run()):
            yield cluster


def state(server: FakeApiServer, name: str = "digits") -> str | None:
    job = server.objects.get(("TrainJob", "default", name), {})
    return job.get("status", {}).get("state")


def job_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"]["trainjob.dev/job"])


async def test_a_life_of_five_pods_takes_its_objects_and_at_most_four_status_writes() -> None:
    async with FakeApiServer().serve() as server:
        released: set[str] = set()
        kubelet = Kubelet(
            server, lambda pod: 0 if pod["metadata"]["labels"]["trainjob.dev/role"] in released else None
        )
        async with open_controller(server), running(kubelet.run()):
            server.put(build_job(workers=4, output=OUTPUT))
            await until(lambda: state(server) == "Running")
            released.add("worker")
            await until(lambda: sum(p["status"]["phase"] == "Succeeded" for p in server.all("Pod")) == 4)
            released.add("evaluator")
            await until(lambda: state(server) == "Complete")
            await until(lambda: len(server.all("Event")) == len(EVENTS))
            writes = Counter(write.rsplit(" ", 1)[0] for write in server.writes())
    assert writes.pop("update TrainJob/status") <= 4
    assert writes == {
        "create PersistentVolumeClaim": 1,
        "create Service": 1,
        "create NetworkPolicy": 1,
        "create ConfigMap": 1,
        "create Secret": 1,
        "delete Secret": 1,
        "create Pod": 5,
        "create Event": len(EVENTS),
    }
    assert {event["reason"] for event in server.all("Event")} == EVENTS


async def test_a_new_controller_writes_nothing_about_jobs_that_are_as_they_should_be() -> None:
    async with FakeApiServer().serve() as server:
        names = [f"job-{number}" for number in range(12)]
        finishing = set(names[:8])

        def exit_code(pod: dict[str, Any]) -> int | None:
            return 0 if job_of(pod) in finishing else None

        kubelet = Kubelet(server, exit_code)
        async with open_controller(server), running(kubelet.run()):
            for name in names:
                server.put(build_job(name=name))
            expected = {name: "Complete" if name in finishing else "Running" for name in names}
            await until(lambda: {name: state(server, name) for name in names} == expected, guard=60)
        before = len(server.writes())
        looked_at: set[str] = set()
        server.page_limit = 5
        async with open_controller(server, on_reconciled=lambda key, _seconds: looked_at.add(key.name)):
            await until(lambda: looked_at == set(names))
        assert server.writes()[before:] == []


async def test_what_jobs_leave_beside_their_pods_is_small() -> None:
    names = [f"job-{number}" for number in range(5)]
    async with FakeApiServer().serve() as server:
        kubelet = Kubelet(server, lambda _pod: 0)
        async with open_controller(server), running(kubelet.run()):
            for name in names:
                server.put(build_job(name=name, output=OUTPUT))
            await until(lambda: {state(server, name) for name in names} == {"Complete"}, guard=60)
        kept = [made for made in server.objects.values() if made["kind"] not in ("Pod", "Event")]
    sizes = Counter[str]()
    for made in kept:
        meta = made["metadata"]
        sizes[meta.get("labels", {}).get("trainjob.dev/job", meta["name"])] += len(json.dumps(made))
    assert max(sizes[name] for name in names) < 8_000, sizes
    assert Counter(made["kind"] for made in kept)["ConfigMap"] == 1
    assert [made for made in kept if made["kind"] == "Secret"] == []


async def test_nothing_that_was_put_there_before_comes_into_a_pod() -> None:
    """A suspended job's pods are yet to come; its UID, and the version of the controller, are public."""
    async with FakeApiServer().serve() as server:
        kubelet = Kubelet(server, lambda _pod: None)
        async with open_controller(server), running(kubelet.run()):
            uid = server.put(build_job(suspend=True))["metadata"]["uid"]
            await until(lambda: state(server) == "Suspended")
            evil = base64.b64encode(b"evil").decode()
            secret = {"name": f"digits-agent-{hashlib.sha256(uid.encode()).hexdigest()[:8]}"}
            program = {"name": f"trainjob-agent-{hashlib.sha256(BUNDLE.pyz).hexdigest()}"}
            content = {"trainjob.pyz": evil, "token": evil}
            server.put({"kind": "Secret", "metadata": secret, "immutable": True, "data": content})
            server.put({"kind": "ConfigMap", "metadata": program, "immutable": True, "binaryData": content})
            server.put(build_job(suspend=False))
            await until(lambda: state(server) == "Running")
        for pod in server.all("Pod"):
            text = json.dumps(pod["spec"]["volumes"])
            for made in (*server.all("Secret"), *server.all("ConfigMap")):
                if f'"{made["metadata"]["name"]}"' in text:
                    held = {**made.get("data", {}), **made.get("binaryData", {})}
                    assert evil not in held.values(), f"{made['kind']} {made['metadata']['name']}"


async def test_a_restart_in_place_is_reported_and_replaces_no_pod() -> None:
    async with FakeApiServer().serve() as server:
        agents = GhostAgents(lambda: server.uncopied("Pod"))
        kubelet = Kubelet(server, lambda _pod: None)
        async with open_controller(server, agents=agents), running(kubelet.run()):
            server.put(build_job())
            await until(lambda: state(server) == "Running")
            culprit = next(p for p in server.all("Pod") if "-worker-1-" in p["metadata"]["name"])
            failure = {
                "replica": "worker-1",
                "pod": culprit["metadata"]["name"],
                "incarnation": 1,
                "attempt": 1,
                "reason": "Killed",
                "exitCode": 137,
                "signal": 9,
                "counted": True,
            }
            restarts = {"attempt": 2, "counted": 1, "sinceProgress": 1}
            agents.more = {"attempt": 2, "restarts": restarts, "failure": failure}
            await until(lambda: any(event["reason"] == "Restarted" for event in server.all("Event")))
            await until(lambda: agents.targets["digits"]["restarts"]["counted"] == 1)
            job = server.find("TrainJob", "digits")
            assert job is not None
            assert job["status"]["restarts"]["counted"] == 1
            assert job["status"]["attempt"] == 2
            assert sum(write.startswith("create Pod ") for write in server.writes()) == 3
            assert not any(write.startswith("delete ") for write in server.writes())


async def test_a_service_in_the_way_is_a_condition_and_no_storm() -> None:
    async with FakeApiServer().serve() as server:
        server.put({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "digits"}})
        async with open_controller(server):
            server.put(build_job())
            await until(
                lambda: "ServiceConflict" in str((server.find("TrainJob", "digits") or {}).get("status"))
            )
            assert sum(write == "create Service digits" for write in server.writes()) == 1


async def test_a_template_that_the_api_server_refuses_fails_the_job_with_its_message() -> None:
    async with FakeApiServer().serve() as server:
        words = 'strict decoding error: unknown field "spec.containers[0].imagee"'
        server.fault = lambda seen: (
            failing(400, "BadRequest", words) if (seen.verb, seen.kind) == ("create", "Pod") else None
        )
        async with open_controller(server):
            server.put(build_job())
            await until(lambda: state(server) == "Failed")
        job = server.find("TrainJob", "digits")
        assert job is not None
        assert words in job["status"]["message"]


async def test_a_finished_job_goes_after_its_time_by_a_permission_of_the_table() -> None:
    calls: list[Call] = []
    async with FakeApiServer().serve() as server:
        kubelet = Kubelet(server, lambda _pod: 0)
        async with open_controller(server, on_call=calls.append), running(kubelet.run()):
            server.put(build_job(ttlSecondsAfterFinished=0))
            await until(lambda: "delete TrainJob digits" in server.writes())
            await until(lambda: server.find("TrainJob", "digits") is None)
    made = {(call.group, call.resource, call.verb) for call in calls}
    assert made <= set(allowed(CONTROLLER_RULES))


@pytest.mark.parametrize("seed", range(max(4, settings().max_examples // 50)))
async def test_it_converges_after_any_fault_and_keeps_no_stale_objects(seed: int) -> None:
    timeouts = Timeouts(
        watch=2.0, inactivity=0.2, resync=1.0, sweep=0.2, first_retry=0.01, longest_retry=0.05
    )
    async with FakeApiServer().serve() as server:
        server.page_limit = 3
        havoc = Havoc(server, seed, faults=60)
        kubelet = Kubelet(server, lambda _pod: 0)
        async with (
            open_controller(server, timeouts=timeouts) as cluster,
            running(kubelet.run()),
        ):
            names = [f"job-{number}" for number in range(6)]
            for name in names:
                server.put(build_job(name=name))
            await until(lambda: havoc.left < 40 or "Complete" in {state(server, n) for n in names}, guard=60)
            for name in ("job-0", "job-1"):
                server.remove("TrainJob", name)
            server.put(build_job(name="job-1", workers=1))
            server.put(build_job(name="last"))
            left = [*names[1:], "last"]
            await until(lambda: {state(server, name) for name in left} == {"Complete"}, guard=90)
            assert havoc.left < 40
            havoc.stop()
            await until(lambda: cached(cluster) == stored(server))
            # A creation that was under way may have come after the deletion: the garbage collector's work.
            await until(lambda: not [pod for pod in server.all("Pod") if job_of(pod) == "job-0"])
        for name in left:
            job = server.find("TrainJob", name)
            assert job is not None
            # Every pod that was ever created is one of the first attempt's, and was created once.
            expected = {m["metadata"]["name"] for m in build_objects(parse(job)) if m["kind"] == "Pod"}
            assert {p["metadata"]["name"] for p in server.all("Pod") if job_of(p) == name} == expected
            assert not job["status"].get("restarts", {}).get("counted")


async def test_a_token_that_is_rotated_stops_nothing(tmp_path: Any) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    async with FakeApiServer().serve() as server:
        server.tokens = {"one"}
        kubelet = Kubelet(server, lambda _pod: 0)
        async with (
            open_controller(server, access={"read_token": partial(read_token_file, token)}, timeouts=QUICK),
            running(kubelet.run()),
        ):
            server.put(build_job())
            await until(lambda: state(server) == "Complete")
            server.tokens = {"two"}
            server.drop_watches()
            refused = len(server.seen)
            await until(lambda: len(server.seen) > refused + 5)
            token.write_text("two")
            server.put(build_job(name="letters"))
            await until(lambda: state(server, "letters") == "Complete")
