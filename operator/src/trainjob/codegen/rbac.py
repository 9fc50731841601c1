"""RBAC rules: the controller's, from the table of its calls, and those for users.

A test compares the table with the actual calls, and runs the controller with these permissions only. The
chart uses only the rules and names its roles after the release; kustomize uses whole objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from trainjob.api.constants import GROUP, PLURAL
from trainjob.api.yaml import dump_yaml
from trainjob.cluster.protocol import Manifest
from trainjob.core.gangs import POD_GROUP_APIS

# The controller's permissions at the API server.


class PermissionScope(Enum):
    """Where a permission is needed."""

    JOBS = "jobs"
    """In every namespace with jobs of this controller: one namespace, or all of them."""

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
        "the controller's jobs; delete is for those whose ttlSecondsAfterFinished is over",
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
        "the replicas; patch removes the label by which the job's Service selects a pod, and ends pods that "
        "only sidecars keep running",
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
    Permission(
        "",
        "events",
        ("list", "create", "patch"),
        "what `kubectl describe` shows; patch counts repetitions, list says why a pod is slow to start",
    ),
    Permission(
        "coordination.k8s.io",
        "leases",
        ("get", "create", "update"),
        "which of the controller's replicas is the leader",
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


KUEUE_PERMISSIONS: tuple[Permission, ...] = (
    Permission(
        "kueue.x-k8s.io",
        "workloads",
        (*_READ, "create", "patch", "delete"),
        "what jobs in queues ask of Kueue; patch keeps it up to date and takes the finalizer off",
    ),
    Permission("kueue.x-k8s.io", "workloads/status", ("patch",), "which pods are ready or need no quota"),
    Permission("visibility.kueue.x-k8s.io", "localqueues/pendingworkloads", ("get",), "positions in queues"),
)
"""In namespaces with jobs, where jobs wait in queues of Kueue."""

KUEUE_CLUSTER_PERMISSIONS: tuple[Permission, ...] = (
    Permission("kueue.x-k8s.io", "resourceflavors", ("list", "watch"), "the nodes of admitted jobs"),
    Permission("kueue.x-k8s.io", "workloadpriorityclasses", ("list", "watch"), "the jobs' priorities"),
    Permission("scheduling.k8s.io", "priorityclasses", ("list", "watch"), "the same, of their pods"),
)
"""Of objects without a namespace, for the same."""


GANG_PERMISSIONS: tuple[Permission, ...] = tuple(
    Permission(
        api_version.partition("/")[0],
        "podgroups",
        (*_READ, "create", "patch", "delete"),
        "which pods a gang scheduler places together; patch follows a job's size",
    )
    for api_version in POD_GROUP_APIS
)
"""In namespaces with jobs, where jobs may have PodGroups."""


# The rules and roles that are made from them.


NAME = "trainjob"
"""Name of the objects in the kustomize base, and in a Helm release that has this name."""

NAMESPACE = "trainjob-system"
"""Namespace of the controller in the kustomize base."""

_HEADER = "# Generated from operator/src/trainjob/codegen/rbac.py by `make generate`.\n"
_API_GROUP = "rbac.authorization.k8s.io"
_AGGREGATE = f"{_API_GROUP}/aggregate-to-"


@dataclass(frozen=True)
class RbacRule:
    """One rule of a role, with its reason, and the name of the only object that it is for, if any."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    name: str = ""


EDIT_RULES = (
    RbacRule(
        GROUP,
        (PLURAL,),
        ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"),
        "an editor may run jobs; that is as much power as creating pods",
    ),
    RbacRule(GROUP, (f"{PLURAL}/status",), ("get",), "the status is the controller's to write"),
    RbacRule(GROUP, (f"{PLURAL}/scale",), ("get", "update", "patch"), "kubectl scale"),
    RbacRule("", ("configmaps",), ("create",), "the code of a job (trainjob submit)"),
)
VIEW_RULES = (
    RbacRule(
        GROUP, (PLURAL, f"{PLURAL}/status", f"{PLURAL}/scale"), ("get", "list", "watch"), "reading alone"
    ),
)


def controller_rules() -> tuple[RbacRule, ...]:
    """Return the rules that the controller needs in each namespace with jobs."""
    return _rules(p for p in PERMISSIONS if p.scope is PermissionScope.JOBS)


def kueue_rules() -> tuple[RbacRule, ...]:
    """Return the rules that the controller also needs in each namespace with jobs in queues of Kueue."""
    return _rules(KUEUE_PERMISSIONS)


def kueue_cluster_rules() -> tuple[RbacRule, ...]:
    """Return the rules for what Kueue has for all namespaces."""
    return _rules(KUEUE_CLUSTER_PERMISSIONS)


