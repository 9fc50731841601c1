"""What a test does with a cluster, whichever it is: the testbed's, kind's, or one that a kubeconfig names."""

import json
import os
import subprocess
import uuid
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from testbed import kubeconfig
from testbed.errors import TestbedError
from testbed.programs import RARELY_COLLECTED


class KubectlError(TestbedError):
    """kubectl ended with another status than 0; `stderr` is what it said."""

    def __init__(self, args: tuple[str, ...], status: int, stderr: str) -> None:
        super().__init__(f"kubectl {' '.join(args)} ended with status {status}:\n{stderr.strip()}")
        self.status = status
        self.stderr = stderr


class Cluster:
    """A running cluster, seen from outside.

    Attributes:
        kubeconfig: The file that makes its holder cluster administrator.
    """

    def __init__(
        self, kubeconfig: Path, *, kubectl: Path | str = "kubectl", helm: Path | str = "helm"
    ) -> None:
        """Takes a cluster as it is; nothing is started or checked."""
        self.kubeconfig = kubeconfig
        self.kubectl_program = str(kubectl)
        self.helm_program = str(helm)

    @cached_property
    def server(self) -> str:
        """The API server's URL."""
        return self._view()["clusters"][0]["cluster"]["server"]

    @property
    def env(self) -> dict[str, str]:
        """This process's environment, with KUBECONFIG: for programs that a test starts itself."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def kubectl(self, *args: str | Path, stdin: str | None = None, timeout: float = 60) -> str:
        """Runs kubectl and returns its stdout.

        Raises:
            KubectlError: Its status is not 0. After `timeout` seconds it is killed: status 124.
        """
        return self._run(self.kubectl_program, tuple(str(arg) for arg in args), stdin, timeout)

    def helm(self, *args: str | Path, timeout: float = 120) -> str:
        """Runs helm and returns its stdout; raises KubectlError as `kubectl` does."""
        return self._run(self.helm_program, tuple(str(arg) for arg in args), None, timeout)

    def get(
        self, kind: str, name: str = "", *, namespace: str | None = None, **options: str
    ) -> dict[str, Any]:
        """An object as a dict, or a List of them; `options` are kubectl's, such as selector='a=b'."""
        words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        found = self.kubectl("get", kind, *([name] if name else []), "-o", "json", *_in(namespace), *words)
        return json.loads(found)

    def exists(self, kind: str, name: str, *, namespace: str | None = None) -> bool:
        """Whether there is such an object."""
        return bool(self.kubectl("get", kind, name, "--ignore-not-found", "-o", "name", *_in(namespace)))

    def apply(self, manifests: str | Path | Mapping[str, Any], *, namespace: str | None = None) -> str:
        """Server-side apply of YAML text, of a file or folder, or of one object; conflicts are taken over."""
        words = ("apply", "--server-side", "--force-conflicts", *_in(namespace))
        if isinstance(manifests, Path):
            return self.kubectl(*words, "-f", manifests)
        text = manifests if isinstance(manifests, str) else json.dumps(manifests)
        return self.kubectl(*words, "-f", "-", stdin=text)

    def delete(self, kind: str, *names: str, namespace: str | None = None, wait: bool = True) -> str:
        """Deletes objects, those that exist; waits until they are gone."""
        return self.kubectl("delete", kind, *names, "--ignore-not-found", f"--wait={str(wait).lower()}",
                            *_in(namespace), timeout=180)  # fmt: skip

    def create_namespace(self, prefix: str = "test", *, labels: Mapping[str, str] | None = None) -> str:
        """Makes a namespace of a new name and returns the name, once pods can be created in it."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name, "labels": dict(labels or {})},
            }
        )
        self.kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=30s")
        return name

    def kubeconfig_of(self, service_account: str, namespace: str, folder: Path) -> Path:
        """A kubeconfig that holds a token of a service account and nothing else of ours."""
        token = self.kubectl("create", "token", service_account, "-n", namespace).strip()
        authority = folder / "ca.crt"
        authority.write_text(self._authority)
        file = folder / f"{namespace}-{service_account}.kubeconfig"
        return kubeconfig.write(
            file, server=self.server, authority=authority, user=kubeconfig.token(token), namespace=namespace
        )

    @cached_property
    def _authority(self) -> str:
        # Every cluster publishes it to its pods here.
        return self.get("configmap", "kube-root-ca.crt", namespace="default")["data"]["ca.crt"]

    def _view(self) -> dict[str, Any]:
        return json.loads(self.kubectl("config", "view", "--minify", "-o", "json"))

    def _run(self, program: str, args: tuple[str, ...], stdin: str | None, timeout: float) -> str:
        try:
            done = subprocess.run(
                (program, *args), input=stdin or "", env={**self.env, **RARELY_COLLECTED}, timeout=timeout,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise KubectlError(args, 124, f"not done after {timeout} s") from error
        if done.returncode != 0:
            raise KubectlError(args, done.returncode, done.stderr)
        return done.stdout


def _in(namespace: str | None) -> tuple[str, ...]:
    return ("-n", namespace) if namespace else ()
