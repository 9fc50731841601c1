"""The base image: a minimal Debian with Python, made of Debian's packages, for there may be no registry."""

import os
import shutil
from pathlib import Path

from testbed.buildah import Buildah
from testbed.commands import run
from testbed.debian import need_tools
from testbed.errors import Unfit
from testbed.places import cache
from testbed.progress import step

NAME = "localhost/python-base:bookworm"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "python3,python3-venv,ca-certificates"
# Nothing at run time needs them, and images are loaded often.
UNNEEDED = (
    "usr/share/doc/*", "usr/share/man/*", "usr/share/locale/*", "usr/share/info/*", "usr/share/lintian/*",
    "var/lib/apt/lists/*", "var/cache/apt/*", "var/log/*", "var/cache/debconf/*-old", "var/lib/dpkg/*-old",
)  # fmt: skip


def need_base_image(buildah: Buildah) -> None:
    """Makes the image if buildah doesn't have it. TRAINJOB_DEBIAN_MIRROR names another mirror."""
    if buildah.has(NAME):
        return
    if os.geteuid() != 0:
        raise Unfit("images are built by root")
    need_tools("debootstrap")
    with step("base image: a minimal Debian with Python"):
        root = cache() / "base-image"
        shutil.rmtree(
            root, ignore_errors=True
        )  # of a run that was killed; debootstrap leaves no mounts behind
        mirror = os.environ.get("TRAINJOB_DEBIAN_MIRROR", MIRROR)
        run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", root, mirror])
        _slim(root)
        buildah.commit_folder(root, NAME)
        shutil.rmtree(root)


def _slim(root: Path) -> None:
    for pattern in UNNEEDED:
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    (root / "usr/bin/python").symlink_to("python3")
