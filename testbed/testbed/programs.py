"""The programs that are built from Go modules: Kubernetes, CoreDNS, Helm, kind and others.

Versions are pinned by `testbed/go/*/go.mod` and go.sum. What is built goes to the cache, under a name
that changes with everything that went into it.
"""

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from testbed.commands import run
from testbed.locking import locked
from testbed.places import GO_MODULES, cache
from testbed.progress import step
from testbed.toolchain import architecture, go

RARELY_COLLECTED = {"GOGC": "400"}
"""Go looks for garbage at four times the size: the servers take a tenth less of a processor, and 200 MB more.

kubectl takes a fifth less, and a run of the tests starts it two thousand times.
"""
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kubectl")
NODE = ("kubelet", "kube-scheduler", "kube-proxy", "coredns", "helm", "pause")
"""Both are all that `make test-cluster` needs. Other programs are built when a test asks for them."""

FLAGS = ("-trimpath", "-mod=readonly", "-buildvcs=false")


KUBERNETES = "kubernetes-oldest" if os.environ.get("TESTBED_KUBERNETES") == "oldest" else "kubernetes"
"""The folder of the version that the cluster runs: the newest, or the oldest that the tests run with."""


@dataclass(frozen=True)
class Source:
    """What a program is built from: a folder with a go.mod, and a package in its reach."""

    module: str
    package: str = "."

    @property
    def folder(self) -> Path:
        return GO_MODULES / self.module

    @property
    def link_flags(self) -> str:
        """Strips symbols; Kubernetes' programs also learn their version, or they would report v0.0.0."""
        if self.module not in {KUBERNETES, "kubeadm"}:
            return "-s -w"
        major, minor, _ = kubernetes_version().lstrip("v").split(".")
        values = {"gitVersion": kubernetes_version(), "gitMajor": major, "gitMinor": minor}
        return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{k}={v}" for k, v in values.items())])

    @property
    def key(self) -> str:
        """Changes when the program might: sources, pinned versions, flags, architecture."""
        digest = hashlib.sha256(repr((FLAGS, self.link_flags, architecture())).encode())
        for file in sorted(file for file in self.folder.rglob("*") if file.is_file()):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()[:16]


OTHERS = {
    "coredns": Source("coredns"),
    "pause": Source("pause"),
    "helm": Source("helm", "helm.sh/helm/v3/cmd/helm"),
    "helm4": Source("helm4", "helm.sh/helm/v4/cmd/helm"),
    "kueue": Source("kueue", "sigs.k8s.io/kueue/cmd/kueue"),
    "actionlint": Source("release", "github.com/rhysd/actionlint/cmd/actionlint"),
    "krew": Source("release", "sigs.k8s.io/krew/cmd/krew"),
    "syft": Source("syft", "github.com/anchore/syft/cmd/syft"),
    "scheduler-plugins": Source("scheduler-plugins", "sigs.k8s.io/scheduler-plugins/cmd/scheduler"),
    "volcano": Source("volcano", "volcano.sh/volcano/cmd/scheduler"),
    "kwok": Source("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    "versitygw": Source("versitygw", "github.com/versity/versitygw/cmd/versitygw"),
    "kube-router": Source("kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"),
    "kubeadm": Source("kubeadm", "k8s.io/kubernetes/cmd/kubeadm"),
    "kind": Source("kind", "sigs.k8s.io/kind"),
    "etcd": Source("kind", "go.etcd.io/etcd/server/v3"),
    "coredns-kubeadm": Source("kind", "./coredns"),
    "local-path-provisioner": Source("kind", "github.com/rancher/local-path-provisioner"),
    "runc": Source("kind", "./runc"),
}


def kubernetes_version() -> str:
    """The version that go.mod pins, such as v1.37.2."""
    text = (GO_MODULES / KUBERNETES / "go.mod").read_text()
    found = re.search(r"k8s\.io/kubernetes (v\d+\.\d+\.\d+)", text)
    assert found, f"go/{KUBERNETES}/go.mod names no version of Kubernetes"
    return found[1]


def source(name: str) -> Source:
    """Where a program's source is."""
    return OTHERS.get(name) or Source(KUBERNETES, f"k8s.io/kubernetes/cmd/{name}")


def program(name: str) -> Path:
    """The path of a program; builds it first if it isn't in the cache. That can take minutes."""
    built = _place(name)
    if not built.exists():
        with locked(cache() / "bin" / ".lock"):
            if not built.exists():
                _build(source(name), built)
    return built


def missing() -> list[str]:
    """Those of the control plane and the node that aren't built, in the order in which to build them."""
    return [name for name in (*CONTROL_PLANE, *NODE) if not _place(name).exists()]


def module(name: str) -> Path:
    """The unpacked Go module that a program is built from, with what else is in it, such as manifests."""
    of = source(name)
    path = of.package.partition("/cmd/")[0]
    found = run(
        [go(), "mod", "download", "-json", path],
        cwd=of.folder,
        env={"GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"},
    )
    return Path(json.loads(found)["Dir"])


def _place(name: str) -> Path:
    of = source(name)
    return cache() / "bin" / f"{of.module}-{of.key}" / name


def _build(of: Source, built: Path) -> None:
    compiler = go()
    built.parent.mkdir(parents=True, exist_ok=True)
    unfinished = built.with_name(f".{built.name}")
    with step(f"build {built.name} from {of.package if of.package != '.' else f'go/{of.module}'}"):
        run(
            [compiler, "build", "-ldflags", of.link_flags, "-o", unfinished, of.package],
            cwd=of.folder,
            env={
                "CGO_ENABLED": "0",
                "GOCACHE": str(_scraps()),
                "GOFLAGS": " ".join(FLAGS),
                "GOTOOLCHAIN": "local",
                "GOWORK": "off",
                "GOOS": "",
                "GOARCH": "",
            },
        )
    unfinished.rename(built)
    if not missing():
        shutil.rmtree(_scraps())


def _scraps() -> Path:
    """What the compiler keeps from program to program: gigabytes, of no use once there are all."""
    return cache() / "go-build"


def forget_old() -> None:
    """Deletes what earlier versions of the go.mod files built."""
    wanted = {f"{folder.name}-{Source(folder.name).key}" for folder in GO_MODULES.iterdir()}
    for folder in (cache() / "bin").glob("*-*"):
        if folder.name not in wanted:
            shutil.rmtree(folder)
