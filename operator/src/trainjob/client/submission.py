"""A job that is submitted: the files that travel with it, packed for a ConfigMap, and its creation."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import secrets
import stat
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainjob.api.errors import mapping_at
from trainjob.client.request import compare, read_request
from trainjob.client.view import JobView, read_job
from trainjob.cluster.kube.resources import CONFIG_MAPS, TRAINJOBS
from trainjob.cluster.protocol import AlreadyExists, ClusterError, Manifest
from trainjob.core.names import job_labels
from trainjob_trainer.contract.files import CODE, LARGEST_CODE

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

    from trainjob.cluster.kube.client import ApiClient

LARGEST = 900_000
"""Bytes of a packed archive: a ConfigMap holds 1 MiB, and etcd's request a little more."""

IGNORE_FILES = (".gitignore", ".trainjobignore")
"""In the order of their rules; the last rule that matches decides."""

_NAMED_IN_MESSAGES = 5
_ADVICE = (
    "leave files out with a .trainjobignore (its rules are those of .gitignore), keep data on a volume, or"
    " build an image that holds the code"
)


class UnusableCode(ValueError):
    """The files can't travel; the message says which and what to do."""


@dataclass
class Code:
    """Files that travel, by the path below the root, and lines about what was left out and may be missed."""

    files: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def collect(
    root: Path, paths: Iterable[Path], *, script: Path | None = None, skip: Iterable[Path] = ()
) -> Code:
    """Return the files and folders below `root` that travel.

    A file that is named travels in any case. Of a folder, what travels is what git would see: not what
    `.gitignore` and `.trainjobignore` leave out, here and in the folders above up to the repository's. Hidden
    files, virtual environments and compiled Python files never do. A link travels as what it leads to, if
    that is below the root.

    Args:
        root: the future working directory.
        paths: files and folders in it.
        script: a script that travels with the Python files that it can import: those beside it, and those in
            folders beside it that hold Python files.
        skip: folders that never travel, such as the one with local runs.

    Raises:
        UnusableCode: a path is missing, unreadable or outside the root, the files are too large, or there is
            none.
    """
    walk, paths = _Walk(root, skip), tuple(paths)
    for path in paths:
        if path.is_dir():
            walk.add_folder(path, lambda _: True)
        else:
            walk.add_file(path)
    if script is not None:
        walk.add_file(script)
        walk.add_folder(script.parent, _is_python)
    _check_size({name: path.stat().st_size for name, path in walk.paths.items()})
    code = Code(notes=list(walk.notes))
    for name, path in sorted(walk.paths.items()):
        try:
            code.files[name] = path.read_bytes()
        except OSError as error:
            problem = f"{name} can't be read: {error.strerror}; leave it out by a .trainjobignore"
            raise UnusableCode(problem) from error
    if not code.files:
        raise UnusableCode(
            f"{_listed(paths)}: no file in it is sent: all are hidden or ignored (see .gitignore); name one"
        )
    return code


def _is_python(entry: os.DirEntry[str]) -> bool:
    """Return whether a script beside the entry can import it."""
    if not entry.is_dir():
        return entry.name.endswith(".py")
    try:
        return any(name.endswith(".py") for name in os.listdir(entry.path))  # noqa: PTH208 - names are enough
    except OSError:
        return False


