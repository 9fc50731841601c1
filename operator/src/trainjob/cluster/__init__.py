"""Where jobs run: one protocol, and what keeps it (processes here, the Kubernetes API, a fake in memory)."""

from trainjob.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound, Refused, Unavailable
from trainjob.cluster.protocol import Cluster, JobKey, Manifest, ObjectRef, Snapshot

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
