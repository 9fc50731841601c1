"""A Python and an image with Horovod: compiled once, into the cache, against the versions of `examples/`.

Horovod is published as source only. It needs a C++ compiler, and takes about two minutes on two free cores.
TensorFlow 2.12 has no wheels for a later Python than 3.11, which uv downloads where there is none.
"""

import hashlib
import shutil
import tempfile
from pathlib import Path

from testbed.base_image import NAME as BASE
from testbed.base_image import need_base_image
from testbed.buildah import Buildah
from testbed.commands import run
from testbed.debian import need_tools
from testbed.layouts import Layout
from testbed.locking import locked
from testbed.places import REPOSITORY, cache
from testbed.progress import step

EXAMPLES = REPOSITORY / "examples"
REQUIREMENTS = EXAMPLES / "horovod-requirements.txt"
IMAGE = "ghcr.io/acme/horovod-digits:1"
HOROVOD = "horovod==0.28.1"
OPTIONS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
}
"""The same as in `examples/horovod.Dockerfile`."""


def horovod_python() -> Path:
    """The interpreter of an environment with Horovod and TensorFlow 2.12; builds it first if need be."""
    folder = cache() / "horovod" / _key()
    python = folder / "bin" / "python"
    done = folder / "done"
    if not done.exists():
        with locked(cache() / "horovod" / ".lock"):
            if not done.exists():
                _build(folder, python)
                done.touch()
    return python


def _key() -> str:
    """Changes with everything that goes into it."""
    parts = repr((HOROVOD, OPTIONS)).encode() + REQUIREMENTS.read_bytes()
    return hashlib.sha256(parts).hexdigest()[:16]


def _build(folder: Path, python: Path) -> None:
    need_tools("c++")
    shutil.rmtree(folder, ignore_errors=True)
    with step("build Horovod's environment"):
        uv = shutil.which("uv") or REPOSITORY / ".uv" / "bin" / "uv"
        run([uv, "run", "--quiet", "--no-project", "--python", "3.11", "-m", "venv", folder])
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        run([*pip, "--requirement", REQUIREMENTS])
        # The build takes cmake from PATH.
        env = {**OPTIONS, "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin"}
        run([*pip, "--no-build-isolation", "--no-deps", "--no-binary", "horovod", HOROVOD], env=env)


def horovod_image() -> Layout:
    """Where the image of `examples/horovod_digits.yaml` is; builds it first if its files have changed."""
    layout = Layout(cache() / "images" / "horovod")
    files = [EXAMPLES / "horovod.Dockerfile", REQUIREMENTS, EXAMPLES / "horovod_digits.py"]
    key = hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
    known = layout.folder / "key"
    with locked(cache() / "images" / ".lock"):  # one build at a time prunes and fills buildah's store
        if not known.exists() or known.read_text() != key:
            shutil.rmtree(layout.folder, ignore_errors=True)
            _build_image(files, layout)
            known.write_text(key)
    return layout


def _build_image(files: list[Path], layout: Layout) -> None:
    need_tools("buildah", "skopeo")
    buildah = Buildah()
    need_base_image(buildah)
    with step(f"build {IMAGE}"), tempfile.TemporaryDirectory() as context:
        for file in files:
            name = "Dockerfile" if file.suffix == ".Dockerfile" else file.name
            shutil.copy(file, Path(context) / name)
        buildah.build(IMAGE, Path(context), target=None, arguments={"BASE_IMAGE": BASE})
        buildah.push(IMAGE, layout.folder)
