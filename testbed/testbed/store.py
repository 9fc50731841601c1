"""containerd's images, kept in the cache from run to run.

After images were imported and before any container existed, the two databases are copied. Every start begins
with these copies: containers of earlier runs are forgotten however they ended, nothing is imported twice.
"""

import json
import shutil
from pathlib import Path

from testbed.containerd import Client, component, stop_gently
from testbed.enclosure import Enclosure
from testbed.errors import TestbedError
from testbed.layouts import Layout
from testbed.places import cache
from testbed.process import Process
from testbed.progress import step

DATABASES = (
    "io.containerd.metadata.v1.bolt/meta.db",
    "io.containerd.snapshotter.v1.overlayfs/metadata.db",
)
SNAPSHOTS = "io.containerd.snapshotter.v1.overlayfs/snapshots"
BLOBS = "io.containerd.content.v1.content/blobs/sha256"
REPLACED = "localhost/replaced"
OF_A_RUN = (
    "io.containerd.grpc.v1.cri",
    "io.containerd.runtime.v1.linux",
    "io.containerd.runtime.v2.task",
    "tmpmounts",
)


def root() -> Path:
    """Containerd's root."""
    return cache() / "containerd"


def take(enclosure: Enclosure) -> None:
    """Notes who uses the store; it ends with the enclosure's first process.

    Raises:
        TestbedError: Another cluster of this cache, started with another TMPDIR, uses it.
    """
    _check_free()
    if enclosure.first:
        _user().parent.mkdir(parents=True, exist_ok=True)
        enclosure.first.write(_user())


def _check_free() -> None:
    user = Process.read(_user())
    if user and user.alive:
        raise TestbedError(
            f"a cluster of another TMPDIR uses {root()}; a second one needs its own TRAINJOB_CACHE"
        )


def _user() -> Path:
    return cache() / "containerd.user.json"


def fill(images: dict[str, Layout], folder: Path) -> None:
    """Sees to it that the store holds exactly these images. No cluster may run.

    Args:
        images: Each image's name, and the layout that it is in.
        folder: An empty folder for containerd's socket and logs.
    """
    wanted = _digests(images)
    if _held() == wanted:
        return
    reset()
    _record().unlink(missing_ok=True)
    folder.mkdir(parents=True, mode=0o700)
    enclosure = Enclosure.create(folder, die_with_us=True)
    take(enclosure)
    try:
        enclosure.start(component(folder, root()))
        client = Client(enclosure)
        client.wait()
        add(client, images)
        for name in there(client).keys() - wanted.keys():
            client.call("images", "rm", "--sync", name)
        stop_gently(enclosure)
        _save(wanted)
    finally:
        enclosure.destroy()
        shutil.rmtree(folder, ignore_errors=True)


def reset() -> None:
    """Puts the store back to what `fill` left: images, no containers. containerd must not run."""
    _check_free()
    if not _held():
        shutil.rmtree(root(), ignore_errors=True)
        return
    for name in DATABASES:
        shutil.copyfile(_saved(name), root() / name)
    kept = _files()[SNAPSHOTS]
    for folder in (root() / SNAPSHOTS).iterdir():
        if folder.name not in kept:
            shutil.rmtree(folder)
    for name in OF_A_RUN:
        shutil.rmtree(root() / name, ignore_errors=True)


def lend(to: Path) -> None:
    """Makes the root of another containerd in an empty folder, with the store's images by links to them."""
    for name in DATABASES:
        (to / name).parent.mkdir(parents=True)
        shutil.copyfile(_saved(name), to / name)
    for folder, names in _files().items():
        (to / folder).mkdir(parents=True)
        for name in names:
            (to / folder / name).symlink_to(root() / folder / name)


def add(client: Client, images: dict[str, Layout]) -> None:
    """Imports what a serving containerd doesn't have yet.

    What a name stood for before stays until the end: without a name containerd would delete its files, which
    the saved databases speak of.
    """
    held = there(client)
    for name, digest in _digests(images).items():
        if held.get(name) != digest:
            if name in held:
                replaced = f"{REPLACED}:{held[name].removeprefix('sha256:')}"
                client.call("images", "tag", "--force", name, replaced)
            with step(f"import {name}"):
                images[name].send(name, client)


def there(client: Client) -> dict[str, str]:
    """The images that a serving containerd has, and their digests."""
    lines = [line.split() for line in client.call("images", "ls").splitlines()[1:]]
    return {line[0]: line[2] for line in lines}


def _digests(images: dict[str, Layout]) -> dict[str, str]:
    return {name: (layout.entry(name) or {}).get("digest", "") for name, layout in images.items()}


def _save(images: dict[str, str]) -> None:
    for name in DATABASES:
        _saved(name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root() / name, _saved(name))
    names = {
        folder: sorted(file.name for file in (root() / folder).iterdir()) for folder in (SNAPSHOTS, BLOBS)
    }
    _record().with_name("files.json").write_text(json.dumps(names))
    _record().write_text(json.dumps(images))


def _held() -> dict[str, str]:
    """The images that `fill` has left; none if it was killed, or what it left isn't whole any more."""
    try:
        images = json.loads(_record().read_text())
        whole = all((root() / folder / name).exists() for folder, names in _files().items() for name in names)
    except OSError:
        return {}
    return images if whole else {}


def _files() -> dict[str, list[str]]:
    """The names of the files that the saved databases speak of, by folder."""
    return json.loads(_record().with_name("files.json").read_text())


def _record() -> Path:
    return root() / "saved" / "images.json"


def _saved(name: str) -> Path:
    return root() / "saved" / name.replace("/", "-")
