"""Who owns what is created for a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainjob.api import GROUP, KIND, VERSION, TrainJob


def owner_references(job: TrainJob) -> list[dict[str, Any]]:
    """Return the `ownerReferences` by which an object goes when its job goes."""
    return [
        {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": job.metadata.name,
            "uid": job.metadata.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def controller_uid(manifest: Mapping[str, Any]) -> str | None:
    """Return the uid of the object that controls this one, or None: labels are anybody's to write."""
    for owner in manifest.get("metadata", {}).get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner.get("uid"))
    return None
