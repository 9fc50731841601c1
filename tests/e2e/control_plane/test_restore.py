"""A namespace is restored from a backup as by Velero: other UIDs, no status, and owners that are gone."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from testbed import Cluster

from support.kube.fake_agents import GhostAgents
from support.kube.kube_cluster import running
from support.kube.real_kube import RealKubelet, eventually, open_real, states
from support.world.jobs import build_job
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access
from trainjob.cluster.kube.resources import NETWORK_POLICIES, PODS, SERVICES, TRAINJOBS, Resource
from trainjob.controller import Controller
from trainjob.core.settings import Bundle, Isolation, Settings

Manifest = dict[str, Any]

BUNDLE = Bundle(b"the agent's program", b"the controller's key")
RESTORED = (PODS, SERVICES, NETWORK_POLICIES, TRAINJOBS)
"""In Velero's order: objects of custom kinds come last."""

pytestmark = pytest.mark.usefixtures("crd")


def restored(resource: Resource, stored: Manifest) -> Manifest:
    """What comes back of an object: its owner is the job of before, which no longer exists."""
    meta = stored["metadata"]
    kept = {key: meta[key] for key in ("name", "namespace", "annotations", "ownerReferences") if key in meta}
    kept["labels"] = {**meta.get("labels", {}), "velero.io/restore-name": "nightly"}
    spec = {key: value for key, value in stored["spec"].items() if key != "clusterIPs"}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": kept, "spec": spec}


@pytest.mark.parametrize("was_finished", [False, True])
async def test_jobs_adopt_their_output(
    access: Access, admin: ApiClient, control_plane: Cluster, namespace: str, was_finished: bool
) -> None:
    # The output of a job that had finished says so to each of its workers.
    kubelet = RealKubelet(admin, namespace, lambda _pod: None)
    agents = GhostAgents(lambda: kubelet.pods)
    async with open_real(access, namespace, polling=agents.polling) as kube:
        controller = Controller(kube, settings=Settings(isolation=Isolation(), bundle=BUNDLE))
        async with running(controller.run(), kubelet.run()):
            await admin.create(TRAINJOBS, build_job(namespace=namespace, evaluator=False))
            await eventually(lambda: states(admin, namespace), lambda found: found == {"digits": "Running"})
            backup = [
                restored(resource, stored)
                for resource in RESTORED
                for stored in (await admin.list(resource, namespace))["items"]
            ]
            assert len(backup) == 2 + 1 + 1 + 1
            control_plane.delete("tj", "digits", namespace=namespace)
            for resource in (PODS, SERVICES, NETWORK_POLICIES):
                of_kind = partial(admin.list, resource, namespace)
                await eventually(of_kind, lambda found: not found["items"])

            if was_finished:
                kubelet.exit_code = lambda _pod: 81
            by_kind = {resource.kind: resource for resource in RESTORED}
            for manifest in backup:
                await admin.create(by_kind[manifest["kind"]], manifest)
            expected = "Complete" if was_finished else "Running"
            await eventually(lambda: states(admin, namespace), lambda found: found == {"digits": expected})
    job = await admin.get(TRAINJOBS, namespace, "digits")
    assert job["status"]["restarts"]["counted"] == 0
    if was_finished:
        assert job["status"]["message"] == "training had finished before the job was restored from a backup"
    pods = (await admin.list(PODS, namespace))["items"]
    assert {owner["uid"] for pod in pods for owner in pod["metadata"]["ownerReferences"]} == {
        job["metadata"]["uid"]
    }
