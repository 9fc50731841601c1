"""Kueue's real manager, as a process beside a control plane: its CRDs, its webhooks and its configuration."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from testbed import Cluster, Unfit
from testbed.component import Component, Plain, check_alive
from testbed.pki import Authority
from testbed.ports import free_ports
from testbed.process import Process
from testbed.programs import module, program
from testbed.readiness import answers
from testbed.waiting import until

from support.kube.real_kube import await_crd

Manifest = dict[str, Any]

GROUP = "kueue.x-k8s.io"
VERSION = "v1beta2"
_CERTIFICATES = "/etc/kueue/metrics/certs"
"""Where the manager looks for a certificate if it makes none itself; no option changes that."""

_START = f"""\
set -e
mount -t tmpfs tmpfs "$0"
mkdir "$0/upper" "$0/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$0/upper,workdir=$0/work" /etc
mkdir -p {_CERTIFICATES}
cp "$1/tls.crt" "$1/tls.key" {_CERTIFICATES}
shift
exec "$@"
"""
"""Puts the certificates there for the manager alone: in a mount namespace of its own."""


class Kueue:
    """Kueue on a control plane; made by `running_kueue`."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self._runner = Plain(folder, die_with_us=True)
        self._webhooks, self._health = free_ports(2)
        self._process: Process | None = None

    def install(self) -> None:
        """Create the CRDs and the webhooks of Kueue's own kinds, and the configuration."""
        certificates = self._folder / "certificates"
        certificates.mkdir()
        authority = Authority(self._folder / "pki")
        pair = authority.issue("kueue", names=["DNS:localhost", "IP:127.0.0.1"])
        (certificates / "tls.crt").write_bytes(pair.certificate.read_bytes())
        (certificates / "tls.key").write_bytes(pair.key.read_bytes())
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
        (self._folder / "kueue.yaml").write_text(json.dumps(self._configuration(certificates)))

    def start(self) -> None:
        """Start the manager, and return once it is ready: its webhooks are served."""
        inner = (
            str(program("kueue")),
            f"--config={self._folder / 'kueue.yaml'}",
            f"--kubeconfig={self.cluster.kubeconfig}",
        )
        private = self._folder / "private"
        private.mkdir(exist_ok=True)
        certificates = str(self._folder / "certificates")
        wrapped = ("unshare", "--mount", "sh", "-c", _START, str(private), certificates, *inner)
        process = self._process = self._runner.start(Component("kueue", wrapped))
        ready = answers(f"http://127.0.0.1:{self._health}/readyz")

        def look() -> bool:
            check_alive(self._folder, process, "kueue")
            return ready()

        until(look, what="a manager of Kueue that is ready", seconds=90)

    def kill(self) -> None:
        """End the manager, as a crash does."""
        if self._process is not None:
            self._process.kill()

    def make_queue(self, namespace: str, cpus: int) -> None:
        """Create the queue `research`, with a flavor and this quota; higher priorities preempt lower ones."""
        meta = {"name": namespace}
        self._apply("ResourceFlavor", meta, {"nodeLabels": {"pool": "gpu"}})
        quota = {"name": "cpu", "nominalQuota": cpus}
        flavors = [{"name": meta["name"], "resources": [quota]}]
        spec: Manifest = {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}],
            "preemption": {"withinClusterQueue": "LowerPriority"},
        }
        self._apply("ClusterQueue", meta, spec)
        self._apply("LocalQueue", {"name": "research", "namespace": namespace}, {"clusterQueue": namespace})

    def workloads(self, namespace: str) -> list[Manifest]:
        found: list[Manifest] = self.cluster.get(f"workloads.{GROUP}", namespace=namespace)["items"]
        return found

    def _apply(self, kind: str, metadata: Manifest, spec: Manifest) -> None:
        head = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind}
        self.cluster.apply({**head, "metadata": metadata, "spec": spec})

    def _reached(self, configuration: Manifest, authority: Authority) -> Manifest:
        """Return the webhooks of Kueue's own kinds, which the API server reaches at 127.0.0.1."""
        kept = [hook for hook in configuration["webhooks"] if _groups(hook) == {GROUP}]
        for hook in kept:
            hook["clientConfig"] = self._client_config(hook["clientConfig"]["service"]["path"], authority)
        return {**configuration, "webhooks": kept}

    def _client_config(self, path: str, authority: Authority) -> Manifest:
        bundle = b64encode(authority.certificate.read_bytes()).decode()
        return {"url": f"https://127.0.0.1:{self._webhooks}{path}", "caBundle": bundle}

    def _configuration(self, certificates: Path) -> Manifest:
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": "kueue-system",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self._webhooks, "certDir": str(certificates)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "featureGates": {"VisibilityOnDemand": False},
            "waitForPodsReady": {"timeout": "10m"},
            "integrations": {
                "frameworks": ["batch/job"],
                "externalFrameworks": ["TrainJob.v1alpha1.trainjob.dev"],
            },
        }


@contextmanager
def running_kueue(cluster: Cluster, folder: Path) -> Iterator[Kueue]:
    """Install Kueue into a control plane of the test's own, and run its manager.

    Raises:
        Unfit: this user can't make mount namespaces.
    """
    if os.geteuid() != 0:
        raise Unfit("Kueue's manager is started in a mount namespace of its own, which takes root")
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
