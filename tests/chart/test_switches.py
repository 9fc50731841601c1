"""Every setting does what it says."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from support.kube.chart import (
    CONTROLLER_RULES,
    EVERYTHING,
    GANG_RULES,
    KUEUE_RULES,
    NAMESPACED_KINDS,
    Release,
    allowed,
    read_rules,
    render,
)
from trainjob.cli import main


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ({"podDisruptionBudget": {"enabled": False}}, {"PodDisruptionBudget"}),
        ({"networkPolicy": {"enabled": False}}, {"NetworkPolicy"}),
        ({"serviceAccount": {"create": False, "name": "there"}}, {"ServiceAccount"}),
        ({"rbac": {"create": False}, "crd": {"install": False}},
         {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}),
    ],
)  # fmt: skip
def test_switches(values: dict[str, Any], gone: set[str]) -> None:
    default, switched = render().objects.kinds, render(values).objects.kinds
    assert default - switched == gone
    assert switched <= default


def test_without_the_crd_neither_hooks_nor_roles_for_people() -> None:
    release = render({"crd": {"install": False}})
    assert not release.hooks("pre-install")
    assert release.objects.names("ClusterRole") == {"trainjob:trainjob-system:controller"}


def test_namespaced_and_without_crd_nothing_is_cluster_wide() -> None:
    release = render({"watch": {"namespace": "training"}, "crd": {"install": False}})
    assert release.everything.kinds <= NAMESPACED_KINDS
    role, binding = release.objects.one("Role", "trainjob-controller"), "trainjob-controller"
    assert role["metadata"]["namespace"] == "training"
    assert release.objects.one("RoleBinding", binding)["metadata"]["namespace"] == "training"
    assert release.objects.one("Deployment")["metadata"]["namespace"] == "trainjob-system"
    assert release.hooks("test").one("Role")["metadata"]["namespace"] == "training"
    assert "--namespace=training" in release.container["args"]


def test_roles_are_the_same_wherever_they_hold() -> None:
    everywhere = render().objects.one("ClusterRole", "trainjob:trainjob-system:controller")
    namespaced = render({"watch": {"namespace": "training"}}).objects.one("Role", "trainjob-controller")
    assert everywhere["rules"] == namespaced["rules"]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"watch": {"namespace": "training"}},
        {"watch": {"namespace": "training"}, "kueue": {"enabled": True}, "gangs": {"enabled": True}},
    ],
)
def test_bindings_bind_the_controllers_account(values: dict[str, Any]) -> None:
    release = render({**values, "serviceAccount": {"name": "account"}})
    assert release.pod["spec"]["serviceAccountName"] == "account"
    assert release.objects.one("ServiceAccount")["metadata"]["name"] == "account"
    roles = {(o["kind"], o["metadata"]["name"]) for o in release.everything}
    for binding in (o for o in release.objects if o["kind"].endswith("Binding")):
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": "account", "namespace": "trainjob-system"}
        ]
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in roles


KUEUE = "kueue.x-k8s.io/v1beta2"


@pytest.mark.parametrize(
    ("enabled", "served", "is_on"),
    [
        (None, "", False),
        (None, KUEUE, True),
        (None, "kueue.x-k8s.io/v1beta1", True),
        (True, "", True),
        (False, KUEUE, False),
    ],
)
@pytest.mark.parametrize("namespace", ["", "training"])
def test_permissions_for_kueue_only_where_it_is(
    enabled: bool | None, served: str, is_on: bool, namespace: str
) -> None:
    values = {"kueue": {"enabled": "auto" if enabled is None else enabled}, "watch": {"namespace": namespace}}
    release = render(values, served=served)
    rules = [
        rule["resources"]
        for role in release.objects
        if role["kind"] in ("Role", "ClusterRole")
        for rule in role["rules"]
        if "kueue.x-k8s.io" in rule["apiGroups"]
    ]
    wanted = [["resourceflavors"], ["workloadpriorityclasses"], ["workloads"], ["workloads/status"]]
    assert sorted(rules) == (wanted if is_on else [])
    assert ("--kueue" in release.container["args"]) == is_on
    if is_on and namespace:
        assert release.objects.one("Role", "trainjob-kueue")["metadata"]["namespace"] == namespace


@pytest.mark.parametrize(
    ("enabled", "served", "is_on"),
    [
        ("auto", "", False),
        ("auto", "scheduling.k8s.io/v1beta1/PodGroup", True),
        ("auto", "scheduling.x-k8s.io/v1alpha1/PodGroup", True),
        ("auto", "scheduling.volcano.sh/v1beta1/PodGroup", True),
        ("auto", "scheduling.x-k8s.io/v1alpha1/ElasticQuota", False),
        (True, "", True),
        (False, "scheduling.x-k8s.io/v1alpha1/PodGroup", False),
    ],
)
@pytest.mark.parametrize("namespace", ["", "training"])
def test_permissions_for_gangs_only_where_they_are(
    enabled: str | bool, served: str, is_on: bool, namespace: str
) -> None:
    release = render({"gangs": {"enabled": enabled}, "watch": {"namespace": namespace}}, served=served)
    groups = [
        (role["kind"], rule["apiGroups"])
        for role in release.objects
        if role["kind"] in ("Role", "ClusterRole")
        for rule in role["rules"]
        if rule["resources"] == ["podgroups"]
    ]
    kind = "Role" if namespace else "ClusterRole"
    wanted = [(kind, rule["apiGroups"]) for rule in GANG_RULES]
    assert groups == (wanted if is_on else [])
    assert ("--gangs" in release.container["args"]) == is_on


POLICIES = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"


@pytest.mark.parametrize(
    ("enabled", "served", "namespace", "is_on"),
    [
        ("auto", "", "", False),
        ("auto", "admissionregistration.k8s.io/v1", "", False),  # Kubernetes 1.29 has it for webhooks
        ("auto", POLICIES, "", True),
        ("auto", POLICIES, "training", False),
        (True, "", "training", True),
        (False, POLICIES, "", False),
    ],
)
def test_an_admission_policy_where_the_cluster_has_them(
    enabled: str | bool, served: str, namespace: str, is_on: bool
) -> None:
    values = {"admissionPolicy": {"enabled": enabled}, "watch": {"namespace": namespace}}
    release = render({**values, "serviceAccount": {"name": "account"}}, served=served)
    kinds = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    assert release.objects.kinds & kinds == (kinds if is_on else set())
    if is_on:
        policy = release.objects.one("ValidatingAdmissionPolicy")
        binding = release.objects.one("ValidatingAdmissionPolicyBinding")["spec"]
        (condition,) = policy["spec"]["matchConditions"]
        assert "system:serviceaccount:trainjob-system:account" in condition["expression"]
        assert (binding["policyName"], binding["validationActions"]) == (policy["metadata"]["name"], ["Deny"])


def test_the_admission_policy_has_all_that_the_controller_may_make_but_events_and_leases() -> None:
    policy = render({"admissionPolicy": {"enabled": True}}).objects.one("ValidatingAdmissionPolicy")
    every = policy["spec"]["matchConstraints"]["resourceRules"]
    seen = {(group, resource) for r in every for group in r["apiGroups"] for resource in r["resources"]}
    rules = [*CONTROLLER_RULES, *KUEUE_RULES, *GANG_RULES, *read_rules("own")]
    made = {(group, resource) for group, resource, verb in allowed(rules) if verb == "create"}
    assert seen == made - {("", "events"), ("coordination.k8s.io", "leases")}


def test_roles_for_people_aggregate() -> None:
    def targets(name: str) -> set[str]:
        labels = render().objects.one("ClusterRole", f"trainjob:trainjob-system:{name}")["metadata"]["labels"]
        return {
            key.rpartition("-")[2]
            for key, value in labels.items()
            if "aggregate-to" in key and value == "true"
        }

    assert targets("edit") == {"admin", "edit"}
    assert targets("view") == {"view"}


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({"tag": "1.2.3"}, "ghcr.io/trainjob/operator:1.2.3"),
        ({"repository": "mirror/op", "tag": "x"}, "mirror/op:x"),
        ({"tag": "x", "digest": "sha256:" + "a" * 64}, "ghcr.io/trainjob/operator@sha256:" + "a" * 64),
    ],
)
def test_all_pods_have_the_same_image(values: dict[str, str], image: str) -> None:
    every = {"image": {**values, "pullPolicy": "Always"}, "imagePullSecrets": [{"name": "key"}]}
    release = render({**EVERYTHING, **every})
    for spec in pod_specs(release):
        assert {c["image"] for c in spec["containers"]} == {image}
        assert {c["imagePullPolicy"] for c in spec["containers"]} == {"Always"}
        assert spec["imagePullSecrets"] == [{"name": "key"}]


def test_all_pods_may_be_placed() -> None:
    placement = {"nodeSelector": {"pool": "infra"}, "tolerations": [{"key": "infra", "operator": "Exists"}]}
    for spec in pod_specs(render({**EVERYTHING, **placement})):
        assert placement.items() <= spec.items()


def test_all_pods_pass_restricted_pod_security() -> None:
    for spec in pod_specs(render(EVERYTHING)):
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }
            # A quota on these refuses a pod that says nothing.
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]


def test_settings_of_the_pod() -> None:
    values = {
        "resources": {"requests": {"cpu": "1"}},
        "priorityClassName": "system-cluster-critical",
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 2, "topologyKey": "x", "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "ml"},
        "extraEnv": [{"name": "TRAINJOB_CONTROLLER_WATCH_SILENCE", "value": "30"}],
    }
    release = render(values)
    spec, container = release.pod["spec"], release.container
    assert spec["priorityClassName"] == "system-cluster-critical"
    assert spec["affinity"] == {"nodeAffinity": {}}
    assert spec["topologySpreadConstraints"] == values["topologySpreadConstraints"]
    assert release.pod["metadata"]["annotations"] == {"a": "b"}
    assert release.pod["metadata"]["labels"]["team"] == "ml"
    assert [e["name"] for e in container["env"]] == [
        "POD_NAME",
        "POD_NAMESPACE",
        "TRAINJOB_CONTROLLER_WATCH_SILENCE",
    ]


def test_service_account_annotations_and_scraping() -> None:
    release = render(
        {
            "serviceAccount": {"annotations": {"cloud": "identity"}},
            "serviceMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}},
        }
    )
    assert release.objects.one("ServiceAccount")["metadata"]["annotations"] == {"cloud": "identity"}
    monitor = release.objects.one("ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["endpoints"] == [
        {"port": "http", "path": "/metrics", "interval": "15s", "honorLabels": True}
    ]
    assert release.objects.one("Service")["spec"]["ports"][0]["name"] == "http"
    assert {p["name"]: p["containerPort"] for p in release.container["ports"]} == {"http": 8080}


def test_no_budget_holds_up_the_draining_of_a_node_for_good() -> None:
    for replicas in (1, 2):
        budget = render({"replicas": replicas}).objects.one("PodDisruptionBudget")["spec"]
        assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
        assert "minAvailable" not in budget


def test_who_may_reach_the_controller() -> None:
    own = {"podSelector": {}}  # without a namespaceSelector: the release's own namespace
    (rule,) = render().objects.one("NetworkPolicy")["spec"]["ingress"]
    assert rule == {"ports": [{"port": "http", "protocol": "TCP"}], "from": [own]}
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    release = render({"networkPolicy": {"from": [peer]}})
    (rule,) = release.objects.one("NetworkPolicy")["spec"]["ingress"]
    assert rule["from"] == [own, peer]
    assert (
        release.hooks("test").one("Pod")["metadata"]["namespace"]
        == release.objects.one("NetworkPolicy")["metadata"]["namespace"]
    )


RULE = {"from": [{"podSelector": {"matchLabels": {"app": 'a "b" {{ c }}'}}}], "ports": [{"port": 9090}]}


@pytest.mark.parametrize(
    ("values", "is_on", "rules"),
    [
        ({}, True, None),
        ({"enabled": False, "extraIngress": [RULE]}, False, None),
        ({"extraIngress": [RULE]}, True, [RULE]),
    ],
)
def test_the_jobs_network_policy(values: dict[str, Any], is_on: bool, rules: list[Any] | None) -> None:
    args = render({"jobs": {"networkPolicy": values}}).container["args"]
    assert ("--network-policy" in args, "--no-network-policy" in args) == (is_on, not is_on)
    given = [arg.removeprefix("--extra-ingress=") for arg in args if arg.startswith("--extra-ingress=")]
    assert [json.loads(text) for text in given] == ([rules] if rules else [])


@pytest.mark.parametrize(
    "values",
    [{}, {"watch": {"namespace": "training"}, "jobs": {"networkPolicy": {"extraIngress": [RULE]}},
          "workers": 4, "logFormat": "plain", "kueue": {"enabled": True}, "gangs": {"enabled": True}},
     {"jobs": {"networkPolicy": {"enabled": False}}}],
)  # fmt: skip
def test_the_controller_takes_its_arguments(values: dict[str, Any]) -> None:
    container = render(values).container
    program, *command = container["command"]
    assert program == "trainjob"
    # The last argument is wrong: it is reached only if everything before it is understood.
    answer = CliRunner().invoke(main, [*command, *container["args"], "--no-such-option"])
    assert "--no-such-option" in answer.output
    known = CliRunner().invoke(main, [*command, "--help"]).output
    for arg in container["args"]:
        assert arg.partition("=")[0] in known


def pod_specs(release: Release) -> list[dict[str, Any]]:
    return [
        release.pod["spec"],
        *(job["spec"]["template"]["spec"] for job in release.everything if job["kind"] == "Job"),
        release.hooks("test").one("Pod")["spec"],
    ]


def test_probes_ask_the_controllers_server() -> None:
    container = render().container
    paths = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert paths == {
        "startup": {"path": "/livez", "port": "http"},
        "liveness": {"path": "/livez", "port": "http"},
        "readiness": {"path": "/readyz", "port": "http"},
    }
    assert "--http-address=0.0.0.0:8080" in container["args"]
    assert yaml.safe_dump(container["env"]).count("fieldPath") == 2
