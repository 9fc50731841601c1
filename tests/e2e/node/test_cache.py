"""What builds leave in the cache: enough to build on, nothing of older sources, no scraps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed import programs, store
from testbed.buildah import Buildah, stage_names
from testbed.claims import NodeCluster
from testbed.containerd import Client
from testbed.debian import need_tools
from testbed.enclosure import Enclosure
from testbed.layouts import Layout
from testbed.places import REPOSITORY, cache
from testbed.stages import stages_of

BASE, IMAGE = "localhost/base:1", "localhost/app:1"
DOCKERFILE = """\
ARG BASE_IMAGE=elsewhere
FROM ${BASE_IMAGE} AS build
COPY lock /lock
FROM build AS dependencies
COPY dependencies \\
     /dependencies
FROM dependencies AS package
COPY source /source
FROM ${BASE_IMAGE} AS unneeded
FROM ${BASE_IMAGE} AS app
COPY --from=dependencies /dependencies /dependencies
COPY --chown=1:1 --from=package /source /source
FROM app
"""


@pytest.mark.parametrize(
    ("dockerfile", "target", "stages"),
    [
        (DOCKERFILE, "app", ["build", "dependencies", "package"]),
        (DOCKERFILE, None, ["build", "dependencies", "package", "app"]),
        (DOCKERFILE, "unneeded", []),
        (
            (REPOSITORY / "Dockerfile").read_text(),
            "operator",
            ["build", "operator-dependencies", "operator-package"],
        ),
        (
            (REPOSITORY / "Dockerfile").read_text(),
            "trainer",
            ["build", "trainer-dependencies", "trainer-package"],
        ),
        ((REPOSITORY / "examples/Dockerfile").read_text(), None, []),
    ],
)
def test_the_stages_that_a_target_is_made_of(
    dockerfile: str, target: str | None, stages: list[str], tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(dockerfile)
    assert stages_of(tmp_path / "Dockerfile", target) == stages


@pytest.fixture
def buildah(node_cluster: NodeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Buildah]:
    """A store of its own, with a base image. (The tier's fixture tells whether root can do that here.)"""
    need_tools("buildah")
    monkeypatch.setenv("TRAINJOB_CACHE", str(tmp_path / "cache"))
    assert cache() == tmp_path / "cache"
    store = Buildah()
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "file").write_text("base")
    store.commit_folder(tmp_path / "base", BASE)
    yield store
    store.prune([])
    assert store.identities() == set()


def build(buildah: Buildah, context: Path, source: str) -> set[str]:
    """Builds the image with this source; all images that are there then."""
    context.mkdir(exist_ok=True)
    files = {"Dockerfile": DOCKERFILE, "lock": "lock", "dependencies": "many", "source": source}
    for name, text in files.items():
        (context / name).write_text(text)
    buildah.build(IMAGE, context, target="app", arguments={"BASE_IMAGE": BASE})
    return buildah.identities()


@pytest.mark.nightly
@pytest.mark.testbed
def test_what_older_sources_left_is_deleted_and_what_is_built_on_stays(
    buildah: Buildah, tmp_path: Path
) -> None:
    context = tmp_path / "context"
    first = build(buildah, context, "first")
    second = build(buildah, context, "second")
    assert len(second) == len(first) + 2, "the package and the image of the first source are still there"
    kept = [BASE, IMAGE, *stage_names(context, "app")]

    buildah.prune(kept)
    assert buildah.names() == set(kept)
    left = buildah.identities()
    assert left == second - (first - left)
    assert len(left) == len(first)
    assert build(buildah, context, "second") == left, "nothing had to be built again"
    assert len(build(buildah, context, "third") - left) == 2, "only what the source is in was built"

    buildah.prune([BASE])
    assert buildah.names() == {BASE}
    assert len(buildah.identities()) == 1


@pytest.mark.nightly
@pytest.mark.testbed
def test_the_compilers_scraps_go_with_the_last_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINJOB_CACHE", str(tmp_path))
    last = "pause"  # the smallest one
    for name in {*programs.missing()} - {last, "helm"}:
        of = programs.source(name)
        place = tmp_path / "bin" / f"{of.module}-{of.key}" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    assert programs.program(last).exists()
    assert (tmp_path / "go-build").exists(), "Helm is still to be built"
    programs.program(last).unlink()
    helm = programs.source("helm")
    (tmp_path / "bin" / f"helm-{helm.key}").mkdir()
    (tmp_path / "bin" / f"helm-{helm.key}" / "helm").touch()
    assert programs.program(last).exists()
    assert not (tmp_path / "go-build").exists()


def tiny_image(folder: Path, content: str) -> Layout:
    """An image of one file."""
    folder.mkdir()
    (folder / "program").write_text(content)
    layout = Layout(folder / "layout")
    layout.folder.mkdir()
    layout.write_static("localhost/tiny:1", folder / "program", "amd64")
    return layout


@pytest.mark.testbed
def test_an_image_that_is_replaced_while_the_cluster_runs_keeps_its_files(
    node_cluster: NodeCluster, tmp_path: Path
) -> None:
    """The next start begins with the databases as they were before, and these speak of the files."""
    assert node_cluster.folder
    client = Client(Enclosure(node_cluster.folder))
    older, newer = (tiny_image(tmp_path / content, content) for content in ("older", "newer"))
    for layout in (older, newer, newer):
        store.add(client, {"localhost/tiny:1": layout})
    assert store.there(client)["localhost/tiny:1"] == (newer.entry("localhost/tiny:1") or {})["digest"]
    client.call("images", "tag", "localhost/tiny:1", "localhost/tiny:2")
    client.call("images", "rm", "--sync", "localhost/tiny:2")  # returns after the collection of garbage
    there = set(client.call("content", "ls", "--quiet").split())
    assert set(older.blobs("localhost/tiny:1")) <= there


@pytest.mark.testbed
@pytest.mark.parametrize("lost", [store.SNAPSHOTS, store.BLOBS])
def test_a_store_that_is_not_whole_is_filled_again(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINJOB_CACHE", str(tmp_path))
    saved = tmp_path / "containerd" / "saved"
    files = {store.SNAPSHOTS: ["1"], store.BLOBS: ["a"]}
    for folder, (name,) in files.items():
        (tmp_path / "containerd" / folder / name).mkdir(parents=True)
        (tmp_path / "containerd" / folder / "of-a-run").mkdir()
    saved.mkdir()
    for name in store.DATABASES:
        (saved / name.replace("/", "-")).write_text("saved")
        (tmp_path / "containerd" / name).parent.mkdir(parents=True, exist_ok=True)
    (saved / "files.json").write_text(json.dumps(files))
    (saved / "images.json").write_text('{"localhost/tiny:1": "sha256:a"}')
    store.reset()
    assert [file.name for file in (tmp_path / "containerd" / store.SNAPSHOTS).iterdir()] == ["1"]
    (tmp_path / "containerd" / lost / files[lost][0]).rmdir()
    store.reset()
    assert not (tmp_path / "containerd").exists()
