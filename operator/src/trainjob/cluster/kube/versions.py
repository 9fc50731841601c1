"""Which of two resourceVersions is the newer one.

They are decimal numbers that grow with every write to a resource (KEP-5504 says so officially since
Kubernetes 1.35; etcd has always made it so).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def version_of(manifest: Mapping[str, Any]) -> str:
    """Return an object's, or a list's, resourceVersion; empty when it has none."""
    return str((manifest.get("metadata") or {}).get("resourceVersion") or "")


def is_newer(version: str, other: str) -> bool:
    """Tell whether `version` is newer than `other`; of two that can't be compared, each is."""
    if version.isdecimal() and other.isdecimal():
        return int(version) > int(other)
    return version != other
