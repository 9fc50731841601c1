"""The fake keeps the API server's rules, or tests against it prove nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from support.world.fake_cluster import FakeCluster
from support.world.jobs import build_plain_job
from trainjob.api import parse
from trainjob.cluster import AlreadyExists, Conflict, JobKey, NotFound, ObjectRef
from trainjob.core.manifests import build_pod, build_service


def build_cluster() -> tuple[FakeCluster, JobKey]:
    cluster = FakeCluster(lambda: datetime(2026, 1, 1, tzinfo=UTC))
    return cluster, cluster.apply(build_plain_job())


def pod_for(cluster: FakeCluster, key: JobKey) -> dict[str, Any]:
    return build_pod(parse(cluster.job(key)), role="worker", index=0, incarnation=1, attempt=1)


def ref_of(pod: dict[str, Any]) -> ObjectRef:
    meta = pod["metadata"]
    return ObjectRef("Pod", meta["namespace"], meta["name"], meta["uid"])


async def test_a_name_is_held_while_its_pod_is_terminating() -> None:
    cluster, key = build_cluster()
    await cluster.create(pod_for(cluster, key))
    pod = cluster.pods(key)[0]
    cluster.run_pod(pod)
    await cluster.delete(ref_of(pod))
    with pytest.raises(AlreadyExists):
        await cluster.create(pod_for(cluster, key))
    cluster.end_pod(cluster.pods(key)[0], 143)
    await cluster.create(pod_for(cluster, key))


async def test_a_status_is_only_written_over_the_one_that_was_read() -> None:
    cluster, key = build_cluster()
    meta = dict(cluster.job(key)["metadata"])
    await cluster.write_status(key, meta["uid"], meta["resourceVersion"], {"state": "Pending"})
    with pytest.raises(Conflict):
        await cluster.write_status(key, meta["uid"], meta["resourceVersion"], {"state": "Running"})
    with pytest.raises(Conflict):
        await cluster.write_status(key, "another", cluster.job(key)["metadata"]["resourceVersion"], {})


async def test_a_namesake_is_left_alone() -> None:
    cluster, key = build_cluster()
    await cluster.create(pod_for(cluster, key))
    ref = ref_of(cluster.pods(key)[0])
    with pytest.raises(Conflict):
        await cluster.delete(ObjectRef("Pod", ref.namespace, ref.name, "another"))
    with pytest.raises(NotFound):
        await cluster.set_labels(ObjectRef("Pod", ref.namespace, "nobody", ref.uid), {})


async def test_what_a_job_owns_goes_with_it() -> None:
    cluster, key = build_cluster()
    await cluster.create(pod_for(cluster, key))
    await cluster.create(build_service(parse(cluster.job(key))))
    cluster.delete_job(key)
    assert await cluster.observe(key) is None
    assert cluster.pods(key) == []
    assert cluster.find("Service", key) is None


async def test_labels_select_the_pods_of_a_job() -> None:
    cluster, key = build_cluster()
    await cluster.create(pod_for(cluster, key))
    pod = cluster.pods(key)[0]
    await cluster.set_labels(ref_of(pod), {"trainjob.dev/live": None, "more": "x"})
    labels = cluster.pods(key)[0]["metadata"]["labels"]
    assert "trainjob.dev/live" not in labels
    assert labels["more"] == "x"
    assert cluster.pods(JobKey("default", "other")) == []


def test_the_generation_follows_the_spec() -> None:
    cluster, key = build_cluster()
    cluster.apply(build_plain_job())
    assert cluster.job(key)["metadata"]["generation"] == 1
    cluster.apply(build_plain_job(suspend=True))
    assert cluster.job(key)["metadata"]["generation"] == 2


async def test_snapshots_are_not_changed_by_what_follows() -> None:
    cluster, key = build_cluster()
    before = await cluster.observe(key)
    cluster.apply(build_plain_job(suspend=True))
    assert before is not None
    assert "suspend" not in before.job["spec"]
