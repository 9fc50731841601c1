"""Each part of the testbed that keeps something in the cache makes the folder for it.

The programs that build and fetch are stand-ins: they write a small file where the real ones write theirs, and
make a folder only where those do.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import testbed
from testbed import (
    base_image,
    buildah,
    debian,
    horovod,
    images,
    kind,
    layouts,
    programs,
    store,
    toolchain,
)

from support.trainer import forms

ARCHIVE = io.BytesIO()
with zipfile.ZipFile(ARCHIVE, "w") as content:
    content.writestr(f"golang.org/toolchain@v0.0.1-go{toolchain.VERSION}.linux-amd64/bin/go", "")


def stand_in(argv: Any, *, cwd: Path | None = None, **_: Any) -> str:
    """What `testbed.commands.run` returns for a program, and what that one leaves."""
    match [str(word) for word in argv]:
        case ["apt-get", *_, "download", package]:
            (cwd / f"{package}_1_all.deb").touch()  # type: ignore[operator]
        case ["dpkg-deb", "--extract", _, folder]:
            (Path(folder) / "usr").mkdir()
        case ["go", "build", *_, "-o", file, _]:
            Path(file).touch()
        case ["go", "mod", "download", *_]:
            return json.dumps({"Dir": "/no/such/module"})
        case ["buildah", *_, "from", "scratch"]:
            return "working-container"
        case ["buildah", *_, "push", "--quiet", _, to]:
            Path(to.split(":")[1]).touch()
        case ["skopeo", *_, to]:
            _, folder, image = to.split(":", 2)
            layout = layouts.Layout(Path(folder))
            before = json.loads(index.read_text()) if (index := Path(folder) / "index.json").exists() else {}
            layout.write_static(image, Path(__file__), "amd64")
            after = json.loads(index.read_text())
            after["manifests"] += before.get("manifests", [])
            index.write_text(json.dumps(after))
        case ["debootstrap", *_, root, _]:
            (Path(root) / "usr" / "bin").mkdir(parents=True)
        case [_, "run", *_, "venv", folder]:
            Path(folder).mkdir(parents=True)
        case [kubeadm, "config", "images", "list", _] if kubeadm.endswith("/kubeadm"):
            return "registry.k8s.io/etcd:1\nregistry.k8s.io/coredns/coredns:1\n"
    return ""


def take_store() -> None:
    """Note this process as the first one of an enclosure."""
    process = testbed.process.Process.of(os.getpid())
    store.take(SimpleNamespace(first=process))  # type: ignore[arg-type]


PARTS: dict[str, Callable[[], object]] = {
    "base_image": lambda: base_image.need_base_image(buildah.Buildah()),
    "buildah": lambda: buildah.Buildah().names(),
    "debian": lambda: debian.unpacked("etcd"),
    "horovod: environment": horovod.horovod_python,
    "horovod: image": horovod.horovod_image,
    "images": images.need_images,
    "images: pause": images.need_pause,
    "kind: images": kind.need_archive,
    "kind: node": kind.need_node_image,
    "programs": lambda: programs.program("pause"),
    "store": take_store,
    "toolchain": toolchain.go,
}
OTHERS = {
    "places",  # says where it is
    "__main__",  # likewise
    "node_tier",  # copies a folder of logs, which makes folders
}


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that doesn't exist yet."""
    monkeypatch.setenv("TRAINJOB_CACHE", str(tmp_path / "home" / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for module in (base_image, buildah, debian, horovod, kind, programs):
        monkeypatch.setattr(module, "run", stand_in)
    for module in (base_image, horovod, images, kind):
        monkeypatch.setattr(module, "need_tools", lambda *_: None)
    monkeypatch.setattr(debian.shutil, "which", lambda name, **_: None if name == "go" else name)
    monkeypatch.setattr(toolchain.urllib.request, "urlopen", lambda *_, **__: io.BytesIO(ARCHIVE.getvalue()))
    monkeypatch.setattr(toolchain, "architecture", lambda: "amd64")
    monkeypatch.setattr(toolchain, "SHA256", {"amd64": hashlib.sha256(ARCHIVE.getvalue()).hexdigest()})
    monkeypatch.setattr(programs, "go", lambda: "go")
    return tmp_path / "home" / "cache"


@pytest.mark.parametrize("part", PARTS)
def test_it_makes_its_folder(part: str, empty: Path) -> None:
    PARTS[part]()
    assert any(empty.iterdir())


def test_the_outcomes_of_forms_make_theirs(empty: Path) -> None:
    forms.write_pickle(empty / "forms" / "one.pickle", 1)


def test_every_part_is_here() -> None:
    folder = Path(testbed.__file__).parent
    using = {file.stem for file in folder.glob("*.py") if "cache()" in file.read_text()}
    assert using == {part.partition(":")[0] for part in PARTS} | OTHERS
