"""What is cached of an object is small, and decides as the whole object does."""

from __future__ import annotations

import asyncio
import json
from copy import deepcopy
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kube.api_server import FakeApiServer
from support.kube.kube_cluster import open_kube
from support.world.jobs import build_job
from support.world.life import AGENT_KINDS, KINDS, Schedule, live_to_the_end, schedules
from trainjob.api import InvalidTrainJob, parse
from trainjob.cluster import JobKey
from trainjob.cluster.agents.poller import find_agents
from trainjob.cluster.kube.cache import Store, project
from trainjob.core.manifests import build_pod
from trainjob.core.observed import Observed, Snapshot, read_observed
from trainjob.core.pods import read_pod

KEY = JobKey("default", "digits")
LARGE = {"nodeAffinity": {"terms": ["x" * 100] * 13_000}}


def stored(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what a store keeps of an object."""
    store = Store(lambda _: KEY, lambda _: None)
    meta = {"uid": "u", "resourceVersion": "7", **manifest["metadata"]}
    store.put({**deepcopy(manifest), "metadata": meta})
    (kept,) = store.of_job(KEY)
    return kept


def size_of(manifest: dict[str, Any]) -> int:
    return len(json.dumps(manifest))


def build_real_pod(workers: int = 2, **job: Any) -> dict[str, Any]:
    """Return a pod as an API server has it once a kubelet has reported."""
    pod = build_pod(
        parse(build_job(uid="job-uid", workers=workers, **job)),
        role="worker", index=1, incarnation=2, attempt=2, avoided=["node-7"],
    )  # fmt: skip
    pod["metadata"] |= {
        "uid": "pod-uid",
        "resourceVersion": "12",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}] * 8,
    }
    pod["metadata"]["annotations"]["example.com/long"] = "x" * 1000
    pod["metadata"]["labels"]["example.com/team"] = "vision"
    pod["spec"] |= {"nodeName": "node-1", "tolerations": [{"key": "a"}] * 4}
    running = {"running": {"startedAt": "2026-01-01T00:00:09Z"}}
    pod["status"] = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        "qosClass": "Burstable",
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"}
            for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "PodScheduled")
        ],
        "containerStatuses": [
            {"name": name, "state": running, "imageID": "sha256:" + "0" * 64, "restartCount": 0}
            for name in ("sidecar", "trainer")
        ],
    }
    return pod


def test_a_pod_of_a_thousand_takes_as_little_as_one_of_two() -> None:
    large = build_real_pod(1000, pod={"affinity": {"terms": ["x" * 60] * 400}})
    assert size_of(large) > 70_000
    assert size_of(stored(large)) < 1500
    assert read_pod(stored(large)) == read_pod(large)
    read = read_pod(large)
    assert read is not None
    assert read.world == {"worker": 1000}


def test_the_poller_finds_the_agent_of_a_pod_that_is_cached() -> None:
    pod = build_real_pod()
    assert find_agents([stored(pod)], {"worker": 2}) == find_agents([pod], {"worker": 2})
    assert find_agents([pod], {"worker": 2}).others


def test_the_volume_that_brings_the_agent_is_kept() -> None:
    volumes = stored(build_real_pod(pod={"volumes": [{"name": "data", "emptyDir": {}}]}))["spec"]["volumes"]
    assert [volume["name"] for volume in volumes] == ["trainjob-bundle"]


def test_a_job_is_kept_without_what_people_and_kubectl_note_on_it() -> None:
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(build_job())}
    job = build_job(metadata={"labels": {"kueue.x-k8s.io/queue-name": "gpus"}, "annotations": annotations})
    kept = stored(job)
    assert (kept["kind"], kept["apiVersion"], kept["spec"]) == (job["kind"], job["apiVersion"], job["spec"])
    assert kept["metadata"]["labels"] == job["metadata"]["labels"]
    assert "annotations" not in kept["metadata"]


def refusal(job: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidTrainJob) as refused:
        parse(job)
    return [str(error) for error in refused.value.errors]


def test_a_job_that_is_too_large_is_not_kept_whole_and_is_refused_as_if_it_were() -> None:
    job = build_job(pod={"affinity": LARGE})
    assert size_of(job) > 1_300_000
    kept = stored(job)
    assert size_of(kept) < 1000
    assert refusal(kept) == refusal(job)


def test_a_job_that_has_begun_is_kept_whole() -> None:
    """It may be larger than a new one may be, and its pods are still to be made from it."""
    job = {**build_job(pod={"affinity": LARGE}), "status": {"startTime": "2026-01-01T00:00:00Z"}}
    assert stored(job)["spec"] == job["spec"]


def test_the_object_itself_stays_as_it_is() -> None:
    for whole in (build_real_pod(), build_job(pod={"affinity": LARGE})):
        before = deepcopy(whole)
        project(whole)
        assert whole == before


STATES: list[dict[str, Any]] = [
    {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
    {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-01-01T00:00:00Z"}},
    {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": '{"state": "failed", "step": 3}'}},
]
RESOURCES = st.sampled_from([{}, {"limits": None}, {"limits": {"cpu": "2"}}, {"limits": {"memory": "8Gi"}}])
conditions = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            [
                "PodScheduled",
                "Ready",
                "DisruptionTarget",
                "PodResizePending",
                "TerminatedByKueue",
                "Initialized",
            ]
        ),
        "status": st.sampled_from(["True", "False"]),
    },
    optional={"reason": st.sampled_from(["Unschedulable", "EvictionByEvictionAPI"]), "message": st.text()},
)
statuses = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
        "reason": st.sampled_from(["Evicted", "NodeLost", "OutOfcpu"]),
        "message": st.text(),
        "podIP": st.just("10.0.0.1"),
        "conditions": st.none() | st.lists(conditions, max_size=3),
        "containerStatuses": st.none()
        | st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["trainer", "sidecar"])},
                optional={"state": st.sampled_from(STATES), "resources": RESOURCES},
            ),
            max_size=3,
        ),
    },
)
metas = st.fixed_dictionaries(
    {},
    optional={
        "deletionTimestamp": st.just("2026-01-01T00:01:00Z"),
        "deletionGracePeriodSeconds": st.integers(0, 60),
        "ownerReferences": st.sampled_from([None, [], [{"uid": "a"}, {"uid": "b", "controller": True}]]),
    },
)
texts = st.sampled_from(
    [
        "",
        "{}",
        '{"cluster":{"worker":["a","b"]},"task":{}}',
        '{"cluster":{"worker":2}}',
        '{"world":{"worker":2}}',
        '{"world":5}',
        "[1",
    ]
)


def test_what_kueue_reads_of_a_job_is_kept() -> None:
    asked = {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": "600"}
    job = build_job(metadata={"annotations": {**asked, "example.com/other": "1"}})
    assert project(job)["metadata"]["annotations"] == asked


@given(statuses, metas, st.none() | texts, RESOURCES, st.sampled_from([{}, {"podGroupName": "mine"}]))
def test_any_report_of_a_pod_is_read_alike(
    status: dict[str, Any],
    meta: dict[str, Any],
    tf_config: str | None,
    resources: dict[str, Any],
    group: dict[str, Any],
) -> None:
    pod = build_real_pod(container={"resources": resources})
    pod["spec"]["schedulingGroup"] = group
    pod["metadata"] |= meta
    pod["status"] = status
    env = pod["spec"]["containers"][0]["env"]
    env[:] = [each for each in env if each["name"] != "TF_CONFIG"]
    env += [{"name": "TF_CONFIG", "value": tf_config}] if tf_config is not None else []
    assert read_pod(project(pod)) == read_pod(pod)
    assert find_agents([project(pod)], {}) == find_agents([pod], {})
    job = {**build_job(), "metadata": {"name": "digits", "uid": "b"}}
    assert read_observed(Snapshot(project(job), [project(pod)])) == read_observed(Snapshot(job, [pod]))


def read_both(snapshot: Snapshot, *settings: Any, **others: Any) -> Observed:
    """Return what is read from cached objects, once it is what is read from whole ones."""
    cached = ("Service", "PersistentVolumeClaim", "NetworkPolicy")
    seen = replace(
        snapshot,
        job=project(snapshot.job),
        pods=[project(pod) for pod in snapshot.pods],
        related={kind: project(one) if kind in cached else one for kind, one in snapshot.related.items()},
    )
    observed = read_observed(seen, *settings, **others)
    assert observed == read_observed(snapshot, *settings, **others)
    return observed


@settings(max_examples=settings().max_examples // 6)
@given(schedules([*KINDS, *AGENT_KINDS]), st.booleans())
def test_every_life_is_decided_from_what_is_cached_as_from_whole_objects(
    schedule: Schedule, in_place: bool
) -> None:
    things = schedule if in_place else [thing for thing in schedule if thing[0] not in AGENT_KINDS]
    with patch("trainjob.controller.reconciler.read_observed", read_both):
        asyncio.run(live_to_the_end(things, in_place=in_place))


async def test_a_page_of_what_may_be_large_has_few_objects() -> None:
    async with FakeApiServer().serve() as server, open_kube(server.url) as cluster:
        await cluster.synced()
        asked = {seen.kind: int(seen.query["limit"]) for seen in server.seen if "limit" in seen.query}
    assert asked["TrainJob"] * 1_500_000 <= 15_000_000
    assert asked["Pod"] <= 100
    assert asked["Service"] == 500
