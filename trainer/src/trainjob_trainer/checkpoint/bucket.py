"""A folder in a bucket: small files and the tree of names in one object, large files in objects of their own.

A bucket has no rename and no folders, but one object can be replaced only if nobody has replaced it since
(If-Match of S3 and Azure, if-generation-match of GCS), or created only if it isn't there. So the tree is one
JSON object, the index. Each operation reads it, changes it and writes it back on this condition: operations
on names have one order for all machines, and a rename is atomic, as on a local disk. The fence and the store
work unchanged on top. What the index doesn't name isn't there for any reader.

A large file is uploaded under a key of its own before the index names it. What a writer that ended has
uploaded in vain is deleted by the next one (`tidy`).

The outcome of a write that times out is unknown, and a client that repeats it by itself may be refused
because its first try has succeeded. So the index has the number of the last change that each process has
made: who is refused or gets no answer reads the index again and finds out.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import html
import json
import os
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from trainjob_trainer.atomic_file import TEMPORARY
from trainjob_trainer.checkpoint.files import NOT_THERE, Files, Kind, NotAFile
from trainjob_trainer.environment import Environment
from trainjob_trainer.errors import first_line

if TYPE_CHECKING:
    from trainjob_trainer.checkpoint.files import Array

INDEX = "index.json"
BLOBS = "blobs/"
SCRATCH = f"{TEMPORARY}checkpoint-"
"""Prefix of folders of this machine with a checkpoint on its way; a process that is killed leaves one."""
_FORMAT = 1
_REMEMBERED = 16
"""The number of processes whose last change the index remembers."""
_PAUSES = (0.1, 0.3, 1.0, 1.0)
"""Seconds before a change is tried again whose outcome isn't known, or which others have overtaken."""


class BucketError(OSError):
    """A request that failed; `strerror` is what the store has said."""


class Changed(Exception):
    """The object has another version than the expected one, or exists though it was to be created."""


class Objects(Protocol):
    """The objects of a bucket below a prefix.

    A version is for conditions. A tag is what a list has of it: another one if the content has changed.

    All methods raise OSError, with the number of what is wrong, if the bucket can't be used or is away.
    """

    def get(self, key: str, known: str = "") -> tuple[bytes, str] | None:
        """Return an object and its version; None if that is `known`. FileNotFoundError: there is none."""

    def put(self, key: str, content: bytes | Path) -> str:
        """Write an object, from memory or from a file, and return its tag."""

    def put_if(self, key: str, data: bytes, version: str) -> str:
        """Replace this version of an object, or create it (""), and return the new version; or `Changed`."""

    def fetch(self, key: str, path: Path) -> str:
        """Write an object into a new file, and return its tag. FileNotFoundError: there is none."""

    def delete(self, keys: list[str]) -> None:
        """Delete objects; those that aren't there are fine."""

    def versions(self, prefix: str) -> dict[str, str]:
        """Return the tags of all objects whose keys have this prefix."""


@dataclass
class _Tree:
    """The index: entries by path, and the last changes of processes.

    An entry is `{"time": n}` for a folder, `{"text": ...}` or `{"blob": key, "bytes": n}` for a file. The
    path of the folder itself is "".
    """

    entries: dict[str, dict[str, Any]]
    writers: dict[str, int]

    @classmethod
    def from_json(cls, data: bytes) -> _Tree:
        try:
            raw = json.loads(data)
            if raw["format"] > _FORMAT:
                raise BucketError(errno.EINVAL, f"{INDEX} has been written by a later version of the trainer")
            entries = {str(path): _checked(entry) for path, entry in raw["entries"].items()}
            return cls(entries, {str(writer): int(last) for writer, last in raw["writers"].items()})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BucketError(errno.EINVAL, f"{INDEX} is damaged: {first_line(error)}") from error

    def to_json(self) -> bytes:
        return json.dumps({"format": _FORMAT, "entries": self.entries, "writers": self.writers}).encode()

    def kind(self, path: str) -> Kind | None:
        entry = self.entries.get(path)
        if entry is None:
            return None
        return "folder" if "time" in entry else "file"

    def below(self, path: str) -> list[str]:
        """Return the paths of all that is in a folder, at any depth."""
        start = f"{path}/" if path else ""
        return [one for one in self.entries if one and one.startswith(start)]

    def need_parent(self, path: str) -> None:
        if self.kind(_parent(path)) != "folder":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def file(self, path: str) -> dict[str, Any]:
        if self.kind(path) != "file":
            number = errno.ENOENT if self.kind(path) is None else errno.EISDIR
            raise OSError(number, os.strerror(number), path)
        return self.entries[path]

    def blobs(self) -> set[str]:
        return {entry["blob"] for entry in self.entries.values() if "blob" in entry}


