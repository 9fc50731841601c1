"""The update of the CRD in the cluster, which never downgrades it.

Helm can't do it: a rollback to a release applies that release's CRD again, and an older schema drops the
newer fields of every job that is written afterwards.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from trainjob.api.constants import GROUP
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import Resource
from trainjob.cluster.protocol import AlreadyExists, ClusterError, Conflict, Manifest, NotFound

CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")

VERSION_ANNOTATION = f"{GROUP}/version"
"""Annotation of the CRD with its release."""

Release = tuple[int, int, int, int, int]

UNKNOWN: Release = (0, 0, 0, 0, 0)
"""Older than any release."""

_FORM = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:-?(a|alpha|b|beta|rc)\.?(\d+))?")
_STAGES = {"a": 1, "alpha": 1, "b": 2, "beta": 2, "rc": 3}
_FINAL = 4
_POLL_SECONDS = 0.2


class InstallationFailed(Exception):
    """The installation failed; the message says why."""


def read_release(text: str | None) -> Release:
    """Return a version as a sortable tuple, from Python's (`1.2.0rc1`) or Helm's form (`1.2.0-rc.1`).

    Any other text counts as older than every release.
    """
    found = _FORM.fullmatch(text or "")
    if not found:
        return UNKNOWN
    major, minor, patch, stage, number = found.groups()
    return int(major), int(minor), int(patch), _STAGES.get(stage, _FINAL), int(number or 0)


async def install_crd(
    api: ApiClient, crd: Manifest, *, say: Callable[[str], None], patience_seconds: float = 60
) -> None:
    """Create the CRD, or replace one that isn't newer, and wait until it is served.

    Raises:
        InstallationFailed: the API server refuses it, can't be reached, or doesn't serve it in time.
    """
    name = crd["metadata"]["name"]
    try:
        async with asyncio.timeout(patience_seconds):
            while not await _put(api, crd, say):  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(_POLL_SECONDS)
            while not _is_served(await _read(api, name)):  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise InstallationFailed(
            f"{name} is not served after {patience_seconds:g} s: see its conditions"
        ) from None
    except ClusterError as error:
        raise InstallationFailed(f"{name}: {error}") from error


async def _put(api: ApiClient, crd: Manifest, say: Callable[[str], None]) -> bool:
    """Return False if the CRD was changed concurrently and must be read again."""
    ours = crd["metadata"]
    name, version = ours["name"], ours.get("annotations", {}).get(VERSION_ANNOTATION)
    live = await _read(api, name)
    try:
        if live is None:
            await api.create(CRDS, crd)
            say(f"created {name} of version {version}")
            return True
        metadata = live["metadata"]
        present = metadata.get("annotations", {}).get(VERSION_ANNOTATION)
        if read_release(present) > read_release(version):
            say(f"left {name} alone: it is of version {present}, newer than {version}")
            return True
        kept = ("name", "uid", "resourceVersion", "finalizers", "ownerReferences")
        merged = {
            **{key: metadata[key] for key in kept if key in metadata},
            "labels": metadata.get("labels", {}) | ours.get("labels", {}),
            "annotations": metadata.get("annotations", {}) | ours.get("annotations", {}),
        }
        await api.replace(CRDS, crd | {"metadata": merged}, strict=True)
        say(f"brought {name} from version {present or 'unknown'} to {version}")
    except (AlreadyExists, Conflict, NotFound):
        return False
    return True


async def _read(api: ApiClient, name: str) -> Manifest | None:
    try:
        return await api.get(CRDS, None, name)
    except NotFound:
        return None


def _is_served(live: Manifest | None) -> bool:
    conditions = (live or {}).get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)
