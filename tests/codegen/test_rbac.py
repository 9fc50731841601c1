from __future__ import annotations

from trainjob.codegen.rbac import PERMISSIONS, PermissionScope


def test_no_resource_stands_twice_and_each_says_why() -> None:
    resources = [(p.group, p.resource, p.scope) for p in PERMISSIONS]
    assert len(set(resources)) == len(resources)
    assert all(p.why and p.verbs for p in PERMISSIONS)


def test_nothing_dangerous_is_asked_for() -> None:
    words = {word for p in PERMISSIONS for word in (p.group, p.resource, *p.verbs)}
    assert not words & {"*", "pods/exec", "pods/log", "escalate", "bind", "impersonate"}
    assert not words & {"deletecollection", "nodes", "rbac.authorization.k8s.io"}


def test_the_jobs_secrets_are_made_and_never_read() -> None:
    verbs = [p.verbs for p in PERMISSIONS if (p.resource, p.scope) == ("secrets", PermissionScope.JOBS)]
    assert verbs == [("create", "delete")]


def test_only_lease_and_key_are_needed_in_the_controllers_own_namespace() -> None:
    assert [p.resource for p in PERMISSIONS if p.scope is PermissionScope.OPERATOR] == ["leases", "secrets"]
