"""Kueue's real manager, as a process beside a control plane: its CRDs, its webhooks and its configuration."""

from __future__ import annotations

import json
import os
import socket
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copy
from typing import Any
from urllib.parse import urlsplit

import yaml
from testbed import Cluster, Unfit
from testbed.component import Component, Plain, check_alive
from testbed.pki import Authority
from testbed.ports import free_ports
from testbed.process import Process
from testbed.programs import module, program
from testbed.readiness import answers
from testbed.waiting import until

from support.kube.real_kube import await_crd, now

Manifest = dict[str, Any]

GROUP = "kueue.x-k8s.io"
VERSION = "v1beta2"
_WEBHOOKS, _METRICS, _VISIBILITY = "/certificates", "/etc/kueue/metrics/certs", "/visibility"
"""Where the manager has certificates in its root. No option changes the last two."""


class Kueue:
    """Kueue on a control plane; made by `running_kueue`."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self._root = folder / "root"
        self._runner = Plain(folder, die_with_us=True)
        self._host = _address_for(cluster)
        self._webhooks, self._health, self._visibility = free_ports(3)
        self._process: Process | None = None

    def install(self) -> None:
        """Create the CRDs and the webhooks of Kueue's own kinds, and the configuration."""
        authority = Authority(self._folder / "pki")
        pair = authority.issue("kueue", names=[f"IP:{self._host}"])
        for path in (_WEBHOOKS, _METRICS, _VISIBILITY):
            certificates = self._root / path.lstrip("/")
            certificates.mkdir(parents=True)
            copy(pair.certificate, certificates / "tls.crt")
            copy(pair.key, certificates / "tls.key")
        components = module("kueue") / "config" / "components"
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}})
        files = sorted((components / "crd" / "bases").glob("*.yaml"))
        crds = [yaml.safe_load(file.read_text()) for file in files]
        listed = yaml.safe_load((components / "crd" / "kustomization.yaml").read_text())["patches"]
        patched = [Path(patch["path"]).stem.rpartition("webhook_in_") for patch in listed]
        converted = {plural for _, found, plural in patched if found}
        for crd in crds:
            if crd["spec"]["names"]["plural"] in converted:
                client = self._client_config("/convert", authority)
                webhook = {"clientConfig": client, "conversionReviewVersions": ["v1"]}
                crd["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
            self.cluster.apply(crd)
        for crd in crds:
            await_crd(self.cluster, crd["metadata"]["name"])
        hooks = yaml.safe_load_all((components / "webhook" / "manifests.yaml").read_text())
        for configuration in hooks:
            self.cluster.apply(self._reached(configuration, authority))
        self._serve_visibility(components / "visibility")
        copy(program("kueue"), self._root / "kueue")
        copy(self.cluster.kubeconfig, self._root / "kubeconfig")
        (self._root / "kueue.yaml").write_text(json.dumps(self._configuration()))

    def start(self) -> None:
        """Start the manager, and return once it is ready: its webhooks are served."""
        command = ("chroot", str(self._root), "/kueue", "--config=/kueue.yaml", "--kubeconfig=/kubeconfig")
        process = self._process = self._runner.start(Component("kueue", command))
        ready = answers(f"http://{self._host}:{self._health}/readyz")

        def look() -> bool:
            check_alive(self._folder, process, "kueue")
            return ready()

        until(look, what="a manager of Kueue that is ready", seconds=90)

    def kill(self) -> None:
        """End the manager, as a crash does."""
        if self._process is not None:
            self._process.kill()

    def make_priority(self, name: str, value: int) -> None:
        head = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "WorkloadPriorityClass"}
        self.cluster.apply({**head, "metadata": {"name": name}, "value": value})

    def make_queue(
        self,
        namespace: str,
        cpus: int | str,
        queue: str = "research",
        *,
        flavor: Manifest | None = None,
        **spec: Any,
    ) -> None:
        """Create a queue, its flavor and this quota; higher priorities preempt lower ones.

        Args:
            namespace: of the queue; its flavor, which all queues there share, has this name, too.
            cpus: the quota; that of memory is enough for everything.
            queue: the name.
            flavor: adds to the flavor's spec.
            spec: adds to the spec of the queue's ClusterQueue.
        """
        self._apply("ResourceFlavor", {"name": namespace}, {"nodeLabels": {"pool": "gpu"}, **(flavor or {})})
        quotas = [{"name": "cpu", "nominalQuota": cpus}, {"name": "memory", "nominalQuota": "1Ti"}]
        flavors = [{"name": namespace, "resources": quotas}]
        common: Manifest = {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": ["cpu", "memory"], "flavors": flavors}],
            "preemption": {"withinClusterQueue": "LowerPriority"},
        }
        everywhere = f"{namespace}-{queue}"
        self._apply("ClusterQueue", {"name": everywhere}, common | spec)
        self._apply("LocalQueue", {"name": queue, "namespace": namespace}, {"clusterQueue": everywhere})

    def make_check(self, name: str) -> None:
        """Create an admission check, which `answer_check` answers."""
        self._apply("AdmissionCheck", {"name": name}, {"controllerName": "example.com/tests"})
        active = {"type": "Active", "status": "True", "reason": "Active", "message": ""}
        conditions = [{**active, "lastTransitionTime": now()}]
        self.patch_status("admissioncheck", name, {"conditions": conditions})

    def answer_check(self, workload: Manifest, check: str, state: str, **answer: Any) -> None:
        """Write the state of a Workload's admission check."""
        written = {"name": check, "state": state, "lastTransitionTime": now(), "message": "", **answer}
        meta = workload["metadata"]
        self.patch_status("workload", meta["name"], {"admissionChecks": [written]}, "-n", meta["namespace"])

    def make_remote(self, name: str, worker: Cluster) -> None:
        """Have MultiKueue run in that cluster what passes the admission check of this name."""
        config = {"kubeconfig": b64encode(worker.kubeconfig.read_bytes()).decode()}
        meta = {"name": name, "namespace": "kueue-system"}
        self.cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": config})
        source = {"kubeConfig": {"locationType": "Secret", "location": name}}
        self._apply("MultiKueueCluster", {"name": name}, {"clusterSource": source})
        self._apply("MultiKueueConfig", {"name": name}, {"clusters": [name]})
        parameters = {"apiGroup": GROUP, "kind": "MultiKueueConfig", "name": name}
        check = {"controllerName": f"{GROUP}/multikueue", "parameters": parameters}
        self._apply("AdmissionCheck", {"name": name}, check)

    def make_topology(self, name: str, *levels: str) -> None:
        """Create a topology of these node labels, the widest first."""
        self._apply("Topology", {"name": name}, {"levels": [{"nodeLabel": label} for label in levels]})

    def patch_status(self, kind: str, name: str, status: Manifest, *words: str) -> None:
        patch = json.dumps({"status": status})
        kinds = f"{kind}.{VERSION}.{GROUP}"
        self.cluster.kubectl(
            "patch", kinds, name, *words, "--subresource=status", "--type=merge", "--patch", patch
        )

    def await_collector(self) -> None:
        """Return once the garbage collector knows Workloads: it looks for new kinds every 30 seconds."""
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}
        meta = {"name": "left-behind", "namespace": "default", "ownerReferences": [owner]}
        pods = {"containers": [{"name": "main", "image": "example.com/x:1"}]}
        sets = [{"name": "main", "count": 1, "template": {"spec": pods}}]
        self._apply("Workload", meta, {"podSets": sets})
        until(lambda: not self.workloads("default"), what="the garbage collector", seconds=120)

    def workloads(self, namespace: str) -> list[Manifest]:
        found: list[Manifest] = self.cluster.get(f"workloads.{GROUP}", namespace=namespace)["items"]
        return found

    def _apply(self, kind: str, metadata: Manifest, spec: Manifest) -> None:
        head = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind}
        self.cluster.apply({**head, "metadata": metadata, "spec": spec})

    def _reached(self, configuration: Manifest, authority: Authority) -> Manifest:
        """Return the webhooks of Kueue's own kinds, which the API server reaches without a Service."""
        kept = [hook for hook in configuration["webhooks"] if _groups(hook) == {GROUP}]
        for hook in kept:
            hook["clientConfig"] = self._client_config(hook["clientConfig"]["service"]["path"], authority)
        return {**configuration, "webhooks": kept}

    def _client_config(self, path: str, authority: Authority) -> Manifest:
        bundle = b64encode(authority.certificate.read_bytes()).decode()
        return {"url": f"https://{self._host}:{self._webhooks}{path}", "caBundle": bundle}

    def _serve_visibility(self, manifests: Path) -> None:
        """Have the API server pass requests for positions in queues on to the manager."""
        for file in sorted(manifests.glob("apiservice_*.yaml")):
            served = yaml.safe_load(file.read_text())
            served["spec"]["service"]["port"] = self._visibility
            self.cluster.apply(served)
        where = served["spec"]["service"]
        meta = {"name": where["name"], "namespace": where["namespace"]}
        spec = {"type": "ExternalName", "externalName": self._host}
        self.cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec})

    def _configuration(self) -> Manifest:
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": "kueue-system",
            "health": {"healthProbeBindAddress": f"{self._host}:{self._health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": self._host, "port": self._webhooks, "certDir": _WEBHOOKS},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "visibilityServer": {"bindAddress": self._host, "bindPort": self._visibility},
            "waitForPodsReady": {"timeout": "10m"},
            "multiKueue": {"externalFrameworks": [{"name": "TrainJob.v1alpha1.trainjob.dev"}]},
            "integrations": {
                "frameworks": ["batch/job"],
                "externalFrameworks": ["TrainJob.v1alpha1.trainjob.dev"],
            },
        }


@contextmanager
def running_kueue(cluster: Cluster, folder: Path) -> Iterator[Kueue]:
    """Install Kueue into a control plane of the test's own, and run its manager.

    Raises:
        Unfit: this user can't give a program a root of its own.
    """
    if os.geteuid() != 0:
        raise Unfit("Kueue's manager has fixed paths, so it is started in a root of its own, as root")
    kueue = Kueue(cluster, folder)
    kueue.install()
    try:
        kueue.start()
        yield kueue
    finally:
        kueue.kill()


def _groups(hook: Manifest) -> set[str]:
    rules: Iterable[Manifest] = hook["rules"]
    return {group for rule in rules for group in rule["apiGroups"]}


def _address_for(cluster: Cluster) -> str:
    """Return the address of this machine at which the cluster's API server reaches it. Nothing is sent."""
    server = urlsplit(cluster.server)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect((server.hostname, server.port))
        return str(asked.getsockname()[0])
