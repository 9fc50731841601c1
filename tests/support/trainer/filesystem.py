"""File systems in memory, seen by several machines, with no more promises than the real ones make.

A `Tree` is what a local disk or an NFS server keeps, a `Bucket` what an object store does. A mount is one
machine's view of it, in system calls; an open file, a cache and a stale handle are the mount's own.
`SimulatedFiles` makes the operations of `Files` out of a mount's calls, and asks before each of them whether
it is its turn, and whether the call is to fail.

Sources: POSIX rename(2) and fsync(2); nfs(5), "DATA AND METADATA COHERENCE", and fs/nfs/dir.c of Linux;
docs/semantics.md of Cloud Storage FUSE; doc/SEMANTICS.md of Mountpoint for Amazon S3. What TensorFlow makes
of the errors of a disk was measured with `strace -e inject` on TensorFlow 2.21.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from trainjob_trainer.checkpoint.bucket import BucketFiles, Changed
from trainjob_trainer.checkpoint.files import Files, NotAFile

T = TypeVar("T")
NFS_CACHE_SECONDS = 60.0
"""`acdirmax`: no attribute of a folder is trusted for longer, and no entry or listing of it."""
BUCKET_CACHE_SECONDS, BUCKET_ABSENCE_SECONDS = 60.0, 5.0
"""`metadata-cache: ttl-secs` and `negative-ttl-secs` of Cloud Storage FUSE."""


def fail(number: int, path: object = "") -> NoReturn:
    """Raise what the system call would."""
    raise OSError(number, os.strerror(number), str(path))


# --- A disk ---


@dataclass(eq=False)
class File:
    """An inode with bytes; a power cut leaves those that are durable.

    No name leads to one that is gone. `opened_on` counts how often each mount has it open.
    """

    data: bytes = b""
    durable: bytes = b""
    gone: bool = False
    opened_on: Counter[int] = field(default_factory=Counter)


@dataclass(eq=False)
class Folder:
    """An inode with names; `version` is its change attribute, and stands for its time of modification."""

    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    gone: bool = False
    version: int = 0


Node = File | Folder
Entry = tuple[Folder, str, Node | None]
"""A name in a folder and what it is to lead to."""


@dataclass
class Change:
    """One operation on names, in the journal until it is sure to survive."""

    entries: Sequence[Entry]
    is_durable: bool = False


class Tree:
    """Inodes, and a journal of what a power cut may take back.

    Only fsync of a folder makes its names durable, together with what they depend on. Without it a change
    may survive or not; one rename survives as a whole or not at all.
    """

    def __init__(self) -> None:
        self.root = Folder()
        self.revision = 0
        self._journal: list[Change] = []
        self._nodes: list[Node] = [self.root]

    def make(self, folder: Folder, name: str, node: Node) -> None:
        """Mkdir, or open with O_CREAT | O_EXCL."""
        self._check(folder)
        if name in folder.entries:
            fail(errno.EEXIST, name)
        self._nodes.append(node)
        self._change((folder, name, node))

    def unlink(self, folder: Folder, name: str) -> None:
        node = self._entry(folder, name)
        if isinstance(node, Folder):
            fail(errno.EISDIR, name)
        node.gone = True
        self._change((folder, name, None))

    def rmdir(self, folder: Folder, name: str) -> None:
        node = self._entry(folder, name)
        if isinstance(node, File):
            fail(errno.ENOTDIR, name)
        if node.entries:
            fail(errno.ENOTEMPTY, name)
        node.gone = True
        self._change((folder, name, None))

    def rename(self, source: Folder, name: str, target: Folder, new_name: str) -> None:
        moved, replaced = self._entry(source, name), target.entries.get(new_name)
        self._check(target)
        if moved is replaced:
            return
        if isinstance(moved, Folder) and self._is_within(target, moved):
            fail(errno.EINVAL, name)
        if replaced is not None:
            if isinstance(replaced, Folder) and not isinstance(moved, Folder):
                fail(errno.EISDIR, new_name)
            if isinstance(moved, Folder) and not isinstance(replaced, Folder):
                fail(errno.ENOTDIR, new_name)
            if isinstance(replaced, Folder) and replaced.entries:
                fail(errno.ENOTEMPTY, new_name)
            replaced.gone = True
        self._change((source, name, None), (target, new_name, moved))

    def write(self, file: File, data: bytes) -> None:
        file.data = data
        self.revision += 1

    def sync(self, node: Node) -> None:
        if isinstance(node, File):
            node.durable = node.data
            return
        waiting: set[int] = {id(node)}
        for change in reversed(self._journal):
            touched = {id(folder) for folder, _, _ in change.entries}
            if touched & waiting:
                change.is_durable = True
                waiting |= touched
        self._make_durable()

    def lose_power(self, survivors: int, keeps_data: bool) -> None:
        """Go back to what was synced, and the first `survivors` of the changes that were not.

        With `keeps_data` the bytes that were not synced are on the disk, too.
        """
        for node in self._nodes:
            if isinstance(node, Folder):
                node.entries = dict(node.durable)
                node.version += 1
            elif not keeps_data:
                node.data = node.durable
        for change in self._journal:
            if change.is_durable or survivors > 0:
                survivors -= not change.is_durable
                for folder, name, node in change.entries:
                    _set(folder.entries, name, node)
        self._settle()

    def contents(self) -> dict[str, bytes | None]:
        """Every path with its bytes; None for a folder."""
        found: dict[str, bytes | None] = {}

        def visit(folder: Folder, prefix: str) -> None:
            for name, node in folder.entries.items():
                if isinstance(node, File):
                    found[prefix + name] = node.data
                else:
                    found[prefix + name] = None
                    visit(node, f"{prefix}{name}/")

        visit(self.root, "/")
        return found

    def _settle(self) -> None:
        """After a power cut all that is there is durable, and nothing is open."""
        self._journal, reachable = [], [self.root, *_descendants(self.root)]
        for node in self._nodes:
            node.gone = True
        for node in reachable:
            node.gone = False
            if isinstance(node, Folder):
                node.durable = dict(node.entries)
            else:
                node.durable = node.data
                node.opened_on.clear()
        self._nodes = list(reachable)
        self.revision += 1

    def _make_durable(self) -> None:
        """Take what survives for certain from the journal's beginning."""
        while self._journal and self._journal[0].is_durable:
            for folder, name, node in self._journal.pop(0).entries:
                _set(folder.durable, name, node)

    def _change(self, *entries: Entry) -> None:
        for folder, name, node in entries:
            _set(folder.entries, name, node)
            folder.version += 1
        self._journal.append(Change(entries))
        self.revision += 1

    def _check(self, folder: Folder) -> None:
        if folder.gone:
            fail(errno.ESTALE)

    def _entry(self, folder: Folder, name: str) -> Node:
        self._check(folder)
        if name not in folder.entries:
            fail(errno.ENOENT, name)
        return folder.entries[name]

    def _is_within(self, folder: Folder, ancestor: Folder) -> bool:
        return folder is ancestor or any(node is folder for node in _descendants(ancestor))