class BucketFiles(Files):
    """The operations of checkpoints on a folder that is in a bucket.

    Args:
        root: the folder's path, which exists on no disk.
        objects: the bucket, below the folder's prefix.
        sleep: waits for so many seconds.
        inline: bytes of a text file up to which it is part of the index.
        scratch: where TensorFlow writes and reads its files; None for the system's temporary folder.
    """

    keeps_all = False

    def __init__(
        self,
        root: Path,
        objects: Objects,
        *,
        sleep: Callable[[float], None] = time.sleep,
        inline: int = 1 << 16,
        scratch: Path | None = None,
    ) -> None:
        self._root = root
        self._objects = objects
        self._sleep = sleep
        self._inline = inline
        self._writer = uuid.uuid4().hex[:12]
        self._scratch = scratch
        self._lock = threading.RLock()
        self._tree = _Tree({}, {})
        self._version = ""
        self._changes = self._blobs = 0

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents; the index itself, if there is none."""
        name = self._name(path)

        def make(tree: _Tree) -> None:
            parts = name.split("/") if name else []
            for each in ("", *("/".join(parts[: end + 1]) for end in range(len(parts)))):
                if tree.kind(each) == "file":
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
                tree.entries.setdefault(each, {"time": 0})

        self._change(make)

    def create_folder(self, path: Path) -> None:
        """See `Files.create_folder`."""
        name = self._name(path)

        def create(tree: _Tree) -> None:
            tree.need_parent(name)
            if name in tree.entries:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            tree.entries[name] = {"time": 0}

        self._change(create)

    def names(self, path: Path) -> list[str]:
        """See `Files.names`."""
        name, tree = self._name(path), self._current()
        start = len(name) + 1 if name else 0
        return sorted(each[start:] for each in tree.below(name) if "/" not in each[start:])

    def kind(self, path: Path) -> Kind | None:
        """See `Files.kind`."""
        return self._current().kind(self._name(path))

    def touch(self, path: Path) -> None:
        """See `Files.touch`; the time is a count."""
        name = self._name(path)

        def touch(tree: _Tree) -> None:
            if tree.kind(name) != "folder":
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            tree.entries[name] = {"time": tree.entries[name]["time"] + 1}

        self._change(touch)

    def changed(self, path: Path) -> int | None:
        """See `Files.changed`."""
        tree, name = self._current(), self._name(path)
        return int(tree.entries[name]["time"]) if tree.kind(name) == "folder" else None

    def size(self, path: Path) -> int:
        """See `Files.size`."""
        return _size(self._current().file(self._name(path)))

    def read(self, path: Path, limit: int) -> bytes:
        """See `Files.read`."""
        tree, name = self._current(), self._name(path)
        if tree.kind(name) == "folder":
            raise NotAFile(f"{path} is not a regular file")
        entry = tree.file(name)
        if _size(entry) > limit:
            raise NotAFile(f"{path} has more than {limit} bytes")
        if "text" in entry:
            return str(entry["text"]).encode()
        found = self._objects.get(entry["blob"])
        assert found is not None  # noqa: S101 - no version was given
        return found[0]

    def write(self, path: Path, data: bytes) -> None:
        """See `Files.write`."""
        self._put({path: data})

    def sync(self, path: Path) -> None:
        """Do nothing: what a bucket has accepted is durable."""

    def rename(self, source: Path, target: Path) -> None:
        """See `Files.rename`; what it replaces is deleted."""
        old, new = self._name(source), self._name(target)

        def rename(tree: _Tree) -> None:
            if old not in tree.entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
            tree.need_parent(new)
            if new in tree.entries:
                number = errno.ENOTEMPTY if tree.below(new) else 0
                if tree.kind(old) != tree.kind(new):
                    number = errno.EISDIR if tree.kind(new) == "folder" else errno.ENOTDIR
                if number:
                    raise OSError(number, os.strerror(number), str(target))
            for each in (old, *tree.below(old)):
                tree.entries[new + each[len(old) :]] = tree.entries.pop(each)

        self._change(rename)

    def remove(self, path: Path) -> None:
        """See `Files.remove`."""
        name = self._name(path)

        def remove(tree: _Tree) -> None:
            for each in (name, *tree.below(name)):
                tree.entries.pop(each, None)

        self._change(remove)

    def remove_folder(self, path: Path) -> None:
        """See `Files.remove_folder`."""
        name = self._name(path)

        def remove(tree: _Tree) -> None:
            if tree.below(name):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
            tree.entries.pop(name, None)

        self._change(remove)

    def write_tensors(self, prefix: Path, tensors: Mapping[str, Array]) -> None:
        """See `Files.write_tensors`: TensorFlow writes into a folder of this machine, which is uploaded."""
        with self._local_folder() as folder:
            super().write_tensors(folder / prefix.name, tensors)
            self._put({prefix.parent / file.name: file for file in sorted(folder.iterdir())})

    def read_tensors(self, prefix: Path, dtypes: Mapping[str, str]) -> dict[str, Array]:
        """See `Files.read_tensors`: the files are downloaded into a folder of this machine."""
        with self._local_folder() as folder:
            for path, entry in self._current().entries.items():
                directory, _, name = path.rpartition("/")
                # What TensorFlow has written into a file is never inline.
                if directory == self._name(prefix.parent) and name.startswith(f"{prefix.name}."):
                    self._objects.fetch(entry["blob"], folder / name)
            return super().read_tensors(folder / prefix.name, dtypes)

    def tidy(self, claim: Path) -> None:
        """See `Files.tidy`.

        The objects are listed before the index is read. If the claim is in it, all other writers with a claim
        of their own had lost it by then, and what they have uploaded can't be named any more.
        """
        keys, tree = self._objects.versions(BLOBS), self._current()
        if tree.kind(self._name(claim)) == "folder":
            used, own = tree.blobs(), f"{BLOBS}{self._writer}/"
            self._objects.delete([key for key in keys if key not in used and not key.startswith(own)])

    def _put(self, contents: Mapping[Path, bytes | Path]) -> None:
        """Write files; nobody sees one without the others."""
        entries: dict[str, dict[str, Any]] = {}
        for path, content in contents.items():
            name, text = self._name(path), self._text(content)
            if text is not None:
                entries[name] = {"text": text}
                continue
            self._blobs += 1
            key = f"{BLOBS}{self._writer}/{self._blobs}-{path.name}"
            self._objects.put(key, content)
            size = len(content) if isinstance(content, bytes) else content.stat().st_size
            entries[name] = {"blob": key, "bytes": size}

        def put(tree: _Tree) -> None:
            for name in entries:
                tree.need_parent(name)
                if tree.kind(name) == "folder":
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
            tree.entries |= entries

        self._change(put)

    def _current(self) -> _Tree:
        """Return the index as it is in the bucket now."""
        with self._lock:
            try:
                found = self._objects.get(INDEX, self._version)
            except NOT_THERE:
                self._tree, self._version = _Tree({}, {}), ""
            else:
                if found is not None:
                    self._tree, self._version = _Tree.from_json(found[0]), found[1]
            return self._tree

    def _change(self, change: Callable[[_Tree], None]) -> None:
        """Apply a change to the index, and delete what it doesn't name any more.

        Raises OSError if `change` does, or if the bucket doesn't answer; then it may have been made.
        """
        freed: set[str] = set()
        with self._lock:
            self._changes += 1
            failure = OSError(errno.EAGAIN, "the index is changed by others all the time")
            for pause in _PAUSES:
                tree = self._current()
                if tree.writers.get(self._writer) == self._changes:
                    break  # an earlier try has succeeded
                after = _Tree(dict(tree.entries), dict(tree.writers))
                change(after)
                if after.entries == tree.entries:
                    return
                after.writers.pop(self._writer, None)
                after.writers = dict([*after.writers.items(), (self._writer, self._changes)][-_REMEMBERED:])
                freed = tree.blobs() - after.blobs()
                try:
                    self._version = self._objects.put_if(INDEX, after.to_json(), self._version)
                except Changed:
                    self._version = ""  # GCS: a copy has another generation, and the known entity tag
                    continue
                except OSError as error:
                    failure = error
                    self._sleep(pause)
                    continue
                self._tree = after
                break
            else:
                raise failure
        if freed:
            with contextlib.suppress(OSError):  # the next writer deletes them
                self._objects.delete(sorted(freed))

    @contextlib.contextmanager
    def _local_folder(self) -> Iterator[Path]:
        if self._scratch is not None:
            self._scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=self._scratch) as folder:
            yield Path(folder)

    def _text(self, content: bytes | Path) -> str | None:
        """Return the content of a small text file, which becomes part of the index."""
        if isinstance(content, Path):
            return None
        try:
            return content.decode() if len(content) <= self._inline else None
        except UnicodeDecodeError:
            return None

    def _name(self, path: Path) -> str:
        name = path.relative_to(self._root).as_posix()
        return "" if name == "." else name


def _checked(entry: Any) -> dict[str, Any]:
    """Return an entry of the index in one of its three forms; TypeError, ValueError, KeyError for others."""
    if "time" in entry:
        return {"time": int(entry["time"])}
    if "text" in entry:
        return {"text": str(entry["text"])}
    return {"blob": str(entry["blob"]), "bytes": int(entry["bytes"])}


def _size(entry: Mapping[str, Any]) -> int:
    return int(entry["bytes"]) if "blob" in entry else len(entry["text"].encode())


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def build_files(environment: Environment) -> Files:
    """Return the operations on the job's folder of checkpoints: in its bucket, or on its volume.

    Raises BucketError if its address isn't one of a bucket, or obstore isn't installed.
    """
    uri = environment.checkpoint_uri
    own = environment.output_dir
    return _files_of_this_process(environment.checkpoint_dir, uri, own) if uri else Files()


@functools.lru_cache(maxsize=1)
def _files_of_this_process(folder: Path, uri: str, scratch: Path) -> BucketFiles:
    return BucketFiles(folder, ObjectStore(uri), scratch=scratch)


# The bucket itself, by obstore: S3, Google Cloud Storage, Azure, and what has S3's API.


PART = 8 << 20
"""Bytes of a part of an upload or download."""
PARTS_AT_ONCE = 4
_CLIENT = {"connect_timeout": "5s", "timeout": "60s", "allow_http": True}
"""HTTP is used only with an endpoint that says so."""
_RETRIES = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(seconds=0.5), "max_backoff": timedelta(seconds=5), "base": 2.0},
}
"""Few: what lasts longer is waited for where the job's status says so. They take a second, since GCS answers
429 to a second change of an object within one."""
_SAID = re.compile(r"<Code>(\w+)</Code>\s*<Message>([^<\n]*)")
"""In a text of obstore: what the store has answered. Azure adds lines with the request's number."""
_BLOCKED = re.compile("<Code>(?:BlobImmutable|Container|Lease)")
"""Azure's answers 409 and 412 for a policy, a lease or a container: the object hasn't changed."""
_users: dict[str, int] = {}
"""The first process that has made a request: those that are forked later don't have obstore's threads."""
_MISSING = ("NoSuchKey", "BlobNotFound", None)
"""Answers of S3 and GCS, and of Azure, for an object alone; None if the answer has no text."""
_REFUSED = re.compile(
    r"status code: (?:3\d\d|4(?!08|12|25|29)\d\d)\b|redirect without LOCATION|must be specified|Unable to"
)
"""In such a text: the same request can't succeed later either."""

