"""kind on a machine without Docker or a registry: its node image, and the project's images as archives.

kind itself, its start-up scripts and the programs of a node come from Go modules, the rest from Debian.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed import base_image, docker, programs
from testbed.buildah import Buildah
from testbed.commands import run
from testbed.containerd import PAUSE
from testbed.debian import need_tools
from testbed.images import need_images, need_pause
from testbed.layouts import Layout
from testbed.locking import locked
from testbed.places import TESTBED, cache
from testbed.programs import kubernetes_version, program
from testbed.progress import step
from testbed.toolchain import architecture

RECIPE = TESTBED / "kind"
PROXY = f"registry.k8s.io/kube-proxy:{kubernetes_version()}"
PROVISIONER = "localhost/local-path-provisioner:1"
# Of kind's files for its node image: those that start a node. The rest is about programs of its own image.
STARTING = (
    "usr/local/bin/entrypoint", "kind/bin/*", "etc/default/kubelet", "etc/sysctl.d/*",
    "etc/systemd/system/kubelet*", "etc/systemd/system/kubelet.service.d/*",
    "etc/systemd/system/undo-mount-hacks.service",
)  # fmt: skip


def node_image() -> str:
    """The name of the node image."""
    return f"localhost/kind-node:{kubernetes_version()}"


def enter(command: Sequence[str]) -> int:
    """Runs a command beside a Docker engine that has the node image; its exit status.

    `docker`, `kind`, `kubectl` and `helm` are on its PATH. TRAINJOB_KIND_NODE_IMAGE names the node image, and
    TRAINJOB_KIND_ARCHIVE the archive of the project's images.
    """
    docker.check()
    archive = need_archive()
    node = need_node_image()
    clients = [str(program(name).parent) for name in ("kind", "kubectl", "helm")]
    env = {
        "PATH": os.pathsep.join(clients),
        "TRAINJOB_KIND_NODE_IMAGE": node_image(),
        "TRAINJOB_KIND_ARCHIVE": str(archive),
    }
    with docker.running() as engine:
        with step("load kind's node image"):
            engine.call("load", "--quiet", "--input", node)
        return engine.enter(command, env)


def need_archive() -> Path:
    """An archive of the project's images, built from the working tree."""
    images = {name: layout for name, layout in need_images().items() if name != PAUSE}
    (layout,) = set(images.values())
    digests = [(layout.entry(name) or {})["digest"] for name in images]
    key = hashlib.sha256(repr(digests).encode()).hexdigest()[:16]
    return _kept("images", key, lambda file: layout.archive(list(images), file))


def need_node_image() -> Path:
    """An archive of the node image; builds it first if it isn't in the cache."""
    files = sorted(file for file in RECIPE.rglob("*") if file.is_file())
    digest = hashlib.sha256(base_image.NAME.encode())
    for each in (*_programs().values(), *files):
        content = each.read_bytes() if each in files else str(each).encode()  # a program's path has a key
        digest.update(each.name.encode() + b"\0" + content)
    return _kept("node", digest.hexdigest()[:16], _build)


def _kept(name: str, key: str, make: Callable[[Path], None]) -> Path:
    """An archive in the cache, made if it isn't there; then older ones of that name are deleted."""
    folder = cache() / "kind"
    archive = folder / f"{name}-{key}.tar"
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with locked(cache() / "images" / ".lock"), step(f"make {archive.name}"):
            for older in folder.glob(f"{name}-*.tar"):
                older.unlink()
            make(archive)
    return archive


def _programs() -> dict[str, Path]:
    """What the node image is made of, by the names that its Dockerfile knows, or that images have."""
    names = ("kubeadm", "kubectl", "kubelet", "runc", "kube-apiserver", "kube-controller-manager",
             "kube-scheduler", "kube-proxy", "etcd", "local-path-provisioner")  # fmt: skip
    return {**{name: program(name) for name in names}, "coredns": program("coredns-kubeadm")}


def _build(archive: Path) -> None:
    need_tools("buildah")
    buildah = Buildah()
    base_image.need_base_image(buildah)
    context = cache() / "kind" / "context"
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(RECIPE, context)
    (context / "programs").mkdir()
    for name, file in _programs().items():
        shutil.copyfile(file, context / "programs" / name)
        (context / "programs" / name).chmod(0o755)
    root = context / "root"
    _copy_starting_files(root)
    (root / "kind" / "version").write_text(kubernetes_version())
    for folder in ("all", "control-plane"):
        (root / "kind" / "images" / folder).mkdir(parents=True)
    arguments = {"BASE_IMAGE": base_image.NAME}
    buildah.build(PROXY, context, target="proxy", arguments=arguments)
    buildah.save(PROXY, root / "kind" / "images" / "all" / "kube-proxy.tar")
    _write_images(context)
    buildah.build(node_image(), context, target="node", arguments=arguments)
    unfinished = archive.with_name(".node.tar")
    unfinished.unlink(missing_ok=True)
    buildah.save(node_image(), unfinished)
    unfinished.rename(archive)
    shutil.rmtree(context)


def _copy_starting_files(root: Path) -> None:
    files = programs.module("kind") / "images" / "base" / "files"
    for pattern in STARTING:
        for file in files.glob(pattern):
            if file.is_file():
                copy = root / file.relative_to(files)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_bytes())
                copy.chmod(0o755 if file.read_bytes().startswith(b"#!") else 0o644)


def _write_images(context: Path) -> None:
    """The images of one program each, under the names that kubeadm uses; pause has a name of our own."""
    images = context / "root" / "kind" / "images"
    words = ("config", "images", "list", f"--kubernetes-version={kubernetes_version()}")
    listed = run([program("kubeadm"), *words])
    for image in (*listed.split(), PROVISIONER):
        name = image.rpartition("/")[2].partition(":")[0]
        if name in {"pause", "kube-proxy"}:
            continue
        layout = Layout(context / "layouts" / name)
        built = context / "programs" / name
        layout.write_static(image, built, architecture(), folder="usr/local/bin", user="0")
        on_all = name in {"coredns", "local-path-provisioner"}
        layout.archive([image], images / ("all" if on_all else "control-plane") / f"{name}.tar")
    need_pause()[PAUSE].archive([PAUSE], images / "all" / "pause.tar")
