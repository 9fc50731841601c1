"""What comes from Debian: etcd, containerd, runc, CNI plugins, Docker, a registry, Prometheus and Chromium.

These packages start services and conflict with Docker's when they are installed, so they are not: apt
downloads them, and their files are unpacked into the cache. Only plain tools and libraries are installed, and
only if they are missing. What is downloaded is the same whatever is installed here, for that changes while
the cache stays.
"""

import ctypes
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
OF_KIND = {"docker", "dockerd"}
"""What only `make kind-e2e` needs, on a machine without Docker."""
WITH_LIBRARIES = {"chromium": ("chromium", "fonts-inter")}
"""Packages that are unpacked together with all that they depend on. The others' programs need libc, and:"""
NEEDED = {
    "runc": ("libseccomp.so.2",),  # it starts itself again without LD_LIBRARY_PATH
    "dockerd": ("libdevmapper.so.1.02.1", "libsystemd.so.0"),
}
LIBC = "libc6_"
"""The file of the one dependency that stays the machine's: its loader loads no other libc."""

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
    "c++": "g++",
    "libseccomp.so.2": "libseccomp2",
    "libdevmapper.so.1.02.1": "libdevmapper1.02.1",
    "libsystemd.so.0": "libsystemd0",
}
"""Programs and libraries, and the packages that have them."""


def unpacked(name: str) -> Path:
    """The path of something in a package's files; downloads the package first if it isn't in the cache."""
    package, path = UNPACKED[name]
    need_tools(*NEEDED.get(name, ()))
    # Under the plain name, earlier versions unpacked what the machine lacked then.
    root = cache() / "debian" / (f"{package}-with-libraries" if package in WITH_LIBRARIES else package)
    if not root.exists():
        with locked(cache() / "debian" / ".lock"):
            if not root.exists():
                _download(package, root)
    return root / path


def need_tools(*names: str) -> None:
    """Sees to it that these programs and libraries are there, by installing their packages if need be.

    Raises:
        Unfit: One is missing and can't be installed: not Debian, or not root.
    """
    missing = [name for name in names if not _is_there(name)]
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


def _is_there(name: str) -> bool:
    """Whether there is a program or a library of this name, whichever package it is from."""
    if ".so." not in name:
        return shutil.which(name, path=search_path()) is not None
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _download(package: str, root: Path) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Unfit(f"{package} comes from a Debian package, and this machine has no apt-get")
    folder = root.with_name(f"{package}.unpacking")
    shutil.rmtree(folder, ignore_errors=True)
    for each in ("files", "archives/partial"):
        (folder / each).mkdir(parents=True)
    with step(f"unpack Debian's {package}"):
        if package in WITH_LIBRARIES:
            # apt believes that nothing is installed here, and leaves nothing out. Nothing gets installed, so
            # other users of apt needn't be kept out.
            (folder / "installed").touch()
            options = (f"Dir::State::status={folder}/installed", f"Dir::Cache={folder}", "Debug::NoLocking=1")
            only = ("--download-only", "--no-install-recommends", *(f"--option={each}" for each in options))
            _apt("install", *only, *WITH_LIBRARIES[package])
        else:
            _apt("download", package, cwd=folder / "archives")
        for file in (folder / "archives").glob("*.deb"):
            if not file.name.startswith(LIBC):
                run(["dpkg-deb", "--extract", file, folder / "files"])
    shutil.rmtree(root.with_name(package), ignore_errors=True)  # an earlier version's
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
