"""Where jobs run: one protocol, implemented by the Kubernetes API and by local processes."""

from trainjob.cluster.protocol import (
    AlreadyExists,
    Cluster,
    ClusterError,
    Conflict,
    Manifest,
    NotFound,
    Refused,
    Unavailable,
)
from trainjob.core.names import JobKey, ObjectRef
from trainjob.core.observed import Snapshot

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