def gang_rules() -> tuple[RbacRule, ...]:
    """Return the rules that the controller also needs in each namespace with jobs that have PodGroups."""
    return _rules(GANG_PERMISSIONS)


def own_rules(*, lease: str, key: str) -> tuple[RbacRule, ...]:
    """Return the rules for the controller's own namespace; all but `create` are for these two objects."""
    names = {"leases": lease, "secrets": key}
    return tuple(
        rule
        for permission in PERMISSIONS
        if permission.scope is PermissionScope.OPERATOR
        for rule in _for_one_object(permission, names[permission.resource])
    )


def rules_text(rules: Iterable[RbacRule], *, has_header: bool = True) -> str:
    """Return the list of rules as YAML, each with its reason."""
    return (_HEADER if has_header else "") + "".join(map(_rule, rules))


def cluster_wide_text() -> str:
    """Return the objects for a controller of all namespaces."""
    scoped = f"{NAME}:{NAMESPACE}"
    return _HEADER + "---\n".join(
        (
            _role("ClusterRole", f"{scoped}:controller", controller_rules()),
            _binding("ClusterRole", f"{scoped}:controller"),
            *_own(),
            _role("ClusterRole", f"{scoped}:edit", EDIT_RULES, aggregate_to=("admin", "edit")),
            _role("ClusterRole", f"{scoped}:view", VIEW_RULES, aggregate_to=("view",)),
        )
    )


def one_namespace_text() -> str:
    """Return the roles for one namespace, which kustomize sets, instead of the cluster-wide ones."""
    return _HEADER + "---\n".join(
        (
            _role("Role", f"{NAME}-controller", controller_rules()),
            _binding("Role", f"{NAME}-controller"),
        )
    )


def kueue_text() -> str:
    """Return the objects for a controller of all namespaces whose jobs wait in queues of Kueue."""
    name = f"{NAME}:{NAMESPACE}:kueue"
    rules = (*kueue_cluster_rules(), *kueue_rules())
    return _HEADER + "---\n".join((_role("ClusterRole", name, rules), _binding("ClusterRole", name)))


def gang_text() -> str:
    """Return the objects for a controller of all namespaces whose jobs may have PodGroups."""
    name = f"{NAME}:{NAMESPACE}:gangs"
    return _HEADER + "---\n".join((_role("ClusterRole", name, gang_rules()), _binding("ClusterRole", name)))


def _own() -> tuple[str, str]:
    name, rules = f"{NAME}-own", own_rules(lease=NAME, key=f"{NAME}-agent-key")
    return _role("Role", name, rules, namespace=NAMESPACE), _binding("Role", name, namespace=NAMESPACE)


def _for_one_object(permission: Permission, name: str) -> Iterable[RbacRule]:
    # A create request has no name that RBAC could check.
    nameless = tuple(verb for verb in permission.verbs if verb == "create")
    named = tuple(verb for verb in permission.verbs if verb != "create")
    yield RbacRule(permission.group, (permission.resource,), nameless, permission.why)
    yield RbacRule(permission.group, (permission.resource,), named, "as above; this one alone", name)


def _rules(permissions: Iterable[Permission]) -> tuple[RbacRule, ...]:
    return tuple(RbacRule(p.group, (p.resource,), p.verbs, p.why) for p in permissions)


def _role(
    kind: str,
    name: str,
    rules: Iterable[RbacRule],
    *,
    namespace: str = "",
    aggregate_to: tuple[str, ...] = (),
) -> str:
    labels = {f"{_AGGREGATE}{role}": "true" for role in aggregate_to}
    return _yaml(_head(kind, name, namespace, labels)) + "rules:\n" + rules_text(rules, has_header=False)


def _binding(kind: str, name: str, *, namespace: str = "") -> str:
    binding = _head(f"{kind}Binding", name, namespace) | {
        "roleRef": {"apiGroup": _API_GROUP, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
    }
    return _yaml(binding)


def _head(kind: str, name: str, namespace: str, labels: dict[str, str] | None = None) -> Manifest:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {
        "apiVersion": f"{_API_GROUP}/v1",
        "kind": kind,
        "metadata": {key: value for key, value in metadata.items() if value},
    }


def _rule(rule: RbacRule) -> str:
    fields = {
        "apiGroups": [rule.group],
        "resources": rule.resources,
        "resourceNames": [rule.name] if rule.name else [],
        "verbs": rule.verbs,
    }
    return f"# {rule.why}\n" + _yaml([{field: value for field, value in fields.items() if value}])


def _yaml(data: Any) -> str:
    return dump_yaml(data, inline_depth=1)
