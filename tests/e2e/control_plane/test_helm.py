"""The chart on a real API server: what Helm does to the objects, to the CRD and to jobs that are there.

Pods don't run here; `tests/e2e/node/test_install.py` has what needs them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed import Cluster, KubectlError
from testbed import registry as registries
from testbed.commands import run
from testbed.component import Plain
from testbed.ports import free_ports
from testbed.programs import program
from testbed.readiness import answers
from testbed.waiting import until

from support.kube.chart import CHART, ROOT
from support.kube.helm import CRD, Helm, columns_of, later_chart, own_plane, version_of
from support.kube.real_kube import await_crd

VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
LATER = "99.0.0"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
JOB = """
apiVersion: trainjob.dev/v1alpha1
kind: TrainJob
metadata: {name: digits}
spec:
  worker: {replicas: 2}
  output: {claim: {claimName: training}}
  template:
    spec: {containers: [{name: trainer, image: "example.com/digits:1", command: [python, train.py]}]}
"""


@pytest.fixture(scope="module")
def plane() -> Iterator[Cluster]:
    with own_plane("tests-helm") as cluster:
        yield cluster


@pytest.fixture
def helm(request: pytest.FixtureRequest, plane: Cluster, tmp_path: Path) -> Iterator[Helm]:
    """Helm 3, unless the test's parameter is the name of another."""
    name = getattr(request, "param", "helm")
    yield Helm(plane, plane.create_namespace("helm", labels=RESTRICTED), tmp_path, name)
    plane.delete("crd", CRD)


def uid_of_job(helm: Helm) -> str:
    uid: str = helm.cluster.get("tj", "digits", namespace=helm.namespace)["metadata"]["uid"]
    return uid


def of_release(helm: Helm, kinds: str) -> list[str]:
    return helm.kubectl("get", kinds, "-l", "app.kubernetes.io/managed-by=Helm", "-o", "name").split()


def cluster_roles(helm: Helm) -> list[str]:
    words = helm.cluster.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name").split()
    return [word.rpartition("/")[2] for word in words if f":{helm.namespace}:" in word]


def test_life_of_a_release(helm: Helm, tmp_path: Path) -> None:
    later = later_chart(tmp_path, LATER)

    assert f"created {CRD} of version {VERSION}" in helm.run_with_hook("install", "trainjob", CHART)
    assert "CustomResourceDefinition" not in helm.run("get", "manifest", "trainjob")
    assert not of_release(helm, "jobs,configmaps")
    assert helm.kubectl("get", "serviceaccounts", "-o", "name").split() == [
        "serviceaccount/default",
        "serviceaccount/trainjob",
    ]
    assert sorted(cluster_roles(helm)) == sorted(
        f"trainjob:{helm.namespace}:{name}" for name in ("controller", "controller", "edit", "view")
    )
    helm.cluster.apply(JOB, namespace=helm.namespace)
    uid = uid_of_job(helm)

    said = helm.run_with_hook("upgrade", "trainjob", later)
    assert f"from version {VERSION} to {LATER}" in said
    assert columns_of(helm.crd())[-1] == "Added"
    deployment = helm.cluster.get("deployment", "trainjob", namespace=helm.namespace)
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"].endswith(f":{LATER}")

    helm.run("rollback", "trainjob", "1")
    deployment = helm.cluster.get("deployment", "trainjob", namespace=helm.namespace)
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"].endswith(f":{VERSION}")
    assert (version_of(helm.crd()), columns_of(helm.crd())[-1]) == (LATER, "Added")

    said = helm.run_with_hook("upgrade", "trainjob", CHART, "--set", "replicas=3")
    assert f"left {CRD} alone: it is of version {LATER}, newer than {VERSION}" in said
    assert version_of(helm.crd()) == LATER

    helm.run("uninstall", "trainjob")
    assert not of_release(
        helm, "deployments,services,roles,rolebindings,networkpolicies,poddisruptionbudgets"
    )
    assert not of_release(helm, "validatingadmissionpolicies,validatingadmissionpolicybindings")
    assert not cluster_roles(helm)
    assert version_of(helm.crd()) == LATER

    helm.run_with_hook("install", "another", CHART)
    assert of_release(helm, "deployments") == ["deployment.apps/another-trainjob"]
    assert version_of(helm.crd()) == LATER
    assert uid_of_job(helm) == uid


