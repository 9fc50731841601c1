"""Creates a TrainJob in a cluster, with the ConfigMap that holds its code."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trainjob.cluster.kube.resources import CONFIG_MAPS, TRAINJOBS
from trainjob.cluster.protocol import ClusterError, Manifest
from trainjob.core.names import CODE, job_labels

if TYPE_CHECKING:
    from trainjob.client.code import Packed
    from trainjob.cluster.kube.client import ApiClient


def code_reference(job: str, packed: Packed) -> dict[str, str]:
    """Return `spec.code` of a job.

    The ConfigMap's name is used once: an earlier job's may still be there for a moment after its deletion.
    """
    return {"configMap": f"{job}-code-{secrets.token_hex(4)}", "digest": packed.digest}


async def submit(
    api: ApiClient, namespace: str, manifest: Mapping[str, Any], packed: Packed | None = None
) -> Manifest:
    """Create the job and then its code, which belongs to it; return the job as stored.

    Without its code no pod starts, so the order doesn't matter to them. If the code can't be created, the job
    is deleted again.

    Args:
        api: the API server.
        namespace: of the job.
        manifest: the TrainJob; it stays as it is.
        packed: its code; `spec.code` is added unless the job has it.

    Raises:
        ClusterError: the job or its code was refused.
    """
    metadata = {**manifest["metadata"], "namespace": namespace}
    spec = dict(manifest["spec"])
    if packed is not None:
        spec.setdefault("code", code_reference(metadata["name"], packed))
    created = await api.create(TRAINJOBS, {**manifest, "metadata": metadata, "spec": spec})
    if packed is not None:
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