_PASSWORD = re.compile(r"//[^/\s@:]*:[^/\s@]*@")
"""In an address, such as the endpoint's, that obstore's text repeats."""


class ObjectStore:
    """`Objects` below a URI such as `s3://bucket/folder`.

    Credentials, region and endpoint are those of the environment.

    Args:
        uri: of the folder.

    Raises:
        BucketError: the URI isn't one of a bucket, or obstore isn't installed.
    """

    def __init__(self, uri: str) -> None:
        try:
            import obstore  # noqa: PLC0415 - only this part of the package needs it
            from obstore import store  # noqa: PLC0415 - as above
        except ImportError:
            raise BucketError(
                errno.ENOPKG, f"{uri} needs obstore: pip install 'trainjob-trainer[bucket]' in the image"
            ) from None
        # A Secret that was made of a file may end with its line break, which no header can have.
        for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
            os.environ[name] = os.environ[name].strip()
        self._obstore: Any = obstore
        self._uri = uri
        try:
            with self._explained(is_request=False):
                from_url: Any = store.from_url
                self._store = from_url(uri, client_options=_CLIENT, retry_config=_RETRIES)
        except ValueError as error:
            raise BucketError(errno.EINVAL, f"{uri} is no address of a bucket: {first_line(error)}") from None

    def get(self, key: str, known: str = "") -> tuple[bytes, str] | None:
        """See `Objects.get`."""
        options = {"if_none_match": json.loads(known)["e_tag"]} if known else {}
        with self._explained():
            try:
                found = self._obstore.get(self._store, key, options=options)
            except self._obstore.exceptions.NotModifiedError:
                return None
            return bytes(found.bytes()), _version(found.meta)

    def put(self, key: str, content: bytes | Path) -> str:
        """See `Objects.put`; a file is read in parts, of which a few are in memory at once."""
        with self._explained():
            parts = {"chunk_size": PART, "max_concurrency": PARTS_AT_ONCE}
            return _tag(self._obstore.put(self._store, key, content, **parts))

    def put_if(self, key: str, data: bytes, version: str) -> str:
        """See `Objects.put_if`."""
        exceptions = self._obstore.exceptions
        with self._explained():
            try:
                mode = json.loads(version) if version else "create"
                return _version(self._obstore.put(self._store, key, data, mode=mode))
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
                if _BLOCKED.search(str(error)):
                    raise
                raise Changed from None

    def fetch(self, key: str, path: Path) -> str:
        """See `Objects.fetch`; several parts at a time, which are all of one version or fail."""
        with self._explained(), path.open("wb") as file:
            found = self._obstore.head(self._store, key)
            size = int(found["size"])
            file.truncate(size)
            with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
                parts = [(start, min(start + PART, size)) for start in range(0, size, PART)]
                for _ in pool.map(lambda part: self._fetch_part(key, part, found["e_tag"], file), parts):
                    pass
            return _tag(found)

    def _fetch_part(self, key: str, part: tuple[int, int], tag: str, file: IO[bytes]) -> None:
        got = self._obstore.get(self._store, key, options={"range": part, "if_match": tag})
        os.pwrite(file.fileno(), memoryview(got.bytes()), part[0])

    def delete(self, keys: list[str]) -> None:
        """See `Objects.delete`."""
        with self._explained():
            try:
                self._obstore.delete(self._store, keys)
            except FileNotFoundError:  # GCS and Azure: one isn't there, and others may be left
                for key in keys:
                    with contextlib.suppress(FileNotFoundError):
                        self._obstore.delete(self._store, key)

    def versions(self, prefix: str) -> dict[str, str]:
        """See `Objects.versions`."""
        with self._explained():
            pages = self._obstore.list(self._store, prefix or None)
            return {one["path"]: _tag(one) for page in pages for one in page}

    @contextlib.contextmanager
    def _explained(self, *, is_request: bool = True) -> Iterator[None]:
        """Raise what obstore raises as an OSError with the number of its cause."""
        if is_request and _users.setdefault("first", os.getpid()) != os.getpid():
            raise BucketError(
                errno.EINVAL,
                f"{self._uri} can't be used here: this process has been forked by one that had used it. "
                'Start processes by "spawn" instead (multiprocessing.set_start_method)',
            )
        exceptions = self._obstore.exceptions
        transient = (exceptions.GenericError, exceptions.PreconditionError)
        try:
            yield
        except (exceptions.BaseError, FileNotFoundError, NotImplementedError) as error:
            found = _SAID.search(str(error))
            code, said = found.groups() if found else (None, first_line(error))
            text = f"{self._uri}: {html.unescape(said)}" + (f" ({code})" if code else "")
            text = _PASSWORD.sub("//", text)
            number = errno.EIO
            if isinstance(error, FileNotFoundError) and code in _MISSING:
                raise FileNotFoundError(errno.ENOENT, text) from error
            if isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)):
                number = errno.EACCES
            elif not isinstance(error, transient) or _REFUSED.search(str(error)):
                number = errno.EINVAL
            raise BucketError(number, text) from error


def _version(meta: Any) -> str:
    """Return an object's version as text: the entity tag, and on GCS the generation."""
    return json.dumps({name: meta[name] for name in ("e_tag", "version") if meta.get(name)})


def _tag(meta: Any) -> str:
    """Return an object's entity tag without its quotes, which a list of Azure doesn't have."""
    return str(meta["e_tag"]).strip('"')


def tag_of(version: str) -> str:
    """Return the tag of a version; see `Objects`."""
    return _tag(json.loads(version))
