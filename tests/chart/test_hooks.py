"""The CRD is brought up to date by a hook, and is in no release: a rollback must not put an old one back."""

from __future__ import annotations

import pytest
import yaml

from support.kube.chart import CHART, ROOT, Manifest, documents, events_of, render
from trainjob.installation.__main__ import main


def test_the_crd_is_no_object_of_the_chart() -> None:
    assert "CustomResourceDefinition" not in render().everything.kinds
    assert not (CHART / "crds").exists()


def test_the_hook_carries_the_crd() -> None:
    hooks = render().hooks("pre-install")
    (text,) = hooks.one("ConfigMap")["data"].values()
    assert documents(text) == documents((ROOT / "manifests/crd/crd.yaml").read_text())
    (volume,) = hooks.one("Job")["spec"]["template"]["spec"]["volumes"]
    assert volume["configMap"]["name"] == hooks.one("ConfigMap")["metadata"]["name"]


def test_helm_keeps_a_crd_that_got_into_a_release() -> None:
    crd = yaml.safe_load((ROOT / "manifests/crd/crd.yaml").read_text())
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_it_runs_before_install_and_upgrade_alone() -> None:
    kinds = {"ConfigMap", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"}
    release = render()
    assert release.hooks("pre-install").kinds == kinds
    assert all(
        set(events_of(hook)) in ({"pre-install", "pre-upgrade"}, {"test"})
        for hook in release.everything
        if events_of(hook)
    )
    for event in ("pre-install", "test"):
        for hook in release.hooks(event):
            policy = hook["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
            assert policy == "before-hook-creation,hook-succeeded"


def test_what_a_hook_needs_is_there_before_it() -> None:
    release = render()
    assert release.hooks("pre-install")[-1]["kind"] == "Job"
    assert release.hooks("pre-install")[-2]["kind"] == "ClusterRoleBinding"
    assert release.hooks("test")[-1]["kind"] == "Pod"
    assert release.hooks("test")[-2]["kind"] == "RoleBinding"


def test_the_hooks_accounts_may_do_one_thing() -> None:
    release = render()
    crd_role = release.hooks("pre-install").one("ClusterRole")
    assert [(rule.get("resourceNames"), rule["resources"], rule["verbs"]) for rule in crd_role["rules"]] == [
        (None, ["customresourcedefinitions"], ["create"]),
        (["trainjobs.trainjob.dev"], ["customresourcedefinitions"], ["get", "update"]),
    ]
    (rule,) = release.hooks("test").one("Role")["rules"]
    assert rule == {"apiGroups": ["trainjob.dev"], "resources": ["trainjobs"], "verbs": ["create"]}
    for event in ("pre-install", "test"):
        hooks = release.hooks(event)
        account = hooks.one("ServiceAccount")["metadata"]
        for hook in hooks:
            if hook["kind"].endswith("Binding"):
                assert [(s["name"], s["namespace"]) for s in hook["subjects"]] == [
                    (account["name"], account["namespace"])
                ]
                assert hook["roleRef"]["name"] in hooks.names(hook["roleRef"]["kind"])
        assert pod_of(hooks[-1])["serviceAccountName"] == account["name"]


def test_the_programs_take_their_arguments() -> None:
    release = render({"watch": {"namespace": "training"}})
    for event in ("pre-install", "test"):
        (container,) = pod_of(release.hooks(event)[-1])["containers"]
        assert container["command"] == ["python", "-m", "trainjob.installation"]
        name, *arguments = container["args"]
        command = main.commands[name]
        # The file that the ConfigMap is mounted as isn't here.
        arguments = [__file__ if argument == "/crd/crd.yaml" else argument for argument in arguments]
        assert command.make_context(name, arguments).params.keys() == {p.name for p in command.params}
    assert "--url=http://trainjob.trainjob-system.svc:8080/readyz" in container["args"]
    assert "--namespace=training" in container["args"]


@pytest.mark.parametrize("namespace", ["", "training"])
def test_after_an_uninstall_kueues_finalizers_go(namespace: str) -> None:
    assert not render().hooks("post-delete")
    release = render({"kueue": {"enabled": True}, "watch": {"namespace": namespace}})
    hooks = release.hooks("post-delete")
    role = "Role" if namespace else "ClusterRole"
    assert [hook["kind"] for hook in hooks] == ["ServiceAccount", role, f"{role}Binding", "Job"]
    assert [(rule["apiGroups"], rule["resources"], rule["verbs"]) for rule in hooks[1]["rules"]] == [
        (["kueue.x-k8s.io"], ["workloads"], ["list", "patch"])
    ]
    assert [hook["metadata"].get("namespace", "") for hook in hooks[1:3]] == [namespace, namespace]
    account = hooks[0]["metadata"]
    (subject,) = hooks[2]["subjects"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert hooks[2]["roleRef"]["name"] == hooks[1]["metadata"]["name"]
    assert pod_of(hooks[-1])["serviceAccountName"] == account["name"]
    (container,) = pod_of(hooks[-1])["containers"]
    assert container["args"] == ["workloads", *([f"--namespace={namespace}"] if namespace else [])]
    main.commands["workloads"].make_context("workloads", container["args"][1:])


def pod_of(manifest: Manifest) -> Manifest:
    spec: Manifest = manifest["spec"]
    return spec["template"]["spec"] if "template" in spec else spec
