"""Builds images without Docker, in a store of our own."""

from collections.abc import Collection, Mapping
from pathlib import Path

from testbed.commands import run
from testbed.places import cache
from testbed.stages import stages_of

AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
DRIVER = "overlay"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Buildah:
    """buildah with its storage in the cache, so that the user's own images are left alone."""

    def __init__(self) -> None:
        root = cache() / "buildah"
        places = ("--root", root / "root", "--runroot", root / "run")
        self._words = ("buildah", *places, "--storage-driver", DRIVER)
        self._store = f"containers-storage:[{DRIVER}@{root}/root+{root}/run]"
        root.mkdir(parents=True, exist_ok=True)
        # By default it makes /etc/cni for networks that these builds don't have.
        config = root / "containers.conf"
        config.write_text(f'[network]\nnetwork_config_dir = "{root}/cni"\n')
        self._env = {"CONTAINERS_CONF": str(config)}

    def has(self, image: str) -> bool:
        """Whether there is such an image."""
        return bool(self._run("images", "--quiet", "--filter", f"reference={image}").strip())

    def build(self, image: str, context: Path, *, target: str | None, arguments: Mapping[str, str]) -> None:
        """Builds a Dockerfile with this machine's network and certificate authorities.

        Every step is cached. The stages on the way to the target get names, so that `prune` can tell those
        that the next build begins with from those of builds long ago.
        """
        self._bud(image, context, target, arguments)
        for name, stage in stage_names(context, target).items():
            self._bud(name, context, stage, arguments)

    def prune(self, kept: Collection[str]) -> None:
        """Deletes every image but these and the steps that led to them.

        Without it a build would leave all its steps behind: gigabytes, after some changes of a source.
        """
        self._run("rm", "--all")  # containers of builds that were killed
        for name in sorted(self.names() - set(kept)):
            self._run("rmi", name)
        self._run("rmi", "--prune")

    def names(self) -> set[str]:
        """The names of all images."""
        lines = self._run("images", "--filter", "dangling=false", "--format", "{{.Name}}:{{.Tag}}").split()
        return {line for line in lines if "<none>" not in line}

    def identities(self) -> set[str]:
        """All images, each step of a build included."""
        return set(self._run("images", "--all", "--quiet", "--no-trunc").split())

    def _bud(self, image: str, context: Path, target: str | None, arguments: Mapping[str, str]) -> None:
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
        """Writes an image to an OCI layout, uncompressed: it travels from disk to disk.

        `buildah push` would compress it, all of it after each change: it wouldn't know its layers again.
        """
        words = ("--insecure-policy", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers")
        run(("skopeo", *words, self._store + image, f"oci:{layout}:{image}"), env=self._env)

    def save(self, image: str, archive: Path) -> None:
        """Writes an image to an archive that Docker and containerd load."""
        self._run("push", "--quiet", image, f"docker-archive:{archive}:{image}")

    def _run(self, *words: str | Path) -> str:
        return run((*self._words, *words), env=self._env)


def stage_names(context: Path, target: str | None) -> dict[str, str]:
    """How the stages that a target is made of are named in the store."""
    stages = stages_of(context / "Dockerfile", target)
    return {f"localhost/stages-of-{target or 'the-last'}:{stage}": stage for stage in stages}
