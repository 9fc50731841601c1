"""Creates a TrainJob in a cluster, with the ConfigMap that holds its code."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from trainjob.client.request import compare, read_request
from trainjob.client.view import read_job
from trainjob.cluster.kube.resources import CONFIG_MAPS, TRAINJOBS
from trainjob.cluster.protocol import AlreadyExists, ClusterError, Manifest
from trainjob.core.names import job_labels
from trainjob_trainer.contract.files import CODE

if TYPE_CHECKING:
    from trainjob.client.code import Packed
    from trainjob.cluster.kube.client import ApiClient


def with_code(manifest: Mapping[str, Any], packed: Packed) -> dict[str, Any]:
    """Return a TrainJob with `spec.code`, as `submit` expects it.

    The ConfigMap's name is used once: an earlier job's may still be there for a moment after its deletion.
    """
    name, template = manifest["metadata"]["name"], manifest["spec"]["template"]
    code = {"configMap": f"{name}-code-{secrets.token_hex(4)}", "digest": packed.digest}
    rest = {field: value for field, value in manifest["spec"].items() if field != "template"}
    return {**manifest, "spec": {**rest, "code": code, "template": template}}


class AnotherJob(Exception):
    """A job of that name is there, and isn't the one that is asked for; the message says why."""

    def __init__(self, stored: Manifest, differences: tuple[str, ...]) -> None:
        job = read_job(stored)
        self.name = job.name
        request = f"this is another request: {', '.join(differences)}"
        why = "its deletion isn't over" if job.deleting else request
        super().__init__(
            f"{job.name} exists already in namespace {job.namespace} ({job.state}), and {why}; nothing was "
            "created"
        )


async def submit(
    api: ApiClient,
    namespace: str,
    manifest: Mapping[str, Any],
    packed: Packed | None = None,
    *,
    new: bool = False,
    dry_run: bool = False,
) -> tuple[Manifest, bool]:
    """Create the job unless the same request has done so; return it as stored, and whether it is new.

    Its code is created after it, and belongs to it. Without its code no pod starts, so the order doesn't
    matter to them. If the code can't be created, the job is deleted again.

    Args:
        api: the API server.
        namespace: of the job.
        manifest: the TrainJob; it stays as it is.
        packed: its code, which `spec.code` names.
        new: where the job of that name was asked for something else, take the next name, such as `digits-2`.
        dry_run: have the API server check the job, and create nothing.

    Raises:
        AnotherJob: the job of that name was asked for something else.
        ClusterError: the job or its code was refused.
    """
    metadata = {**manifest["metadata"], "namespace": namespace}
    for number in count(1):
        name = metadata["name"] if number == 1 else f"{metadata['name']}-{number}"
        named = {**manifest, "metadata": {**metadata, "name": name}}
        try:
            job = await api.create(TRAINJOBS, named, dry_run=dry_run)
        except AlreadyExists:
            job = await api.get(TRAINJOBS, namespace, name)
            # A stored job can't be changed, so a longer training or other code is another job, too.
            differences = compare(read_request(job), read_request(manifest)).all
            if not differences and not read_job(job).deleting:
                return job, False
            if not new:
                raise AnotherJob(job, differences) from None
        else:
            if packed is not None and not dry_run:
                await _create_code(api, job, packed)
            return job, True
    raise AssertionError("there is always a next number")


async def _create_code(api: ApiClient, job: Manifest, packed: Packed) -> None:
    metadata = job["metadata"]
    owner = {key: job[key] for key in ("apiVersion", "kind")}
    owner |= {key: metadata[key] for key in ("name", "uid")}
    code = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": job["spec"]["code"]["configMap"],
            "namespace": metadata["namespace"],
            "labels": job_labels(metadata["name"]),
            "ownerReferences": [owner],
        },
        "immutable": True,
        "binaryData": {CODE: base64.b64encode(packed.archive).decode()},
    }
    try:
        await api.create(CONFIG_MAPS, code)
    except BaseException:
        with suppress(ClusterError):
            await api.delete(TRAINJOBS, metadata["namespace"], metadata["name"], uid=metadata["uid"])
        raise
