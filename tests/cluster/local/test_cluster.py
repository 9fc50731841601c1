"""The local cluster keeps the protocol of every cluster."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from support.local.local_cluster import (
    JOB,
    KEY,
    build_place,
    build_pod,
    ended,
    local_cluster,
    python,
    ref_of,
    until,
)
from support.world.jobs import build_plain_job
from trainjob.api import InvalidTrainJob, parse
from trainjob.cluster import (
    AlreadyExists,
    Cluster,
    Conflict,
    JobKey,
    NotFound,
    ObjectRef,
    Refused,
    Unavailable,
)
from trainjob.cluster.local import CannotRunHere, LocalCluster
from trainjob.core.manifests import build_objects

SERVICE: dict[str, Any] = {
    "kind": "Service",
    "metadata": {"name": "digits", "namespace": "default"},
    "spec": {},
}
CLAIM: dict[str, Any] = {"kind": "PersistentVolumeClaim", "metadata": {"name": "digits-output"}, "spec": {}}
FOREVER = python("import signal; signal.pause()")


async def test_it_is_a_cluster(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        as_any_cluster: Cluster = cluster
        assert await as_any_cluster.observe(JobKey("default", "other")) is None


async def test_every_run_has_a_uid_of_its_own(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (one, _), local_cluster(tmp_path) as (two, _):
        assert one.key == KEY
        assert one.job["metadata"]["uid"] != two.job["metadata"]["uid"]
        assert one.job["metadata"]["generation"] == 1


async def test_objects_are_kept_as_an_api_server_keeps_them(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(SERVICE)
        await cluster.create(CLAIM)
        snapshot = await cluster.observe(KEY)
        assert snapshot is not None
        claim, service = snapshot.related["PersistentVolumeClaim"], snapshot.related["Service"]
        assert claim["metadata"]["namespace"] == "default"
        assert set(service["metadata"]) >= {
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "name",
        }
        assert "uid" not in SERVICE["metadata"]
        with pytest.raises(AlreadyExists):
            await cluster.create(SERVICE)
        await cluster.delete(ref_of(service, "Service"))
        assert "Service" not in cluster.snapshot().related


async def test_a_snapshot_is_a_copy(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        cluster.snapshot().job["spec"]["worker"] = "changed"
        assert cluster.job["spec"] == {}


async def test_a_terminating_pod_holds_its_name(tmp_path: Path) -> None:
    code = "import signal as s; s.signal(15, s.SIG_IGN); print('up', flush=True)\nwhile True: s.pause()"
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_pod(python(code)))
        await lines.wait_for("up")
        with pytest.raises(AlreadyExists):
            await cluster.create(build_pod())
        pod = ref_of(cluster.snapshot().pods[0])
        await cluster.delete(pod, grace_seconds=1)
        with pytest.raises(AlreadyExists):
            await cluster.create(build_pod())
        await until(cluster, lambda snapshot: not snapshot.pods)
        await cluster.create(build_pod())
        assert ref_of(cluster.snapshot().pods[0]).uid != pod.uid


async def test_a_finished_pod_stays_until_deleted(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod())
        await ended(cluster)
        pod = cluster.snapshot().pods[0]
        await cluster.delete(ref_of(pod))
        assert not cluster.snapshot().pods
        with pytest.raises(NotFound):
            await cluster.delete(ref_of(pod))
        assert cluster.log_tail(pod["metadata"]["name"]) == ()


async def test_labels(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod(FOREVER))
        before = (await until(cluster, lambda s: s.pods[0]["status"]["phase"] == "Running")).pods[0]
        await cluster.set_labels(ref_of(before), {"a": "1", "trainjob.dev/role": None, "none": None})
        after = cluster.snapshot().pods[0]
        assert after["metadata"]["labels"] == {"trainjob.dev/index": "0", "a": "1"}
        assert after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
        assert after["metadata"]["uid"] == before["metadata"]["uid"]


Write = Callable[[LocalCluster, ObjectRef], Awaitable[None]]
WRITES: dict[str, Write] = {
    "delete": lambda cluster, ref: cluster.delete(ref),
    "set_labels": lambda cluster, ref: cluster.set_labels(ref, {"a": "1"}),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_preconditions(write: Write, tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod(FOREVER))
        ref = ref_of(cluster.snapshot().pods[0])
        with pytest.raises(Conflict):
            await write(cluster, replace(ref, uid="another"))
        with pytest.raises(NotFound):
            await write(cluster, replace(ref, name="another"))
        with pytest.raises(NotFound):
            await write(cluster, replace(ref, namespace="another"))
        assert "a" not in cluster.snapshot().pods[0]["metadata"]["labels"]
        assert "deletionTimestamp" not in cluster.snapshot().pods[0]["metadata"]


async def test_status_is_written_only_over_what_was_seen(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        meta = cluster.job["metadata"]
        uid, version = meta["uid"], meta["resourceVersion"]
        await cluster.write_status(KEY, uid, version, {"state": "Running"})
        assert cluster.job["status"] == {"state": "Running"}
        with pytest.raises(Conflict):
            await cluster.write_status(KEY, uid, version, {"state": "Failed"})
        now = cluster.job["metadata"]["resourceVersion"]
        with pytest.raises(Conflict):
            await cluster.write_status(KEY, "another", now, {"state": "Failed"})
        with pytest.raises(NotFound):
            await cluster.write_status(JobKey("default", "another"), uid, now, {"state": "Failed"})
        assert cluster.job["status"] == {"state": "Running"}


async def test_watchers_hear_of_every_change(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        heard: list[JobKey] = []
        cluster.watch(heard.append)
        await cluster.create(SERVICE)
        assert heard == [KEY]
        await cluster.delete(ref_of(cluster.snapshot().related["Service"], "Service"))
        assert heard == [KEY, KEY]


async def test_events_are_kept(tmp_path: Path) -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    cluster = LocalCluster(JOB, build_place(tmp_path), clock=lambda: now)
    await cluster.post_event(cluster.job, type_="Warning", reason="Restarting", message="worker 1 crashed")
    await cluster.close()
    assert cluster.events == ((now, "Warning", "Restarting", "worker 1 crashed"),)


async def test_what_cannot_be_had_is_refused(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        with pytest.raises(Refused, match="Deployment isn't supported"):
            await cluster.create({"kind": "Deployment", "metadata": {"name": "x"}})
        with pytest.raises(Refused, match="init container 'fetch' can't run here"):
            await cluster.create(build_pod(spec={"initContainers": [{"name": "fetch"}]}))
        assert not cluster.snapshot().pods


async def test_deleting_the_job_ends_everything(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod(FOREVER))
        await cluster.delete(ref_of(cluster.job, "TrainJob"), grace_seconds=0)
        assert await cluster.observe(KEY) is None


async def test_nothing_starts_once_it_is_closed(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod(FOREVER))
        await cluster.close()
        assert not cluster.snapshot().pods
        with pytest.raises(Unavailable):
            await cluster.create(build_pod())


GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


def build_cluster(folder: Path, gpus: tuple[str, ...] = ()) -> LocalCluster:
    job = build_plain_job(evaluator=False, container=GPU if gpus else {})
    cluster = LocalCluster(job, build_place(folder, gpus=gpus))
    cluster.prepare(build_objects(parse(cluster.job)))
    return cluster


async def test_a_patch_changes_the_spec_as_an_api_server_does(tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path)
    seen: list[JobKey] = []
    cluster.watch(seen.append)
    cluster.patch_spec({"worker": {"replicas": 3}, "suspend": True, "activeDeadlineSeconds": 60})
    assert (cluster.job["spec"]["worker"], cluster.job["spec"]["suspend"]) == ({"replicas": 3}, True)
    assert (cluster.job["metadata"]["generation"], seen) == (2, [cluster.key])
    cluster.patch_spec({"activeDeadlineSeconds": None})
    assert "activeDeadlineSeconds" not in cluster.job["spec"]
    cluster.patch_spec({"suspend": True})
    assert cluster.job["metadata"]["generation"] == 3  # it was so before
    before = cluster.job
    for patch, message in (
        ({"worker": {"replicas": 0}}, "spec.worker.replicas: must be at least 1"),
        ({"worker": {"replica": 1}}, "spec.worker.replica: "),
        ({"maxRestarts": 9}, "spec.maxRestarts: is immutable; delete the job and create it again"),
    ):
        with pytest.raises(InvalidTrainJob, match=message):
            cluster.patch_spec(patch)
    assert cluster.job == before
    await cluster.close()


async def test_a_job_gets_no_more_gpus_than_are_here(tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path, ("0", "1", "2"))
    cluster.patch_spec({"worker": {"replicas": 3}})
    assert cluster._sandbox._machine.gpus_of["digits-worker-2"] == ("2",)
    with pytest.raises(CannotRunHere, match="requests 4 GPUs, and this machine has 3"):
        cluster.patch_spec({"worker": {"replicas": 4}})
    assert cluster.job["spec"]["worker"] == {"replicas": 3}
    await cluster.close()
