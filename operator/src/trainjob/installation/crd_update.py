"""The update of the CRD in the cluster, which never downgrades it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from trainjob.api.constants import GROUP
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import Resource
from trainjob.cluster.protocol import AlreadyExists, ClusterError, Conflict, Manifest, NotFound


class InstallationFailed(Exception):
    """The installation failed; the message says why."""


# The order of releases.


VERSION_ANNOTATION = f"{GROUP}/version"
"""Annotation of the CRD with its release."""

Release = tuple[int, int, int, int, int]

UNKNOWN: Release = (0, 0, 0, 0, 0)
"""Older than any release."""

_FORM = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:-?(a|alpha|b|beta|rc)\.?(\d+))?")
_STAGES = {"a": 1, "alpha": 1, "b": 2, "beta": 2, "rc": 3}
_FINAL = 4


def read_release(text: str | None) -> Release:
    """Return a version as a sortable tuple, from Python's (`1.2.0rc1`) or Helm's form (`1.2.0-rc.1`).

    Any other text counts as older than every release.
    """
    found = _FORM.fullmatch(text or "")
    if not found:
        return UNKNOWN
    major, minor, patch, stage, number = found.groups()
    return int(major), int(minor), int(patch), _STAGES.get(stage, _FINAL), int(number or 0)


# The update of the CRD in the cluster.
#
# Helm can't do it: a rollback to a release applies that release's CRD again, and an older schema drops the
# newer fields of every job that is written afterwards.


CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")

_POLL_SECONDS = 0.2


async def install_crd(
    api: ApiClient, wanted: Manifest, *, say: Callable[[str], None], patience_seconds: float = 60
) -> None:
    """Create `wanted`, or replace a CRD that isn't newer, and wait until it is served.

    Raises:
        InstallationFailed: the API server refuses it, can't be reached, or doesn't serve it in time.
    """
    name = _name(wanted)
    try:
        async with asyncio.timeout(patience_seconds):
            await _repeat(lambda: _put(api, wanted, say))
            await _repeat(lambda: _is_served(api, name))
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
    """Return `wanted` with the metadata that others have written to `live`."""
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
    """Return whether the API server serves objects of this kind."""
    conditions = (live or {}).get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


async def _repeat(attempt: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await attempt():
            return
        await asyncio.sleep(_POLL_SECONDS)


async def _is_served(api: ApiClient, name: str) -> bool:
    return is_served(await _read(api, name))


async def _put(api: ApiClient, wanted: Manifest, say: Callable[[str], None]) -> bool:
    """Return False if the CRD was changed concurrently and must be read again."""
    name, version = _name(wanted), _version(wanted)
    live = await _read(api, name)
    if live is not None and is_downgrade(live, wanted):
        say(f"left {name} alone: it is of version {_version(live)}, newer than {version}")
        return True
    try:
        if live is None:
            await api.create(CRDS, wanted)
            say(f"created {name} of version {version}")
        else:
            await api.replace(CRDS, replacement(live, wanted), strict=True)
            say(f"brought {name} from version {_version(live) or 'unknown'} to {version}")
    except (AlreadyExists, Conflict, NotFound):
        return False
    return True


async def _read(api: ApiClient, name: str) -> Manifest | None:
    try:
        return await api.get(CRDS, None, name)
    except NotFound:
        return None


def _name(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])


def _version(manifest: Manifest) -> str | None:
    version: str | None = manifest["metadata"].get("annotations", {}).get(VERSION_ANNOTATION)
    return version
