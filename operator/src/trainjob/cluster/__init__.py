"""Where jobs run: one protocol, and what keeps it (processes here, the Kubernetes API)."""

from trainjob.cluster.protocol import (
    AlreadyExists,
    Cluster,
    ClusterError,
    Conflict,
    Manifest,
    NotFound,
    Refused,
    Snapshot,
    Unavailable,
)
from trainjob.core.names import JobKey, ObjectRef

__all__ = [
    "AlreadyExists",
    "Cluster",
    "ClusterError",
    "Conflict",
    "JobKey",
    "Manifest",
    "NotFound",
    "ObjectRef",
    "Refused",
    "Snapshot",
    "Unavailable",
]
