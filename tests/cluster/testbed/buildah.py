"""Builds images without Docker, in a store of our own."""

from collections.abc import Mapping
from pathlib import Path

from testbed.commands import run
from testbed.places import cache

AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
DRIVER = ("--storage-driver", "overlay")
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Buildah:
    """buildah with its storage in the cache, so that the user's own images are left alone."""

    def __init__(self) -> None:
        root = cache() / "buildah"
        self._words = ("buildah", *("--root", root / "root", "--runroot", root / "run"), *DRIVER)
        root.mkdir(parents=True, exist_ok=True)
        # Unless told otherwise it makes /etc/cni for networks that these builds don't have.
        config = root / "containers.conf"
        config.write_text(f'[network]\nnetwork_config_dir = "{root}/cni"\n')
        self._env = {"CONTAINERS_CONF": str(config)}

    def has(self, image: str) -> bool:
        """Whether there is such an image."""
        return bool(self._run("images", "--quiet", "--filter", f"reference={image}").strip())

    def build(self, image: str, context: Path, *, target: str | None, arguments: Mapping[str, str]) -> None:
        """Builds a Dockerfile with this machine's network and certificate authorities; layers are cached."""
        words = ["--isolation", "chroot", "--network", "host", "--layers", "--format", "oci", "--tag", image]
        words += ["--target", target] if target else []
        words += [f"--build-arg={name}={value}" for name, value in arguments.items()]
        words += ["--volume", f"{AUTHORITIES}:{AUTHORITIES}:ro"] if AUTHORITIES.exists() else []
        self._run("bud", "--quiet", *words, str(context))

    def commit_folder(self, folder: Path, image: str) -> None:
        """Makes an image of a folder with a root file system."""
        container = self._run("from", "scratch").strip()
        self._run("add", "--quiet", container, folder, "/")
        settings = (f"--env={PATH}", "--env=LANG=C.UTF-8", "--cmd=python3")
        self._run("config", *settings, container)
        self._run("commit", "--quiet", "--format", "oci", "--rm", container, image)

    def push(self, image: str, layout: Path) -> None:
        """Writes an image to an OCI layout, uncompressed: it travels from disk to disk."""
        self._run("push", "--quiet", "--disable-compression", image, f"oci:{layout}:{image}")

    def _run(self, *words: str | Path) -> str:
        return run((*self._words, *words), env=self._env)