def test_taking_over_what_kubectl_installed(helm: Helm) -> None:
    base = helm.cluster.kubectl("kustomize", ROOT / "manifests/base")
    helm.cluster.apply(base.replace("trainjob-system", helm.namespace))
    helm.cluster.apply(JOB, namespace=helm.namespace)
    uid = uid_of_job(helm)
    with pytest.raises(KubectlError, match="invalid ownership metadata"):
        helm.run("install", "trainjob", CHART)
    said = helm.run_with_hook("install", "trainjob", CHART, "--take-ownership")
    assert f"brought {CRD} from version {VERSION} to {VERSION}" in said
    assert uid_of_job(helm) == uid


def test_a_second_release_for_one_namespace(helm: Helm) -> None:
    helm.run_with_hook("install", "trainjob", CHART)
    first = cluster_roles(helm)
    second = Helm(helm.cluster, helm.cluster.create_namespace("second", labels=RESTRICTED), helm.folder)
    jobs = helm.cluster.create_namespace("training")
    second.run("install", "trainjob", CHART, "--set", f"crd.install=false,watch.namespace={jobs}")
    assert not cluster_roles(second)
    assert cluster_roles(helm) == first
    account = f"--as=system:serviceaccount:{second.namespace}:trainjob"
    assert helm.cluster.kubectl("auth", "can-i", "create", "pods", account, "-n", jobs).strip() == "yes"
    with pytest.raises(KubectlError):
        helm.cluster.kubectl("auth", "can-i", "create", "pods", account, "-n", helm.namespace)
    second.run("uninstall", "trainjob")
    assert not of_release(second, "deployments")
    assert of_release(helm, "deployments") == ["deployment.apps/trainjob"]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry on this machine that holds the chart, as Helm 3 packs and pushes it."""
    folder = tmp_path_factory.mktemp("registry")
    (port,) = free_ports(1)
    served = Plain(folder, die_with_us=True).start(registries.component(folder, f"127.0.0.1:{port}"))
    try:
        until(answers(f"http://127.0.0.1:{port}/v2/"), what="an answer of the registry", seconds=30)
        run([program("helm"), "package", CHART, "--destination", folder])
        chart = folder / f"trainjob-{VERSION}.tgz"
        run([program("helm"), "push", chart, f"oci://127.0.0.1:{port}/charts", "--plain-http"])
        yield f"127.0.0.1:{port}"
    finally:
        served.kill()


@pytest.mark.parametrize("helm", ["helm", pytest.param("helm4", marks=pytest.mark.nightly)], indirect=True)
def test_installed_from_a_registry(helm: Helm, registry: str) -> None:
    chart = (f"oci://{registry}/charts/trainjob", "--version", VERSION, "--plain-http")
    assert VERSION in helm.run_with_hook("install", "trainjob", *chart)
    assert version_of(helm.crd()) == VERSION
    helm.run_with_hook("upgrade", "trainjob", *chart, "--set", "replicas=3")
    deployment = helm.cluster.get("deployment", "trainjob", namespace=helm.namespace)
    assert deployment["spec"]["replicas"] == 3
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"].endswith(f":{VERSION}")
    helm.run("uninstall", "trainjob")
    assert not of_release(helm, "deployments")


@pytest.mark.parametrize(
    "settings", ["", pytest.param("watch.namespace=training", marks=pytest.mark.nightly)]
)
def test_of_all_secrets_the_controller_reads_its_key_alone(helm: Helm, settings: str) -> None:
    jobs = helm.cluster.create_namespace("training") if settings else helm.cluster.create_namespace("any")
    values = ("--set", settings.replace("training", jobs)) if settings else ()
    helm.run_with_hook("install", "trainjob", CHART, *values)
    asked = {
        (verb, what, namespace): _may(helm, verb, what, namespace)
        for verb in ("get", "list", "watch", "create", "update", "patch", "delete")
        for what in ("secret/trainjob-agent-key", "secret/another", "secrets")
        for namespace in (helm.namespace, jobs)
    }
    granted = {question for question, answer in asked.items() if answer}
    everywhere = ("secret/trainjob-agent-key", "secret/another", "secrets")
    looked_after = (jobs,) if settings else (helm.namespace, jobs)
    assert granted == {
        ("get", "secret/trainjob-agent-key", helm.namespace),
        *(("create", what, namespace) for what in everywhere for namespace in (helm.namespace, jobs)),
        *(("delete", what, namespace) for what in everywhere for namespace in looked_after),
    }
    helm.run("uninstall", "trainjob")


def _may(helm: Helm, verb: str, what: str, namespace: str) -> bool:
    account = f"--as=system:serviceaccount:{helm.namespace}:trainjob"
    try:
        return helm.cluster.kubectl("auth", "can-i", verb, what, account, "-n", namespace).strip() == "yes"
    except KubectlError as error:
        if error.status == 1:
            return False
        raise


OWNER = {
    "apiVersion": "trainjob.dev/v1alpha1",
    "kind": "TrainJob",
    "name": "digits",
    "uid": "1",
    "controller": True,
}
OWNED = {"ownerReferences": [OWNER]}
POD = {"spec": {"containers": [{"name": "trainer", "image": "example.com/digits:1"}]}}
PROGRAM = f"trainjob-agent-{'0' * 64}"
CLAIM = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}


def pod(**metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new", **metadata}, **POD}


def made(kind: str, name: str, api: str = "v1", **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, **fields.pop("metadata", {})},
        **fields,
    }


REPLICA_SET = OWNER | {"apiVersion": "apps/v1", "kind": "ReplicaSet"}
NAMESAKE = OWNER | {"apiVersion": "trainer.kubeflow.org/v1alpha1"}
POLICY = {"spec": {"podSelector": {}}}


REQUESTS: list[tuple[list[str], dict[str, Any] | None, str, bool]] = [
    (["create"], pod(), "", False),
    (["create"], pod(**OWNED), "", True),
    (["create"], pod(ownerReferences=[REPLICA_SET]), "", False),
    (["create"], pod(ownerReferences=[NAMESAKE]), "", False),
    (["create"], pod(ownerReferences=[OWNER | {"controller": False}]), "", False),
    (["create"], pod(**OWNED), "kube-system", False),
    (["create"], pod(**OWNED), "kube-public", False),
    (["create"], made("ConfigMap", "any"), "", False),
    (["create"], made("ConfigMap", "any", metadata=OWNED), "", False),
    (["create"], made("ConfigMap", f"{PROGRAM[:-1]}1"), "", True),
    (["create"], made("ConfigMap", f"{PROGRAM[:-1]}1"), "kube-system", False),
    (["create"], made("ConfigMap", f"{PROGRAM}1"), "", False),
    (["create"], made("Secret", "any"), "", False),
    (["create"], made("Secret", "any", metadata=OWNED), "", True),
    (["create"], made("Secret", "trainjob-agent-key"), "own", True),
    (["create"], made("Secret", "trainjob-agent-key"), "", False),
    (["create"], made("Service", "any", spec={"clusterIP": "None"}), "", False),
    (["create"], made("Service", "any", metadata=OWNED, spec={"clusterIP": "None"}), "", True),
    (["create"], made("PersistentVolumeClaim", "any", **CLAIM), "", False),
    (["create"], made("PersistentVolumeClaim", "digits-output", **CLAIM), "", True),
    (["create"], made("NetworkPolicy", "any", "networking.k8s.io/v1", **POLICY), "", False),
    (["create"], made("NetworkPolicy", "any", "networking.k8s.io/v1", metadata=OWNED, **POLICY), "", True),
    (["delete", "pod", "foreign"], None, "", False),
    (["delete", "pod", "owned"], None, "", True),
    (["delete", "secret", "foreign"], None, "", False),
    (["delete", "secret", "owned"], None, "", True),
    (["delete", "configmap", "foreign"], None, "", False),
    (["delete", "configmap", PROGRAM], None, "", True),
    (["delete", "secret", "foreign"], None, "own", False),
    (["label", "pod", "foreign", "a=b"], None, "", False),
    (["label", "pod", "owned", "a=b"], None, "", True),
    (["patch", "pod", "foreign", "-p", json.dumps({"metadata": OWNED})], None, "", False),
]
"""The words of kubectl, an object, the namespace, and whether the policy lets it pass."""


def test_what_a_stolen_account_of_the_controller_can_do(helm: Helm) -> None:
    cluster, others = helm.cluster, helm.cluster.create_namespace("others")
    helm.run_with_hook("install", "trainjob", CHART)
    cluster.apply(JOB, namespace=others)
    owner = OWNER | {"uid": cluster.get("tj", "digits", namespace=others)["metadata"]["uid"]}
    for kind, name, more in (
        ("Pod", "foreign", POD),
        ("Secret", "foreign", {}),
        ("ConfigMap", "foreign", {}),
    ):
        cluster.apply(made(kind, name, **more), namespace=others)
    for kind, more in (("Pod", POD), ("Secret", {})):
        cluster.apply(made(kind, "owned", metadata={"ownerReferences": [owner]}, **more), namespace=others)
    cluster.apply(made("ConfigMap", PROGRAM), namespace=others)
    cluster.apply(made("Secret", "foreign"), namespace=helm.namespace)

    def is_accepted(words: list[str], manifest: dict[str, Any] | None, namespace: str) -> bool:
        where = {"": others, "own": helm.namespace}.get(namespace, namespace)
        account = f"--as=system:serviceaccount:{helm.namespace}:trainjob"
        command = [*words, "--dry-run=server", account, "-n", where]
        try:
            if manifest is None:
                cluster.kubectl(*command)
            else:
                cluster.kubectl(*command, "-f", "-", stdin=json.dumps(manifest))
        except KubectlError as error:
            if "the controller of TrainJobs" in str(error):
                return False
            raise
        return True

    until(lambda: not is_accepted(["create"], pod(), ""), what="the policy in force", seconds=60)
    for words, manifest, namespace, is_right in REQUESTS:
        assert is_accepted(words, manifest, namespace) == is_right, (words, manifest, namespace)
    helm.run("uninstall", "trainjob")


WORKLOADS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: workloads.kueue.x-k8s.io
  annotations: {api-approved.kubernetes.io: unapproved}
spec:
  group: kueue.x-k8s.io
  scope: Namespaced
  names: {kind: Workload, plural: workloads}
  versions:
  - name: v1beta2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""


def test_after_an_uninstall_namespaces_with_queued_jobs_can_be_deleted(helm: Helm) -> None:
    cluster, finalizer = helm.cluster, "kueue.x-k8s.io/resource-in-use"
    free = json.dumps({"metadata": {"finalizers": None}})
    cluster.apply(WORKLOADS)
    await_crd(cluster, "workloads.kueue.x-k8s.io")
    helm.run_with_hook("install", "trainjob", CHART)
    jobs, others = cluster.create_namespace("queued"), cluster.create_namespace("others")
    cluster.apply(JOB, namespace=jobs)
    owner = OWNER | {"uid": cluster.get("tj", "digits", namespace=jobs)["metadata"]["uid"]}
    labels = {"kueue.x-k8s.io/job-uid": owner["uid"], "trainjob.dev/job": "digits"}
    for name, namespace, meta in (
        ("a", jobs, {"labels": labels, "ownerReferences": [owner]}),
        (
            "b",
            jobs,
            {"labels": labels, "ownerReferences": [owner], "finalizers": ["example.com/mine", finalizer]},
        ),
        ("c", others, {"labels": {"kueue.x-k8s.io/job-uid": "of-a-batch-job"}}),
    ):
        workload = made("Workload", name, "kueue.x-k8s.io/v1beta2")
        workload["metadata"] |= {"namespace": namespace, "finalizers": [finalizer], **meta}
        cluster.apply(workload)
    try:
        assert f"took {finalizer} off 2 Workloads" in helm.run_with_hook("uninstall", "trainjob")
        left = cluster.get("workloads", namespace=jobs)["items"]
        assert [each["metadata"].get("finalizers") for each in left] == [None, ["example.com/mine"]]
        (other,) = cluster.get("workloads", namespace=others)["items"]
        assert other["metadata"]["finalizers"] == [finalizer]
        assert not cluster_roles(helm)
        assert not of_release(helm, "jobs,serviceaccounts")
        cluster.kubectl("patch", "workload", "b", "-n", jobs, "--type=merge", "-p", free)
        cluster.kubectl("delete", "namespace", jobs, "--timeout=60s")
    finally:
        for each in json.loads(cluster.kubectl("get", "workloads", "-A", "-o", "json"))["items"]:
            name, namespace = each["metadata"]["name"], each["metadata"]["namespace"]
            cluster.kubectl("patch", "workload", name, "-n", namespace, "--type=merge", "-p", free)
        cluster.delete("crd", "workloads.kueue.x-k8s.io")
