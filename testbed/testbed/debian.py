"""What comes from Debian: etcd, containerd, runc, CNI plugins, Docker, a registry, Prometheus and Chromium.

These packages start services and conflict with Docker's when they are installed, so they are not: apt
downloads them, and their files are unpacked into the cache. Only plain tools are installed, and only if they
are missing.
"""

import os
import shutil
from pathlib import Path

from testbed.commands import run
from testbed.errors import TestbedError, Unfit
from testbed.locking import locked
from testbed.places import cache
from testbed.progress import step

UNPACKED = {
    "etcd": ("etcd-server", "usr/bin/etcd"),
    "containerd": ("containerd", "usr/bin/containerd"),
    "ctr": ("containerd", "usr/bin/ctr"),
    "runc": ("runc", "usr/sbin/runc"),
    "cni": ("containernetworking-plugins", "usr/lib/cni"),
    "docker": ("docker.io", "usr/bin/docker"),
    "dockerd": ("docker.io", "usr/sbin/dockerd"),
    "docker-registry": ("docker-registry", "usr/bin/docker-registry"),
    "prometheus": ("prometheus", "usr/bin/prometheus"),
    "promtool": ("prometheus", "usr/bin/promtool"),
    "chromium": ("chromium", "usr/lib/chromium/chromium"),
}
WITH_LIBRARIES = {"chromium": ("chromium", "fonts-inter")}
"""Packages that are unpacked together with the libraries that this machine lacks for them."""

TOOLS = {
    "openssl": "openssl",
    "ip": "iproute2",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ipset": "ipset",
    "unshare": "util-linux",
    "mount": "mount",
    "buildah": "buildah",
    "skopeo": "skopeo",
    "debootstrap": "debootstrap",
}


def unpacked(name: str) -> Path:
    """The path of something in a package's files; downloads the package first if it isn't in the cache."""
    package, path = UNPACKED[name]
    root = cache() / "debian" / package
    if not root.exists():
        with locked(cache() / "debian" / ".lock"):
            if not root.exists():
                _download(package, root)
    return root / path


def need_tools(*names: str) -> None:
    """Sees to it that these programs are on PATH, by installing their packages if need be.

    Raises:
        Unfit: One is missing and can't be installed: not Debian, or not root.
    """
    missing = [name for name in names if not shutil.which(name, path=search_path())]
    if not missing:
        return
    packages = sorted({TOOLS[name] for name in missing})
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Unfit(
            f"{', '.join(missing)} not found: install {' '.join(packages)} (these are Debian's names)"
        )
    with step(f"apt-get install {' '.join(packages)}"):
        _apt("install", "--no-install-recommends", *packages)


def search_path() -> str:
    """PATH with the folders of administrators' programs, which a plain user's often lacks."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _download(package: str, root: Path) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Unfit(f"{package} comes from a Debian package, and this machine has no apt-get")
    folder = root.with_name(f"{package}.unpacking")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "files").mkdir(parents=True)
    with step(f"unpack Debian's {package}"):
        if package in WITH_LIBRARIES:
            # Nothing is installed, so other users of apt needn't be kept out.
            options = ("-o", f"Dir::Cache::archives={folder}", "-o", "Debug::NoLocking=1")
            only = ("--download-only", "--reinstall", "--no-install-recommends")
            _apt("install", *only, *options, *WITH_LIBRARIES[package])
        else:
            _apt("download", package, cwd=folder)
        for file in folder.glob("*.deb"):
            run(["dpkg-deb", "--extract", file, folder / "files"])
    (folder / "files").rename(root)
    shutil.rmtree(folder)


def _apt(*words: str, cwd: Path | None = None) -> None:
    """Runs apt-get; if it fails, again with fresh lists: a bare machine has none, old ones are wrong."""
    command = ["apt-get", "--yes", "--quiet", *words]
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(command, cwd=cwd, env=quiet)
    except TestbedError:
        if os.geteuid() != 0:
            raise
        run(["apt-get", "--quiet", "update"], env=quiet)
        run(command, cwd=cwd, env=quiet)
