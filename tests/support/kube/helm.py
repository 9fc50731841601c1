"""Helm on a control plane without nodes: what a kubelet would do with the chart's hook is done here.

The hook's Job gets its pod from the controller-manager, and its program runs as a process with the token of
the pod's own service account: what that account may not do fails here as it would in the pod.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from testbed import Cluster, KubectlError, plain_tier
from testbed.programs import program
from testbed.waiting import until

from support.kube.chart import CHART

CRD = "trainjobs.trainjob.dev"
HOOK_SECONDS = 60


@contextmanager
def own_plane(name: str, **options: Any) -> Iterator[Cluster]:
    """A control plane of its own: the CRD and cluster-wide roles are changed in it."""
    try:
        yield plain_tier.start(name, die_with_us=True, **options)
    finally:
        plain_tier.stop(name)


class Helm:
    """Helm, with one namespace to install into; `name` is that of the program: `helm` is Helm 3."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, name: str = "helm") -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.program = program(name)

    def run(self, *args: str | Path) -> str:
        """A command that has no hook to wait for."""
        done = subprocess.run(self._command(*args), **self._options(), timeout=HOOK_SECONDS, check=False)
        if done.returncode:
            raise KubectlError(tuple(map(str, args)), done.returncode, done.stderr)
        return str(done.stdout)

    def run_with_hook(self, verb: str, release: str, *args: str | Path) -> str:
        """Install, upgrade or uninstall: returns what the hook's program said, once all of it is done."""
        command = self._command(verb, release, *args, "--timeout", "60s")
        with subprocess.Popen(command, **self._options()) as helm:
            try:
                said = self._be_the_kubelet(release, "uninstall" if verb == "uninstall" else "crd", helm)
                _, errors = helm.communicate(timeout=HOOK_SECONDS)
            finally:
                helm.kill()
        assert helm.returncode == 0, f"helm {verb}: {errors}"
        return said

    def kubectl(self, *args: str) -> str:
        return self.cluster.kubectl(*args, "-n", self.namespace)

    def crd(self) -> dict[str, Any]:
        return self.cluster.get("crd", CRD)

    def _be_the_kubelet(self, release: str, hook: str, helm: subprocess.Popen[str]) -> str:
        pods: list[dict[str, Any]] = []

        def look() -> bool:
            assert helm.poll() is None, f"helm ended before its hook: {helm.communicate()[1]}"
            selector = f"app.kubernetes.io/instance={release},app.kubernetes.io/component={hook}"
            pods[:] = self.cluster.get("pods", namespace=self.namespace, selector=selector)["items"]
            return bool(pods)

        until(look, what="a pod of the hook's Job", seconds=HOOK_SECONDS)
        said = self._run_program(pods[0]["spec"])
        ended = {"status": {"phase": "Succeeded"}}
        name = pods[0]["metadata"]["name"]
        self.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps(ended))
        return said

    def _run_program(self, spec: dict[str, Any]) -> str:
        (container,) = spec["containers"]
        args = container["args"]
        for volume in (v for v in spec.get("volumes", ()) if "configMap" in v):
            data = self.cluster.get("configmap", volume["configMap"]["name"], namespace=self.namespace)[
                "data"
            ]
            file = self.folder / "crd.yaml"
            file.write_text(data["crd.yaml"])
            name, path = args
            assert path == f"{container['volumeMounts'][0]['mountPath']}/crd.yaml"
            args = [name, file]
        access = self.cluster.kubeconfig_of(spec["serviceAccountName"], self.namespace, self.folder)
        _, *module = container["command"]
        done = run_installation("--kubeconfig", access, *args, module=module)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _command(self, *args: str | Path) -> list[str | Path]:
        return [self.program, "--namespace", self.namespace, *args]

    def _options(self) -> dict[str, Any]:
        homes = {f"HELM_{name}_HOME": str(self.folder / "helm") for name in ("CACHE", "CONFIG", "DATA")}
        env = {**self.cluster.env, **homes}
        return {"env": env, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def run_installation(
    *args: str | Path, module: Sequence[str] = ("-m", "trainjob.installation")
) -> subprocess.CompletedProcess[str]:
    """The program of the chart's hooks, as a process here."""
    return subprocess.run(
        [sys.executable, *module, *args], capture_output=True, text=True, timeout=HOOK_SECONDS, check=False
    )


def later_chart(folder: Path, version: str) -> Path:
    """The chart of a later release, whose CRD shows one more column."""
    chart = folder / f"chart-{version}"
    shutil.copytree(CHART, chart)
    described = yaml.safe_load((chart / "Chart.yaml").read_text()) | {
        "version": version,
        "appVersion": version,
    }
    (chart / "Chart.yaml").write_text(yaml.safe_dump(described))
    crd = yaml.safe_load((chart / "files/crd.yaml").read_text())
    crd["metadata"]["annotations"]["trainjob.dev/version"] = version
    column = {"name": "Added", "type": "string", "jsonPath": ".spec.managedBy"}
    crd["spec"]["versions"][0]["additionalPrinterColumns"].append(column)
    (chart / "files/crd.yaml").write_text(yaml.safe_dump(crd, sort_keys=False))
    return chart


def columns_of(crd: dict[str, Any]) -> list[str]:
    return [column["name"] for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]]


def version_of(crd: dict[str, Any]) -> str:
    version: str = crd["metadata"]["annotations"]["trainjob.dev/version"]
    return version
