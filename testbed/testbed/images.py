"""The project's images, built from the working tree; one whose sources didn't change is not built again."""

import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from testbed.base_image import NAME as BASE
from testbed.base_image import need_base_image
from testbed.buildah import Buildah, stage_names
from testbed.containerd import PAUSE
from testbed.debian import need_tools
from testbed.layouts import Layout
from testbed.locking import locked
from testbed.places import REPOSITORY, cache
from testbed.programs import program, source
from testbed.progress import step
from testbed.toolchain import architecture

IGNORED = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


@dataclass(frozen=True)
class Image:
    """An image of the project, and what it is built from."""

    name: str
    sources: tuple[str, ...]  # in the repository; everything that the build copies, and the Dockerfile
    target: str | None = None
    context: str = "."
    arguments: dict[str, str] = field(default_factory=dict)
    base: "Image | None" = None

    @property
    def key(self) -> str:
        """Changes when the image would."""
        digest = hashlib.sha256(repr((self.name, self.target, self.arguments)).encode())
        digest.update(self.base.key.encode() if self.base else b"")
        for file in _files(self.sources):
            digest.update(str(file.relative_to(REPOSITORY)).encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()


def version() -> str:
    """The version that the images are tagged with: the operator's."""
    return tomllib.loads((REPOSITORY / "operator" / "pyproject.toml").read_text())["project"]["version"]


def operator() -> Image:
    """The controller, which brings the trainer library into the jobs' pods."""
    return _of_the_project("operator", "operator", "trainer")


def trainer() -> Image:
    """TensorFlow and the trainer library."""
    return _of_the_project("trainer", "trainer")


def digits() -> Image:
    """What examples/*.yaml name: the example scripts on top of the trainer image."""
    base = trainer()
    return Image(
        "ghcr.io/acme/digits:1",
        ("examples",),
        context="examples",
        arguments={"TRAINER_IMAGE": base.name},
        base=base,
    )


def _of_the_project(target: str, *folders: str) -> Image:
    sources = ("Dockerfile", ".dockerignore", "build-tools.txt", "pyproject.toml", "uv.lock",
               "operator/pyproject.toml", "trainer/pyproject.toml", *folders)  # fmt: skip
    name = f"ghcr.io/trainjob/{target}:{version()}"
    return Image(name, sources, target=target, arguments={"BASE_IMAGE": BASE, "VERSION": version()})


def need_images() -> dict[str, Layout]:
    """Builds what is out of date. Returns the layout of every image that the cluster holds."""
    layout = Layout(cache() / "images" / "project")
    wanted = [operator(), trainer(), digits()]
    with locked(cache() / "images" / ".lock"):
        outdated = [image for image in wanted if _built(layout, image.name) != image.key]
        for image in outdated:
            _build(image, layout)
        if outdated:
            _forget_older(wanted)
        layout.forget_unused([image.name for image in wanted])
    return {**need_pause(), **{image.name: layout for image in wanted}}


def _build(image: Image, layout: Layout) -> None:
    need_tools("buildah", "skopeo")
    buildah = Buildah()
    need_base_image(buildah)
    key = image.key  # of the files as they are before the build: a later change builds again
    with step(f"build {image.name}"):
        buildah.build(image.name, REPOSITORY / image.context, target=image.target, arguments=image.arguments)
        buildah.push(image.name, layout.folder)
    _key_file(layout, image.name).write_text(key)


def _forget_older(wanted: list[Image]) -> None:
    """Leaves in buildah's store what the next build of these images continues from."""
    stages = [name for image in wanted for name in stage_names(REPOSITORY / image.context, image.target)]
    with step("delete what older builds left"):
        Buildah().prune([BASE, *(image.name for image in wanted), *stages])


def _built(layout: Layout, name: str) -> str | None:
    file = _key_file(layout, name)
    return file.read_text() if layout.entry(name) and file.exists() else None


def _key_file(layout: Layout, name: str) -> Path:
    return layout.folder / f"{name.replace('/', '_')}.key"


def need_pause() -> dict[str, Layout]:
    """The one image without which no pod runs."""
    layout = Layout(cache() / "images" / f"pause-{source('pause').key}")
    if layout.entry(PAUSE) is None:
        layout.folder.mkdir(parents=True, exist_ok=True)
        layout.write_static(PAUSE, program("pause"), architecture())
    return {PAUSE: layout}


def _files(names: tuple[str, ...]) -> Iterator[Path]:
    for name in sorted(names):
        path = REPOSITORY / name
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in below:
            if file.is_file() and not IGNORED.intersection(file.parts):
                yield file