class _Walk:
    """Finds files below a root, by name, and notes what was left out."""

    def __init__(self, root: Path, skip: Iterable[Path]) -> None:
        self._root = root.resolve()
        self._skip = {path.resolve() for path in skip}
        self._specs: dict[Path, GitIgnoreSpec | None] = {}
        above = (self._root, *self._root.parents)
        self._repository = next((folder for folder in above if (folder / ".git").exists()), self._root)
        self.paths: dict[str, Path] = {}
        self.notes: dict[str, None] = {}

    def add_file(self, path: Path) -> None:
        """Add a file that was named."""
        if not path.exists():
            raise UnusableCode(f"there is no {path}")
        if not path.is_file():
            raise UnusableCode(f"{path} is neither a file nor a folder")
        self.paths[self._inside(path)] = path.resolve()

    def add_folder(self, path: Path, travels: Callable[[os.DirEntry[str]], bool]) -> None:
        """Add the files of a folder that was named, of the entries in it those that travel."""
        inside, folder = self._inside(path), path.resolve()
        self._enter(folder, "" if inside == "." else f"{inside}/", travels, tuple(folder.parents))

    def _inside(self, path: Path) -> str:
        # The last part stays as it is: a link travels under its own name.
        whole = path.resolve() if path.name in ("", "..") else path.parent.resolve() / path.name
        if not whole.is_relative_to(self._root) or not path.resolve().is_relative_to(self._root):
            raise UnusableCode(
                f"{path} is outside {self._root}, which becomes the working directory of the replicas;"
                " start the command in a folder that holds all of the code"
            )
        return whole.relative_to(self._root).as_posix()

    def _enter(
        self, folder: Path, prefix: str, travels: Callable[[os.DirEntry[str]], bool], above: tuple[Path, ...]
    ) -> None:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise UnusableCode(f"{folder} can't be read: {error.strerror}") from error
        for entry in entries:
            path, name = Path(entry.path), f"{prefix}{entry.name}"
            if self._never_travels(entry) or not travels(entry) or self._is_ignored(name, entry.is_dir()):
                continue
            if entry.is_symlink() and not self._follows(path, name, (*above, folder)):
                continue
            if entry.is_dir():
                self._enter(path.resolve(), f"{name}/", travels, (*above, folder))
            elif entry.is_file():
                self.paths[name] = path.resolve()

    def _never_travels(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith(".") or entry.name.endswith((".pyc", ".pyo")):
            return True
        if not entry.is_dir():
            return False
        path = Path(entry.path)
        is_environment = (path / "pyvenv.cfg").is_file() or (path / "conda-meta").is_dir()
        return is_environment or entry.name in ("__pycache__", "node_modules") or path.resolve() in self._skip

    def _follows(self, path: Path, name: str, above: tuple[Path, ...]) -> bool:
        target = path.resolve()
        if not target.exists():
            problem = "leads to nothing"
        elif not target.is_relative_to(self._root):
            problem = f"leads out of {self._root}, to {target}"
        elif target in above:
            problem = "leads back to a folder that holds it"
        else:
            return True
        self.notes[f"{name} is a link that {problem}; it isn't sent"] = None
        return False

    def _is_ignored(self, name: str, is_folder: bool) -> bool:
        """Return whether a path is ignored whose folder isn't; the rules of deeper folders come first."""
        path = self._root / name
        for folder in path.parents:
            spec = self._rules(folder)
            if spec is not None:
                relative = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
                decision = spec.check_file(relative).include
                if decision is not None:
                    return decision
            if folder == self._repository:
                break
        return False

    def _rules(self, folder: Path) -> GitIgnoreSpec | None:
        if folder not in self._specs:
            from pathspec import GitIgnoreSpec  # noqa: PLC0415 - most commands pack nothing

            lines = list[str]()
            for name in IGNORE_FILES:
                with suppress(OSError):
                    lines += (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
            self._specs[folder] = GitIgnoreSpec.from_lines(lines) if lines else None
        return self._specs[folder]


class Packed(NamedTuple):
    """Files in one zip archive of at most `LARGEST` bytes, and its SHA-256 in hex."""

    archive: bytes
    digest: str


_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold: the same files make the same archive."""

_UNIX = 3


def pack(files: Mapping[str, bytes]) -> Packed:
    """Return the files as one archive, the same for the same files.

    Programs (`#!` at the beginning) can be executed where they are unpacked.

    Raises:
        UnusableCode: they are too large, or a name can't travel.
    """
    _check_size({name: len(content) for name, content in files.items()})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in sorted(files.items()):
            try:
                name.encode()
            except UnicodeEncodeError:
                shown = name.encode(errors="backslashreplace").decode()
                raise UnusableCode(
                    f"the name {shown} isn't UTF-8 text, so it can't be sent; rename the file"
                ) from None
            entry = zipfile.ZipInfo(name, _EARLIEST)
            entry.create_system = _UNIX
            entry.external_attr = (stat.S_IFREG | (0o755 if content.startswith(b"#!") else 0o644)) << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, compresslevel=9)
        sizes = {entry.filename: entry.compress_size for entry in archive.infolist()}
    whole = packed.getvalue()
    if len(whole) > LARGEST:
        raise _too_large(f"the code is {_kilobytes(len(whole))} packed, more than 900 kB", sizes)
    return Packed(whole, hashlib.sha256(whole).hexdigest())


def describe(files: Mapping[str, bytes], packed: Packed) -> str:
    """Return one line about what travels, such as `3 files, 2 kB packed: helper.py, train.py, ...`."""
    number = f"{len(files)} file{'' if len(files) == 1 else 's'}"
    return f"{number}, {_kilobytes(len(packed.archive))} packed: {_listed(sorted(files))}"


def _check_size(sizes: Mapping[str, int]) -> None:
    if sum(sizes.values()) > LARGEST_CODE:
        raise _too_large("the code is larger than 50 MB", sizes)


def _too_large(problem: str, sizes: Mapping[str, int]) -> UnusableCode:
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:_NAMED_IN_MESSAGES]
    named = ", ".join(f"{name} ({_kilobytes(sizes[name])})" for name in largest)
    return UnusableCode(f"{problem}; the largest files are {named}: {_ADVICE}")


def _kilobytes(size: int) -> str:
    return f"{max(1, round(size / 1000)):,} kB"


def _listed(names: Iterable[object]) -> str:
    shown = list(map(str, names))
    more = ["..."] if len(shown) > _NAMED_IN_MESSAGES else []
    return ", ".join(shown[:_NAMED_IN_MESSAGES] + more)


def with_code(manifest: Mapping[str, Any], packed: Packed) -> dict[str, Any]:
    """Return a TrainJob with `spec.code`, as `submit` expects it.

    The ConfigMap's name is used once: an earlier job's may still be there for a moment after its deletion.
    """
    name, template = manifest["metadata"]["name"], manifest["spec"]["template"]
    code = {"configMap": f"{name}-code-{secrets.token_hex(4)}", "digest": packed.digest}
    rest = {field: value for field, value in manifest["spec"].items() if field != "template"}
    return {**manifest, "spec": {**rest, "code": code, "template": template}}


def start_over(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a TrainJob that begins in a new folder of its output, whatever is in the output."""
    spec = manifest["spec"]
    return {**manifest, "spec": {**spec, "output": {**spec["output"], "resume": "Never"}}}


class AnotherJob(Exception):
    """A job of that name is there, and isn't the one that is asked for; the message says why.

    Attributes:
        job: that job.
    """

    def __init__(self, job: JobView, why: str) -> None:
        self.job = job
        why = "its deletion isn't over" if job.deleting else why
        super().__init__(
            f"{job.name} exists already in namespace {job.namespace} ({job.state}), and {why}; nothing was "
            "created"
        )


async def submit(
    api: ApiClient,
    namespace: str,
    manifest: Mapping[str, Any],
    packed: Packed | None = None,
    *,
    new: bool = False,
    fresh: bool = False,
    dry_run: bool = False,
) -> tuple[Manifest, bool]:
    """Create the job unless the same request has done so; return it as stored, and whether it is new.

    Its code is created after it, and belongs to it. Without its code no pod starts, so the order doesn't
    matter to them. If the code can't be created, the job is deleted again.

    Args:
        api: the API server.
        namespace: of the job.
        manifest: the TrainJob; it stays as it is.
        packed: its code, which `spec.code` names.
        new: where the job of that name was asked for something else, take the next name, such as `digits-2`.
        fresh: replace a finished job of that name; for a job that is to `start_over`.
        dry_run: have the API server check the job, and create nothing.

    Raises:
        AnotherJob: the job of that name was asked for something else, or can't be replaced.
        ClusterError: the job or its code was refused.
    """
    metadata = {**manifest["metadata"], "namespace": namespace}
    for number in count(1):
        name = metadata["name"] if number == 1 else f"{metadata['name']}-{number}"
        named = {**manifest, "metadata": {**metadata, "name": name}}
        try:
            job = await api.create(TRAINJOBS, named, dry_run=dry_run)
        except AlreadyExists:
            job = await api.get(TRAINJOBS, namespace, name)
            if fresh:
                return await _replace(api, job, manifest, packed, dry_run=dry_run), True
            # A stored job can't be changed, so a longer training or other code is another job, too.
            differences = compare(read_request(job), read_request(manifest)).all
            if not differences and not read_job(job).deleting:
                return job, False
            if not new:
                request = f"this is another request: {', '.join(differences)}"
                raise AnotherJob(read_job(job), request) from None
        else:
            if packed is not None and not dry_run:
                await _create_code(api, job, packed)
            return job, True
    raise AssertionError("there is always a next number")


async def _replace(
    api: ApiClient, stored: Manifest, manifest: Mapping[str, Any], packed: Packed | None, *, dry_run: bool
) -> Manifest:
    """Delete the stored job, if it is over and its output stays, and create this one in its place."""
    job, claim = read_job(stored), mapping_at(stored, "spec", "output", "claim")
    if not job.is_over:
        raise AnotherJob(job, "isn't over")
    if "size" in claim and not claim.get("retain"):
        raise AnotherJob(job, "its output would be deleted with it")
    if dry_run:
        return stored
    await api.delete(TRAINJOBS, job.namespace, job.name, uid=job.uid)
    return (await submit(api, job.namespace, manifest, packed))[0]


async def _create_code(api: ApiClient, job: Manifest, packed: Packed) -> None:
    metadata = job["metadata"]
    owner = {key: job[key] for key in ("apiVersion", "kind")}
    owner |= {key: metadata[key] for key in ("name", "uid")}
    code = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": job["spec"]["code"]["configMap"],
            "namespace": metadata["namespace"],
            "labels": job_labels(metadata["name"]),
            "ownerReferences": [owner],
        },
        "immutable": True,
        "binaryData": {CODE: base64.b64encode(packed.archive).decode()},
    }
    try:
        await api.create(CONFIG_MAPS, code)
    except BaseException:
        with suppress(ClusterError):
            await api.delete(TRAINJOBS, metadata["namespace"], metadata["name"], uid=metadata["uid"])
        raise