def _set(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _descendants(folder: Folder) -> list[Node]:
    found: list[Node] = []
    for node in folder.entries.values():
        found.append(node)
        if isinstance(node, Folder):
            found += _descendants(node)
    return found


# --- System calls ---


@dataclass
class Handle:
    path: Path
    node: Any
    folder: Any = None


class Mount:
    """One machine's view, in system calls; each is one moment, if the file system can do it in one."""

    errors: Sequence[int] = (errno.EIO, errno.EMFILE, errno.ENOSPC)
    """What a call may fail with for a moment."""
    resends = False
    """Whether an answer can get lost, and the call be sent again."""
    listing_delay = 0.0
    """What `checkpoint.mounts` says of such a mount."""

    def __init__(self) -> None:
        self.is_resent = False

    def files(self, call: Callable[[str, Path, Callable[[], Any]], Any], **options: Any) -> Files:
        """Return the operations of checkpoints on this mount, of which `call` runs each call."""
        del options
        return SimulatedFiles(self, call)

    def deliver(self) -> None:
        """Do what was sent earlier and is due; only requests to a bucket are ever late."""

    def delay(self, what: str, call: Callable[[], Any], requests: int) -> None:
        """Have a failed call done later; where calls are calls, it isn't done."""

    def listdir(self, path: Path) -> list[str]:
        raise NotImplementedError

    def stat(self, path: Path) -> tuple[str, int]:
        """Return `file` or `folder`, and the bytes."""
        raise NotImplementedError

    def utime(self, path: Path) -> None:
        """Set a folder's time of modification to now."""
        raise NotImplementedError

    def mtime(self, path: Path) -> int:
        """Open a folder, and return its time of modification."""
        raise NotImplementedError

    def mkdir(self, path: Path) -> None:
        raise NotImplementedError

    def create(self, path: Path) -> Handle:
        """Open with O_CREAT | O_TRUNC."""
        raise NotImplementedError

    def put(self, handle: Handle, data: bytes) -> None:
        """Write everything, and close."""
        raise NotImplementedError

    def open(self, path: Path) -> Handle:
        raise NotImplementedError

    def get(self, handle: Handle) -> bytes:
        raise NotImplementedError

    def close(self, handle: Handle) -> None:
        """Nothing to do where nobody knows what is open."""

    def fsync(self, path: Path) -> None:
        raise NotImplementedError

    def rename(self, source: Path, target: Path, between: Callable[[], None]) -> None:
        """Rename; `between` is called at each moment at which a part of it is done."""
        raise NotImplementedError

    def unlink(self, path: Path) -> None:
        raise NotImplementedError

    def rmdir(self, path: Path) -> None:
        raise NotImplementedError


class LocalMount(Mount):
    """A disk of this machine: every name is looked up anew."""

    def __init__(self, tree: Tree) -> None:
        super().__init__()
        self._tree = tree

    def listdir(self, path: Path) -> list[str]:
        return sorted(self._folder(path).entries)

    def stat(self, path: Path) -> tuple[str, int]:
        node = self._node(path)
        return ("file", len(node.data)) if isinstance(node, File) else ("folder", 0)

    def utime(self, path: Path) -> None:
        self._folder(path).version += 1

    def mtime(self, path: Path) -> int:
        return self._folder(path).version

    def mkdir(self, path: Path) -> None:
        self._tree.make(self._folder(path.parent), path.name, Folder())

    def create(self, path: Path) -> Handle:
        folder = self._folder(path.parent)
        if path.name not in folder.entries:
            self._tree.make(folder, path.name, File())
        node = folder.entries[path.name]
        if isinstance(node, Folder):
            fail(errno.EISDIR, path)
        self._tree.write(node, b"")
        return Handle(path, node)

    def put(self, handle: Handle, data: bytes) -> None:
        self._tree.write(handle.node, data)

    def open(self, path: Path) -> Handle:
        return Handle(path, self._node(path))

    def get(self, handle: Handle) -> bytes:
        if isinstance(handle.node, Folder):
            fail(errno.EISDIR, handle.path)
        return bytes(handle.node.data)

    def fsync(self, path: Path) -> None:
        self._tree.sync(self._node(path))

    def rename(self, source: Path, target: Path, between: Callable[[], None]) -> None:  # noqa: ARG002
        self._tree.rename(self._folder(source.parent), source.name, self._folder(target.parent), target.name)

    def unlink(self, path: Path) -> None:
        self._tree.unlink(self._folder(path.parent), path.name)

    def rmdir(self, path: Path) -> None:
        self._tree.rmdir(self._folder(path.parent), path.name)

    def _node(self, path: Path) -> Node:
        node: Node = self._tree.root
        for name in path.parts[1:]:
            if isinstance(node, File):
                fail(errno.ENOTDIR, path)
            if name not in node.entries:
                fail(errno.ENOENT, path)
            node = node.entries[name]
        return node

    def _folder(self, path: Path) -> Folder:
        node = self._node(path)
        if isinstance(node, File):
            fail(errno.ENOTDIR, path)
        return node


class NfsMount(Mount):
    """A client of an NFS server, which trusts what it has seen of a folder for up to a minute.

    * An entry of a folder, and the absence of one, is taken from the cache until the folder's attributes
      expire, and so is every part of a path. A handle outlives a rename: what was moved away is still
      written into by who has its handle. Only what is deleted answers ESTALE, on which Linux looks the path
      up anew, once.
    * A listing is read anew if the folder has changed, which opening it asks the server for. Not so with
      `nocto`, or where the server's clock is too coarse to show the change (`lists_anew` is false).
    * A file that this machine has open is renamed to `.nfs...` where it is to be deleted, until it is closed.
    * Opening a file asks the server for it, closing one has written it (close-to-open).
    """

    errors = (errno.EIO, errno.EMFILE, errno.ENOSPC, errno.ESTALE, errno.ETIMEDOUT)
    resends = True

    def __init__(self, tree: Tree, clock: Callable[[], float], *, lists_anew: bool = True) -> None:
        super().__init__()
        self._tree = tree
        self._clock = clock
        self._lists_anew = lists_anew
        self.listing_delay = 1.0 if lists_anew else NFS_CACHE_SECONDS
        self._attributes: dict[Folder, tuple[float, int]] = {}
        self._names: dict[Folder, dict[str, Node | None]] = {}
        self._listings: dict[Folder, list[str]] = {}
        self._silly = 0

    def listdir(self, path: Path) -> list[str]:
        return self._again_if_stale(lambda: self._list(path))

    def stat(self, path: Path) -> tuple[str, int]:
        node = self._again_if_stale(lambda: self._node(path))
        return ("file", len(node.data)) if isinstance(node, File) else ("folder", 0)

    def utime(self, path: Path) -> None:
        def touch() -> None:
            folder = self._folder(path)
            if folder.gone:
                fail(errno.ESTALE, path)
            folder.version += 1

        self._again_if_stale(touch)

    def mtime(self, path: Path) -> int:
        def ask() -> int:
            folder = self._folder(path)
            self._revalidate(folder, anew=True)
            return folder.version

        return self._again_if_stale(ask)

    def mkdir(self, path: Path) -> None:
        def make() -> None:
            folder = self._folder(path.parent)
            if self._look_up(folder, path.name) is not None:
                fail(errno.EEXIST, path)
            self._ask(lambda: self._tree.make(folder, path.name, Folder()), (folder, path.name))

        self._again_if_stale(make)

    def create(self, path: Path) -> Handle:
        return self._again_if_stale(lambda: self._create(path))

    def put(self, handle: Handle, data: bytes) -> None:
        self._still_there(handle)
        self._tree.write(handle.node, data)
        handle.node.durable = data

    def open(self, path: Path) -> Handle:
        return self._again_if_stale(lambda: self._open(path))

    def get(self, handle: Handle) -> bytes:
        self._still_there(handle)
        if isinstance(handle.node, Folder):
            fail(errno.EISDIR, handle.path)
        return bytes(handle.node.data)

    def close(self, handle: Handle) -> None:
        node = handle.node
        if isinstance(node, File):
            node.opened_on[id(self)] -= 1
            if node.opened_on[id(self)] <= 0 and not node.gone and not handle.folder.gone:
                for name in [name for name, it in handle.folder.entries.items() if it is node]:
                    if name.startswith(".nfs"):
                        self._ask(
                            lambda name=name: self._tree.unlink(handle.folder, name), (handle.folder, name)
                        )

    def fsync(self, path: Path) -> None:
        self._again_if_stale(lambda: self.close(self._open(path)))

    def rename(self, source: Path, target: Path, between: Callable[[], None]) -> None:  # noqa: ARG002
        def move() -> None:
            folder, other = self._folder(source.parent), self._folder(target.parent)
            if self._look_up(folder, source.name) is None:
                fail(errno.ENOENT, source)
            self._ask(
                lambda: self._tree.rename(folder, source.name, other, target.name),
                (folder, source.name),
                (other, target.name),
            )

        self._again_if_stale(move)

    def unlink(self, path: Path) -> None:
        def remove() -> None:
            folder = self._folder(path.parent)
            node = self._look_up(folder, path.name)
            if node is None:
                fail(errno.ENOENT, path)
            if isinstance(node, File) and node.opened_on[id(self)] > 0:
                self._silly += 1
                silly = f".nfs{id(self) % 4096:04x}{self._silly:08x}"
                names = (folder, path.name), (folder, silly)
                self._ask(lambda: self._tree.rename(folder, path.name, folder, silly), *names)
            else:
                self._ask(lambda: self._tree.unlink(folder, path.name), (folder, path.name))

        self._again_if_stale(remove)

    def rmdir(self, path: Path) -> None:
        def remove() -> None:
            folder = self._folder(path.parent)
            if self._look_up(folder, path.name) is None:
                fail(errno.ENOENT, path)
            self._ask(lambda: self._tree.rmdir(folder, path.name), (folder, path.name))

        self._again_if_stale(remove)

    def _list(self, path: Path) -> list[str]:
        folder = self._folder(path)
        self._revalidate(folder, anew=self._lists_anew)
        if folder not in self._listings:
            if folder.gone:
                fail(errno.ESTALE, path)
            self._listings[folder] = sorted(folder.entries)
        return list(self._listings[folder])

    def _create(self, path: Path) -> Handle:
        folder = self._folder(path.parent)
        node = self._look_up(folder, path.name)
        if node is None:
            if folder.gone:
                fail(errno.ESTALE, path)
            if path.name not in folder.entries:
                self._ask(lambda: self._tree.make(folder, path.name, File()), (folder, path.name))
            node = folder.entries[path.name]
        if isinstance(node, Folder):
            fail(errno.EISDIR, path)
        if node.gone:
            fail(errno.ESTALE, path)
        self._tree.write(node, b"")
        node.opened_on[id(self)] += 1
        return Handle(path, node, folder)

    def _open(self, path: Path) -> Handle:
        node = self._node(path)
        if node.gone:
            fail(errno.ESTALE, path)
        if isinstance(node, File):
            node.opened_on[id(self)] += 1
        return Handle(path, node, self._folder(path.parent) if path.parts[1:] else node)

    def _still_there(self, handle: Handle) -> None:
        if handle.node.gone:
            fail(errno.ESTALE, handle.path)

    def _node(self, path: Path) -> Node:
        node: Node = self._tree.root
        for name in path.parts[1:]:
            if isinstance(node, File):
                fail(errno.ENOTDIR, path)
            found = self._look_up(node, name)
            if found is None:
                fail(errno.ENOENT, path)
            node = found
        return node

    def _folder(self, path: Path) -> Folder:
        node = self._node(path)
        if isinstance(node, File):
            fail(errno.ENOTDIR, path)
        return node

    def _look_up(self, folder: Folder, name: str) -> Node | None:
        self._revalidate(folder)
        known = self._names.setdefault(folder, {})
        if name not in known:
            if folder.gone:
                fail(errno.ESTALE, name)
            known[name] = folder.entries.get(name)
        return known[name]

    def _revalidate(self, folder: Folder, anew: bool = False) -> None:
        expiry, version = self._attributes.get(folder, (0.0, -1))
        if anew or self._clock() >= expiry:
            if folder.gone:
                self._forget(folder)
                fail(errno.ESTALE)
            if folder.version != version:
                self._forget(folder)
            self._attributes[folder] = (self._clock() + NFS_CACHE_SECONDS, folder.version)

    def _forget(self, folder: Folder) -> None:
        for cache in (self._attributes, self._names, self._listings):
            cache.pop(folder, None)

    def _again_if_stale(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        for cache in (self._attributes, self._names, self._listings):
            cache.clear()
        return call()

    def _ask(self, request: Callable[[], None], *names: tuple[Folder, str]) -> None:
        """Have the server change something, and learn from its answer what the folders are like now."""
        before = {folder: folder.version for folder, _ in names}
        try:
            request()
            if self.is_resent:
                before = {folder: folder.version for folder, _ in names}
                request()
        finally:
            for folder, version in before.items():
                known = self._attributes.get(folder)
                if known is None or known[1] != version:
                    self._forget(folder)  # somebody else has changed it as well
                else:
                    self._attributes[folder] = (known[0], folder.version)
                    self._listings.pop(folder, None)
            for folder, name in names:
                if folder in self._names:
                    self._names[folder].pop(name, None)


# --- Objects ---


class Bucket:
    """Objects by key, each change of one a new generation; every answer is current. A folder is `key/`."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[int, bytes]] = {}
        self.revision = 0

    def generation(self, key: str) -> int:
        """0 if there is none."""
        return self.objects[key][0] if key in self.objects else 0

    def put(self, key: str, data: bytes, expected: int) -> None:
        """Store an object, if the one there is of the generation expected."""
        if self.generation(key) != expected:
            fail(errno.ESTALE, key)
        self.revision += 1
        self.objects[key] = (self.revision, data)

    def delete(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            self.revision += 1

    def below(self, prefix: str) -> list[str]:
        return sorted(key for key in self.objects if key.startswith(prefix) and key != prefix)

    def contents(self) -> dict[str, bytes | None]:
        """Every path with its bytes; None for a folder."""
        found: dict[str, bytes | None] = {}
        for key, (_, data) in self.objects.items():
            parts = key.split("/")
            for depth in range(1, len(parts)):
                found["/" + "/".join(parts[:depth])] = None
            if parts[-1]:
                found["/" + key] = data
        return found


class ObjectsMount(Mount):
    """One process's client of a bucket, whose index `BucketFiles` keeps. It implements `Objects`.

    A request that times out may be done later, unless what it depends on has changed; a client that sends one
    again is refused because of its own first one.
    """

    errors = (errno.EIO, errno.ETIMEDOUT)
    resends = True
    key = "output/checkpoints/"

    def __init__(self, bucket: IndexedBucket, **options: Any) -> None:
        super().__init__()
        self._bucket, self._options = bucket, options

    def files(self, call: Callable[[str, Path, Callable[[], Any]], Any], **options: Any) -> BucketFiles:
        objects, options = SimulatedObjects(self, call), {**self._options, **options}
        return SimulatedBucketFiles(Path("/output/checkpoints"), objects, **options)

    def deliver(self) -> None:
        self._bucket.deliver()

    def get(self, key: str, known: str) -> tuple[bytes, str] | None:
        if self.key + key not in self._bucket.objects:
            fail(errno.ENOENT, key)
        generation, data = self._bucket.objects[self.key + key]
        return None if str(generation) == known else (data, str(generation))

    def store(self, key: str, data: bytes) -> str:
        self._bucket.put(self.key + key, data, self._bucket.generation(self.key + key))
        return str(self._bucket.generation(self.key + key))

    def store_if(self, key: str, data: bytes, version: str) -> str:
        for _ in range(1 + self.is_resent):
            if self._bucket.generation(self.key + key) != int(version or 0):
                raise Changed
            self._bucket.put(self.key + key, data, int(version or 0))
        return str(self._bucket.generation(self.key + key))

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self._bucket.delete(self.key + key)

    def versions(self, prefix: str) -> dict[str, str]:
        found = self._bucket.below(self.key + prefix)
        return {key[len(self.key) :]: str(self._bucket.generation(key)) for key in found}

    def delay(self, what: str, call: Callable[[], Any], requests: int) -> None:
        """Have a write done only after so many requests of anybody."""
        if what in ("put", "put_if"):
            self._bucket.late.append([requests, call])


class SimulatedObjects:
    """The requests of one process; `call` is that of `SimulatedFiles`."""

    def __init__(self, mount: ObjectsMount, call: Callable[[str, Path, Callable[[], Any]], Any]) -> None:
        self._mount, self._call = mount, call

    def get(self, key: str, known: str = "") -> Any:
        return self._call("get", Path(key), lambda: self._mount.get(key, known))

    def put(self, key: str, content: Any) -> str:
        return str(self._call("put", Path(key), lambda: self._mount.store(key, content)))

    def put_if(self, key: str, data: bytes, version: str) -> str:
        return str(self._call("put_if", Path(key), lambda: self._mount.store_if(key, data, version)))

    def fetch(self, key: str, path: Path) -> str:
        raise AssertionError(f"{key}, for {path}: nothing is in a file here")

    def delete(self, keys: list[str]) -> None:
        self._call("delete", Path(str(len(keys))), lambda: self._mount.delete(keys))

    def versions(self, prefix: str) -> dict[str, str]:
        return dict(self._call("list", Path(prefix), lambda: self._mount.versions(prefix)))


class SimulatedBucketFiles(BucketFiles):
    """Tensors without TensorFlow, and with no file of this machine."""

    def write_tensors(self, prefix: Path, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
        data, index = packed(tensors)
        ends = (".data-00000-of-00001", data), (".index", index)
        self._put({prefix.with_name(prefix.name + end): content for end, content in ends})

    def read_tensors(self, prefix: Path, dtypes: Mapping[str, str]) -> dict[str, np.ndarray[Any, Any]]:
        index, data = (prefix.with_name(prefix.name + end) for end in (".index", ".data-00000-of-00001"))
        return unpacked(self.read(index, 1 << 20), self.read(data, 1 << 20), dtypes)


class IndexedBucket(Bucket):
    """A bucket as its readers see it: what the index names."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[list[Any]] = []

    def deliver(self) -> None:
        """Do the writes that were sent so many requests ago."""
        for entry in self.late:
            entry[0] -= 1
        due, self.late = [one for one in self.late if not one[0]], [one for one in self.late if one[0]]
        for _, call in due:
            with contextlib.suppress(Changed):
                call()

    def contents(self) -> dict[str, bytes | None]:
        entry = self.objects.get(ObjectsMount.key + "index.json")
        found: dict[str, bytes | None] = {}
        for path, it in (json.loads(entry[1])["entries"] if entry else {}).items():
            if "blob" in it:
                blob = self.objects.get(ObjectsMount.key + it["blob"])
                content = blob[1] if blob else None
            else:
                content = it["text"].encode() if "text" in it else None
            found[f"/output/checkpoints/{path}".rstrip("/")] = content
        return found


class BucketMount(Mount):
    """Cloud Storage FUSE with `implicit-dirs`, on a bucket without a hierarchical namespace.

    * What is there under a name, and of which generation, is taken from a cache for a minute, and for 5 s
      that nothing is; listings and bytes are not. Bytes of a generation that is gone answer ESTALE.
    * A file appears as a whole when it is closed. mkdir succeeds for one only.
    * A file is renamed by copying and deleting. So is each object below a folder, one after the other, with
      `--rename-dir-limit` (`copies_folders`); without it a folder isn't renamed.
    * A folder has no time of modification, and setting one succeeds.
    * fsync of a folder does nothing, and says so to nobody: the kernel takes ENOSYS for success.
    """

    errors = (errno.EIO, errno.EMFILE, errno.ENOSPC, errno.ESTALE, errno.ETIMEDOUT)

    def __init__(self, bucket: Bucket, clock: Callable[[], float], *, copies_folders: bool) -> None:
        super().__init__()
        self._bucket = bucket
        self._clock = clock
        self.listing_delay = BUCKET_ABSENCE_SECONDS
        self._copies_folders = copies_folders
        self._known: dict[str, tuple[float, int, int]] = {}

    def listdir(self, path: Path) -> list[str]:
        if self.stat(path)[0] != "folder":
            fail(errno.ENOTDIR, path)
        prefix = _key(path, "/")
        return sorted({key[len(prefix) :].split("/")[0] for key in self._bucket.below(prefix)})

    def stat(self, path: Path) -> tuple[str, int]:
        prefix, key = _key(path, "/"), _key(path)
        if not prefix or self._generation(prefix) or self._bucket.below(prefix):
            return "folder", 0
        if not self._generation(key):
            fail(errno.ENOENT, path)
        return "file", self._known[key][2]

    def utime(self, path: Path) -> None:
        self._need_folder(path)

    def mtime(self, path: Path) -> int:
        self._need_folder(path)
        return 0

    def mkdir(self, path: Path) -> None:
        self._need_folder(path.parent)
        if self._generation(_key(path)) or self._generation(_key(path, "/")):
            fail(errno.EEXIST, path)
        try:
            self._put(_key(path, "/"), b"", 0)
        except OSError:
            self._known.pop(_key(path, "/"), None)
            fail(errno.EEXIST, path)

    def create(self, path: Path) -> Handle:
        self._need_folder(path.parent)
        return Handle(path, self._generation(_key(path)))

    def put(self, handle: Handle, data: bytes) -> None:
        try:
            self._put(_key(handle.path), data, handle.node)
        except OSError:
            self._known.pop(_key(handle.path), None)
            raise

    def open(self, path: Path) -> Handle:
        self.stat(path)
        return Handle(path, self._generation(_key(path)))

    def get(self, handle: Handle) -> bytes:
        key = _key(handle.path)
        if self._bucket.generation(key) != handle.node:
            self._known.pop(key, None)
            fail(errno.ESTALE, handle.path)
        return self._bucket.objects[key][1]

    def fsync(self, path: Path) -> None:
        self.stat(path)

    def rename(self, source: Path, target: Path, between: Callable[[], None]) -> None:
        self._need_folder(target.parent)
        if self.stat(source)[0] == "file":
            self._move(_key(source), _key(target), between)
            return
        if not self._copies_folders:
            fail(errno.ENOSYS, source)
        old, new = _key(source, "/"), _key(target, "/")
        if self._bucket.below(new):
            fail(errno.ENOTEMPTY, target)
        if not self._bucket.generation(new):
            self._put(new, b"", 0)
        between()
        for key in self._bucket.below(old):
            self._move(key, new + key[len(old) :], between)
            between()
        self._delete(old)

    def unlink(self, path: Path) -> None:
        if self.stat(path)[0] == "folder":
            fail(errno.EISDIR, path)
        self._delete(_key(path))

    def rmdir(self, path: Path) -> None:
        if self.stat(path)[0] == "file":
            fail(errno.ENOTDIR, path)
        if self._bucket.below(_key(path, "/")):
            fail(errno.ENOTEMPTY, path)
        self._delete(_key(path, "/"))

    def _need_folder(self, path: Path) -> None:
        if self.stat(path)[0] != "folder":
            fail(errno.ENOTDIR, path)

    def _generation(self, key: str) -> int:
        if self._clock() >= self._known.get(key, (0.0, 0, 0))[0]:
            self._learn(key)
        return self._known[key][1]

    def _learn(self, key: str) -> None:
        generation, data = self._bucket.objects.get(key, (0, b""))
        seconds = BUCKET_CACHE_SECONDS if generation else BUCKET_ABSENCE_SECONDS
        self._known[key] = (self._clock() + seconds, generation, len(data))

    def _put(self, key: str, data: bytes, expected: int) -> None:
        self._bucket.put(key, data, expected)
        self._learn(key)

    def _delete(self, key: str) -> None:
        self._bucket.delete(key)
        self._learn(key)

    def _move(self, key: str, new: str, between: Callable[[], None]) -> None:
        if key not in self._bucket.objects:
            fail(errno.ENOENT, key)
        self._put(new, self._bucket.objects[key][1], self._bucket.generation(new))
        between()
        self._delete(key)


class MountpointMount(BucketMount):
    """Mountpoint for Amazon S3: nothing is renamed, replaced or, unless allowed, deleted.

    A folder that is made is this machine's own until a file is in it. Nothing is cached.
    """

    errors = (errno.EIO, errno.EMFILE, errno.ENOSPC, errno.ETIMEDOUT)

    def __init__(self, bucket: Bucket, *, allows_delete: bool = False) -> None:
        super().__init__(bucket, lambda: 0.0, copies_folders=False)
        self._allows_delete = allows_delete
        self._made: set[str] = set()

    def listdir(self, path: Path) -> list[str]:
        prefix = _key(path, "/")
        made = {
            key[len(prefix) :].split("/")[0] for key in self._made if key.startswith(prefix) and key != prefix
        }
        return sorted({*super().listdir(path), *made})

    def stat(self, path: Path) -> tuple[str, int]:
        return ("folder", 0) if _key(path, "/") in self._made else super().stat(path)

    def mkdir(self, path: Path) -> None:
        self._need_folder(path.parent)
        if _key(path, "/") in self._made or self._bucket.below(_key(path, "/")):
            fail(errno.EEXIST, path)
        self._made.add(_key(path, "/"))

    def create(self, path: Path) -> Handle:
        self._need_folder(path.parent)
        if self._bucket.generation(_key(path)):
            fail(errno.EPERM, path)
        return Handle(path, 0)

    def rename(self, source: Path, target: Path, between: Callable[[], None]) -> None:  # noqa: ARG002
        self.stat(source)
        fail(errno.ENOSYS, source)

    def unlink(self, path: Path) -> None:
        if self.stat(path)[0] == "file" and not self._allows_delete:
            fail(errno.EPERM, path)
        super().unlink(path)

    def rmdir(self, path: Path) -> None:
        if self._bucket.below(_key(path, "/")):
            fail(errno.ENOTEMPTY, path)
        if _key(path, "/") not in self._made:
            fail(errno.ENOENT, path)
        self._made.discard(_key(path, "/"))

    def _generation(self, key: str) -> int:
        self._learn(key)
        return self._known[key][1]


def _key(path: Path, end: str = "") -> str:
    key = "/".join(path.parts[1:])
    return key + end if key else ""


# --- The operations that checkpoints are made of ---


class SimulatedFiles(Files):
    """The operations of `Files`, out of the system calls of this machine's mount.

    `call` runs one, given its name, its path and the call itself; or raises an OSError before or after it, or
    lets others go first.
    """

    def __init__(self, mount: Mount, call: Callable[[str, Path, Callable[[], Any]], Any]) -> None:
        self._mount = mount
        self._call = call

    def make_folder(self, path: Path) -> None:
        made = [folder for folder in (path, *path.parents) if self.kind(folder) is None]
        for folder in reversed(made):
            with contextlib.suppress(FileExistsError):
                self.create_folder(folder)
        for folder in path.parents:
            self.sync(folder)

    def create_folder(self, path: Path) -> None:
        self._call("mkdir", path, lambda: self._mount.mkdir(path))

    def names(self, path: Path) -> list[str]:
        try:
            return list(self._call("listdir", path, lambda: self._mount.listdir(path)))
        except FileNotFoundError:
            return []

    def kind(self, path: Path) -> Any:
        try:
            return self._call("stat", path, lambda: self._mount.stat(path))[0]
        except (FileNotFoundError, NotADirectoryError):
            return None

    def touch(self, path: Path) -> None:
        self._call("utime", path, lambda: self._mount.utime(path))

    def changed(self, path: Path) -> int | None:
        try:
            return int(self._call("mtime", path, lambda: self._mount.mtime(path)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def size(self, path: Path) -> int:
        return int(self._call("stat", path, lambda: self._mount.stat(path))[1])

    def read(self, path: Path, limit: int) -> bytes:
        handle = self._call("open", path, lambda: self._mount.open(path))
        try:
            data = bytes(self._call("read", path, lambda: self._mount.get(handle)))
        finally:
            self._mount.close(handle)
        if len(data) > limit:
            raise NotAFile(f"{path} has more than {limit} bytes")
        return data

    def write(self, path: Path, data: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._call("unlink", path, lambda: self._mount.unlink(path))
        self._write(path, data)
        self._call("fsync", path, lambda: self._mount.fsync(path))

    def sync(self, path: Path) -> None:
        self._call("fsync", path, lambda: self._mount.fsync(path))

    def rename(self, source: Path, target: Path) -> None:
        def between() -> None:
            self._call("rename, in part", source, lambda: None)

        self._call("rename", source, lambda: self._mount.rename(source, target, between))

    def remove(self, path: Path) -> None:
        kind = self.kind(path)
        try:
            if kind == "folder":
                for name in self.names(path):
                    self.remove(path / name)
                self._call("rmdir", path, lambda: self._mount.rmdir(path))
            elif kind is not None:
                self._call("unlink", path, lambda: self._mount.unlink(path))
        except FileNotFoundError:
            return

    def remove_folder(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._call("rmdir", path, lambda: self._mount.rmdir(path))

    def tidy(self, claim: Path) -> None:
        """Nothing is ever hidden here."""

    def write_tensors(self, prefix: Path, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Write the data, then the index, each under a temporary name that is replaced, and sync neither."""
        data, index = packed(tensors)
        with _tensorflows():
            for end, content in ((".data-00000-of-00001", data), (".index", index)):
                path = prefix.with_name(prefix.name + end)
                temporary = path.with_name(path.name + ".tempstate1")
                self._write(temporary, content)
                self.rename(temporary, path)

    def read_tensors(self, prefix: Path, dtypes: Mapping[str, str]) -> dict[str, np.ndarray[Any, Any]]:
        """Read the index and the data, after a look at the index that takes any error for absence."""
        index, data = (prefix.with_name(prefix.name + end) for end in (".index", ".data-00000-of-00001"))
        with _tensorflows():
            try:
                self._call("access", index, lambda: self._mount.stat(index))
            except OSError:
                raise FileNotFoundError(
                    errno.ENOENT, "Failed to find any matching files", str(prefix)
                ) from None
            return unpacked(self.read(index, 1 << 20), self.read(data, 1 << 20), dtypes)

    def _write(self, path: Path, data: bytes) -> None:
        handle = self._call("create", path, lambda: self._mount.create(path))
        try:
            self._call("write", path, lambda: self._mount.put(handle, data))
        finally:
            self._mount.close(handle)


def packed(tensors: Mapping[str, np.ndarray[Any, Any]]) -> tuple[bytes, bytes]:
    data, index = b"", {}
    for key, array in tensors.items():
        value = array.tobytes()
        index[key] = [array.dtype.name, list(array.shape), len(data), len(value), zlib.crc32(value)]
        data += value
    text = json.dumps(index).encode()
    return data, zlib.crc32(text).to_bytes(4, "big") + text


def unpacked(index: bytes, data: bytes, dtypes: Mapping[str, str]) -> dict[str, np.ndarray[Any, Any]]:
    if len(index) < 4 or zlib.crc32(index[4:]) != int.from_bytes(index[:4], "big"):
        raise TENSORFLOW_ERRORS["DataLossError"]("file is too short to be an sstable")
    listed, found = json.loads(index[4:]), {}
    for key in dtypes:
        if key not in listed:
            raise TENSORFLOW_ERRORS["NotFoundError"](f"Key {key} not found in checkpoint")
        dtype, shape, start, length, crc = listed[key]
        value = data[start : start + length]
        if len(value) < length:
            raise TENSORFLOW_ERRORS["OutOfRangeError"]("Read less bytes than requested")
        if zlib.crc32(value) != crc:
            raise TENSORFLOW_ERRORS["DataLossError"]("Checksum does not match")
        found[key] = np.frombuffer(value, dtype).reshape(shape)
    return found


_OF_ERRNO = {
    errno.ENOENT: "NotFoundError",
    errno.ESTALE: "AbortedError",
    errno.ETIMEDOUT: "DeadlineExceededError",
    errno.EMFILE: "ResourceExhaustedError",
    errno.ENOSPC: "ResourceExhaustedError",
    errno.ENOSYS: "UnimplementedError",
}
TENSORFLOW_ERRORS: dict[str, type[Exception]] = {
    name: type(
        name,
        (Exception,),
        {"__module__": "tensorflow.simulated", "message": property(str)},
    )
    for name in (*_OF_ERRNO.values(), "UnknownError", "DataLossError", "OutOfRangeError")
}
"""Of the names and the module of TensorFlow's own, which cost a start of it."""


@contextlib.contextmanager
def _tensorflows() -> Iterator[None]:
    """Raise what TensorFlow makes of the errors of a disk."""
    try:
        yield
    except OSError as error:
        name = _OF_ERRNO.get(error.errno or 0, "UnknownError")
        raise TENSORFLOW_ERRORS[name](f"{error.filename}; {error.strerror}") from error
