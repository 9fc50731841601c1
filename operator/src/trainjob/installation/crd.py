"""Brings the CRD in the cluster up to date, and never back.

Helm itself can't: what stands in a release is replayed when that release is rolled back to, and an older
schema would drop the newer fields of every job that is written from then on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from trainjob.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound
from trainjob.cluster.kube.resources import Resource
from trainjob.cluster.kube.transport import Request, Transport
from trainjob.installation.errors import InstallationFailed
from trainjob.installation.version import VERSION_ANNOTATION, read_release

Manifest = dict[str, Any]

CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")

_POLL_SECONDS = 0.2
_STRICT = (("fieldValidation", "Strict"),)


async def install_crd(
    transport: Transport, wanted: Manifest, *, say: Callable[[str], None], patience_seconds: float = 60
) -> None:
    """Create `wanted`, or put it in the place of one that isn't newer, and wait until it is served.

    Raises:
        InstallationFailed: the API server refuses it, can't be reached, or doesn't serve it in time.
    """
    name = _name(wanted)
    try:
        async with asyncio.timeout(patience_seconds):
            await _repeat(lambda: _put(transport, wanted, say))
            await _repeat(lambda: _is_served(transport, name))
    except TimeoutError:
        raise InstallationFailed(
            f"{name} is not served after {patience_seconds:g} s: see its conditions"
        ) from None
    except ClusterError as error:
        raise InstallationFailed(f"{name}: {error}") from error


def is_downgrade(live: Manifest, wanted: Manifest) -> bool:
    """Return whether `live` is from a newer release than `wanted`."""
    return read_release(_version(live)) > read_release(_version(wanted))


def replacement(live: Manifest, wanted: Manifest) -> Manifest:
    """Return `wanted` with what others have written into the metadata of `live`."""
    metadata, ours = live["metadata"], wanted["metadata"]
    kept = ("name", "uid", "resourceVersion", "finalizers", "ownerReferences")
    return wanted | {
        "metadata": {
            **{key: metadata[key] for key in kept if key in metadata},
            "labels": metadata.get("labels", {}) | ours.get("labels", {}),
            "annotations": metadata.get("annotations", {}) | ours.get("annotations", {}),
        }
    }


def is_served(live: Manifest | None) -> bool:
    """Return whether the API server takes objects of this kind now."""
    conditions = (live or {}).get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


async def _repeat(attempt: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await attempt():
            return
        await asyncio.sleep(_POLL_SECONDS)


async def _is_served(transport: Transport, name: str) -> bool:
    return is_served(await _read(transport, name))


async def _put(transport: Transport, wanted: Manifest, say: Callable[[str], None]) -> bool:
    """Return False when someone else was faster, so that everything must be looked at again."""
    name, version = _name(wanted), _version(wanted)
    live = await _read(transport, name)
    if live is not None and is_downgrade(live, wanted):
        say(f"left {name} alone: it is of version {_version(live)}, newer than {version}")
        return True
    try:
        if live is None:
            await _write(transport, "create", "POST", CRDS.path(None), wanted)
            say(f"created {name} of version {version}")
        else:
            await _write(transport, "update", "PUT", CRDS.path(None, name), replacement(live, wanted))
            say(f"brought {name} from version {_version(live) or 'unknown'} to {version}")
    except (AlreadyExists, Conflict, NotFound):
        return False
    return True


async def _read(transport: Transport, name: str) -> Manifest | None:
    try:
        body = await transport.send(Request("get", "GET", CRDS, CRDS.path(None, name)))
    except NotFound:
        return None
    live: Manifest = json.loads(body)
    return live


async def _write(transport: Transport, verb: str, method: str, path: str, manifest: Manifest) -> None:
    body = json.dumps(manifest).encode()
    await transport.send(Request(verb, method, CRDS, path, query=_STRICT, body=body))


def _name(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])


def _version(manifest: Manifest) -> str | None:
    version: str | None = manifest["metadata"].get("annotations", {}).get(VERSION_ANNOTATION)
    return version
