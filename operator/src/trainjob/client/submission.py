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


def code_reference(job: str, packed: Packed) -> dict[str, str]:
    """Return `spec.code` of a job.

    The ConfigMap's name is used once: an earlier job's may still be there for a moment after its deletion.
    """
    return {"configMap": f"{job}-code-{secrets.token_hex(4)}", "digest": packed.digest}


class AnotherJob(Exception):
    """A job of that name is there, and isn't the one that is asked for; the message says why."""

    def __init__(self, stored: Manifest, differences: tuple[str, ...]) -> None:
        job = read_job(stored)
        self.name = job.name
        why = (
            "its deletion isn't over"
            if job.deleting
            else f"this is another request: {', '.join(differences)}"
        )
        super().__init__(
            f"{job.name} exists already in namespace {job.namespace} ({job.state}), and {why}; nothing was "
            "created"
        )


async def submit_once(
    api: ApiClient,
    namespace: str,
    manifest: Mapping[str, Any],
    packed: Packed | None = None,
    *,
    new: bool = False,
    dry_run: bool = False,
) -> tuple[Manifest, bool]:
    """Create the job unless the same request has done so; return it as stored, and whether it is new.

    Args:
        api: as for `submit`.
        namespace: as for `submit`.
        manifest: as for `submit`.
        packed: as for `submit`.
        dry_run: as for `submit`.
        new: where the job of that name was asked for something else, take the next name, such as `digits-2`.

    Raises:
        AnotherJob: the job of that name was asked for something else.
        ClusterError: the job or its code was refused.
    """
    metadata = manifest["metadata"]
    for number in count(1):
        name = metadata["name"] if number == 1 else f"{metadata['name']}-{number}"
        try:
            named = {**manifest, "metadata": {**metadata, "name": name}}
            return await submit(api, namespace, named, packed, dry_run=dry_run), True
        except AlreadyExists as exists:
            if exists.failure.resource != TRAINJOBS.plural:
                raise
        stored = await api.get(TRAINJOBS, namespace, name)
        # A stored job can't be changed, so a longer training or other code is another job, too.
        differences = compare(read_request(stored), read_request(manifest)).all
        if not differences and not read_job(stored).deleting:
            return stored, False
        if not new:
            raise AnotherJob(stored, differences)
    raise AssertionError("there is always a next number")


async def submit(
    api: ApiClient,
    namespace: str,
    manifest: Mapping[str, Any],
    packed: Packed | None = None,
    *,
    dry_run: bool = False,
) -> Manifest:
    """Create the job and then its code, which belongs to it; return the job as stored.

    Without its code no pod starts, so the order doesn't matter to them. If the code can't be created, the job
    is deleted again.

    Args:
        api: the API server.
        namespace: of the job.
        manifest: the TrainJob; it stays as it is.
        packed: its code; `spec.code` is added unless the job has it.
        dry_run: have the API server check the job, and create nothing.

    Raises:
        ClusterError: the job or its code was refused.
    """
    metadata = {**manifest["metadata"], "namespace": namespace}
    spec = dict(manifest["spec"])
    if packed is not None:
        spec.setdefault("code", code_reference(metadata["name"], packed))
    created = await api.create(TRAINJOBS, {**manifest, "metadata": metadata, "spec": spec}, dry_run=dry_run)
    if packed is not None and not dry_run:
        try:
            await api.create(CONFIG_MAPS, build_code(created, spec["code"]["configMap"], packed))
        except BaseException:
            with suppress(ClusterError):
                uid = created["metadata"]["uid"]
                await api.delete(TRAINJOBS, namespace, metadata["name"], uid=uid)
            raise
    return created


def build_code(job: Manifest, name: str, packed: Packed) -> Manifest:
    """Return the ConfigMap with the code of a stored job, which is deleted together with it."""
    owner = {key: job[key] for key in ("apiVersion", "kind")} | {
        key: job["metadata"][key] for key in ("name", "uid")
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": job["metadata"]["namespace"],
            "labels": job_labels(job["metadata"]["name"]),
            "ownerReferences": [owner],
        },
        "immutable": True,
        "binaryData": {CODE: base64.b64encode(packed.archive).decode()},
    }
