"""The chart on a real API server: what Helm does to the objects, to the CRD and to jobs that are there.

Pods don't run here; `tests/e2e/node/test_install.py` has what needs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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


@pytest.mark.parametrize("helm", ["helm", "helm4"], indirect=True)
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


@pytest.mark.parametrize("settings", ["", "watch.namespace=training"])
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
