"""The rules of the roles are few, and the same in the chart, the manifests and the reference page.

`tests/e2e/control_plane/test_kube_controller.py` and `tests/cluster/kube` compare them with the calls.
"""

from __future__ import annotations

import re

from support.kube.chart import (
    CHART,
    CONTROLLER_RULES,
    GANG_RULES,
    KUEUE_CLUSTER_RULES,
    KUEUE_RULES,
    ROOT,
    allowed,
    read_rules,
)

PAGE = (ROOT / "docs/reference/permissions.md").read_text()
FILES = ("controller", "own", "kueue", "kueue-cluster", "gang", "edit", "view")
"""In the order of the page's tables."""

ONLY = {"leases": " (the election's only)", "secrets": " (the key's only)"}
ALL_RULES = CONTROLLER_RULES + read_rules("own") + KUEUE_RULES + KUEUE_CLUSTER_RULES + GANG_RULES


def test_the_page_has_every_rule_with_its_reason() -> None:
    tables = re.findall(r"^\|-.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    for name, table in zip(FILES, tables, strict=True):
        reasons = re.findall(r"^# (.*)\n- ", (CHART / f"files/{name}-rules.yaml").read_text(), re.MULTILINE)
        rows = []
        for rule, reason in zip(read_rules(name), reasons, strict=True):
            (group,), resources = rule["apiGroups"], ", ".join(rule["resources"])
            if "resourceNames" in rule:
                resources += ONLY[resources]
            rows.append(f"| {group or 'core'} | {resources} | {', '.join(rule['verbs'])} | {reason} |")
        assert table.splitlines() == rows, name


def test_the_manifests_have_the_rules_with_their_reasons() -> None:
    names = {"{{ include `trainjob.fullname` . }}": "trainjob"}
    names["{{ include `trainjob.agentKeyName` . }}"] = "trainjob-agent-key"
    overlays = {"kueue": "overlays/kueue", "kueue-cluster": "overlays/kueue", "gang": "overlays/gangs"}
    for name in FILES:
        _, _, rules = (CHART / f"files/{name}-rules.yaml").read_text().partition("\n")
        for template, value in names.items():
            rules = rules.replace(f'"{template}"', value)
        assert rules in (ROOT / "manifests" / overlays.get(name, "base") / "rbac.yaml").read_text(), name


def test_no_call_is_allowed_twice() -> None:
    for name in FILES:
        calls = allowed(read_rules(name))
        assert len(set(calls)) == len(calls), name


def test_nothing_that_leads_further_is_allowed() -> None:
    words = {word for call in allowed(ALL_RULES) for word in call}
    assert not words & {"*", "pods/exec", "pods/log", "nodes", "serviceaccounts/token"}
    assert not words & {"escalate", "bind", "impersonate", "deletecollection"}
    assert not any("role" in word or "rbac" in word for word in words)


def test_the_jobs_secrets_are_made_and_never_read() -> None:
    verbs = {verb for _, resource, verb in allowed(CONTROLLER_RULES) if resource == "secrets"}
    assert verbs == {"create", "delete"}


def test_in_the_controllers_own_namespace_all_but_creating_is_for_one_lease_and_one_secret() -> None:
    own = read_rules("own")
    assert {resource for _, resource, _ in allowed(own)} == {"leases", "secrets"}
    for rule in own:
        assert (rule["verbs"] == ["create"]) == ("resourceNames" not in rule)
        assert len(rule.get("resourceNames", ["one"])) == 1
