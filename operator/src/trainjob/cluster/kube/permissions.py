"""The controller's permissions at the API server, with reasons: RBAC manifests are generated from them.

A test compares the table with the actual calls, and runs the controller with these permissions only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from trainjob.api.constants import GROUP, PLURAL


class PermissionScope(Enum):
    """Where a permission is needed."""

    JOBS = "jobs"
    """In every namespace whose jobs are looked after: one namespace, or all of them."""

    OPERATOR = "operator"
    """In the controller's own namespace only."""


@dataclass(frozen=True)
class Permission:
    """What may be done with one resource.

    Attributes:
        group: the API group; empty for the core group.
        resource: the plural, with the subresource behind a slash.
        verbs: as RBAC writes them.
        why: one phrase for the reader of the manifest.
        scope: where.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    scope: PermissionScope = PermissionScope.JOBS


_READ = ("get", "list", "watch")

PERMISSIONS: tuple[Permission, ...] = (
    Permission(
        GROUP,
        PLURAL,
        (*_READ, "delete"),
        "the jobs to look after; delete is for those whose ttlSecondsAfterFinished is over",
    ),
    Permission(GROUP, f"{PLURAL}/status", ("update",), "what became of each job"),
    Permission(
        GROUP,
        f"{PLURAL}/finalizers",
        ("update",),
        "objects that name a job as an owner which waits for them (blockOwnerDeletion)",
    ),
    Permission(
        "",
        "pods",
        (*_READ, "create", "patch", "delete"),
        "the replicas; patch takes the label off that puts a pod behind the job's Service",
    ),
    Permission("", "services", (*_READ, "create"), "the replicas' DNS names"),
    Permission("", "persistentvolumeclaims", (*_READ, "create"), "the output of jobs that ask for a size"),
    Permission(
        "networking.k8s.io",
        "networkpolicies",
        (*_READ, "create", "update"),
        "who may reach the replicas; update restores a changed one",
    ),
    Permission(
        "",
        "secrets",
        ("create", "delete"),
        "each job's token, deleted when the job has finished; none is ever read",
    ),
    Permission(
        "",
        "configmaps",
        ("get", "list", "create", "delete"),
        "the agent's program, one for all jobs of a namespace; deleted when no job needs it, and when it "
        "isn't what its name says",
    ),
    Permission("", "events", ("create", "patch"), "what `kubectl describe` shows; patch counts repetitions"),
    Permission(
        "coordination.k8s.io",
        "leases",
        ("get", "create", "update"),
        "which of the controller's replicas is at work",
        PermissionScope.OPERATOR,
    ),
    Permission(
        "",
        "secrets",
        ("get", "create"),
        "the controller's own key, from which the jobs' tokens are derived",
        PermissionScope.OPERATOR,
    ),
)
