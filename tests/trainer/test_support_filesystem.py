"""The simulated file systems do what the real ones do: a model that nobody checked proves nothing."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.trainer.filesystem import (
    TENSORFLOW_ERRORS,
    Bucket,
    BucketMount,
    LocalMount,
    MountpointMount,
    NfsMount,
    SimulatedFiles,
    Tree,
)
from trainjob_trainer.checkpoint.files import Files

ROOT = Path("/")
A, B = ROOT / "a", ROOT / "b"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def files(mount: Any) -> SimulatedFiles:
    return SimulatedFiles(mount, lambda _what, _path, call: call())


def error_of(call: Callable[[], object]) -> str:
    """The name of the error number that a call fails with; empty if it doesn't."""
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


MOUNTS: dict[str, Callable[[], Any]] = {
    "disk": lambda: LocalMount(Tree()),
    "nfs": lambda: NfsMount(Tree(), Clock()),
    "bucket": lambda: BucketMount(Bucket(), Clock(), copies_folders=True),
}
every_mount = pytest.mark.parametrize("mount", [pytest.param(it, id=name) for name, it in MOUNTS.items()])


def test_no_operation_of_files_is_left_to_the_real_disk() -> None:
    operations = [name for name, one in vars(Files).items() if callable(one) and not name.startswith("_")]

    assert [name for name in operations if name not in vars(SimulatedFiles)] == []


@every_mount
def test_one_machine_finds_what_it_has_written(mount: Callable[[], Any], tmp_path: Path) -> None:
    """The same calls, on the real disk and on the simulated ones."""
    real, simulated = Files(), files(mount())
    for it, root in ((real, tmp_path), (simulated, ROOT)):
        it.make_folder(root / "a" / "b")
        it.write(root / "a" / "one", b"1")
        it.write(root / "a" / "one", b"11")
        it.rename(root / "a" / "one", root / "a" / "two")
        it.write(root / "a" / "b" / "in", b"3")
        it.rename(root / "a" / "b", root / "a" / "c")
        it.sync(root / "a")
        it.touch(root / "a")
        seen = [
            it.changed(root / "a") is None,
            it.changed(root / "none"),
            it.changed(root / "a" / "two"),
            error_of(lambda it=it, root=root: it.touch(root / "none")),
            sorted(it.names(root / "a")),
            it.names(root / "none"),
            [it.kind(root / "a" / name) for name in ("two", "c", "b", "two/under")],
            it.read(root / "a" / "two", 10),
            it.size(root / "a" / "two"),
            it.read(root / "a" / "c" / "in", 10),
            error_of(lambda it=it, root=root: it.create_folder(root / "a" / "c")),
            error_of(lambda it=it, root=root: it.create_folder(root / "none" / "c")),
            error_of(lambda it=it, root=root: it.read(root / "a" / "one", 10)),
            error_of(lambda it=it, root=root: it.rename(root / "a" / "one", root / "a" / "x")),
            error_of(lambda it=it, root=root: it.sync(root / "none")),
        ]
        it.remove(root / "a" / "c")
        it.remove(root / "a" / "none")
        seen.append(it.names(root / "a"))
        if it is real:
            expected = seen
    assert seen == expected


@pytest.mark.parametrize(("mount", "shows"), [("disk", True), ("nfs", True), ("bucket", False)])
def test_a_touch_shows_where_folders_have_a_time(mount: str, shows: bool) -> None:
    it = files(MOUNTS[mount]())
    it.make_folder(A)
    before = it.changed(A)
    it.touch(A)

    assert (it.changed(A) != before) is shows


@every_mount
def test_a_folder_is_not_replaced_by_a_rename_while_something_is_in_it(mount: Callable[[], Any]) -> None:
    it = files(mount())
    for folder in (A, B):
        it.make_folder(folder)
        it.write(folder / "in", b"")

    assert error_of(lambda: it.rename(A, B)) == "ENOTEMPTY"
    assert sorted(it.names(ROOT)) == ["a", "b"]


@every_mount
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda it: it.remove(A / "v.index"), "NotFoundError"),
        (lambda it: it.remove(A / "v.data-00000-of-00001"), "NotFoundError"),
        (lambda it: it.write(A / "v.index", b""), "DataLossError"),
        (lambda it: it.write(A / "v.data-00000-of-00001", b""), "OutOfRangeError"),
        (lambda it: it.write(A / "v.data-00000-of-00001", b"\1\2\3\4"), "DataLossError"),
    ],
    ids=["no index", "no data", "cut index", "cut data", "altered data"],
)
def test_tensors_are_read_as_they_were_written_or_not_at_all(
    mount: Callable[[], Any], spoil: Callable[[SimulatedFiles], None], error: str
) -> None:
    """The errors are those of TensorFlow 2.21 for the same files."""
    it = files(mount())
    it.make_folder(A)
    it.write_tensors(A / "v", {"x": np.float32(1.5)})  # type: ignore[dict-item]
    assert float(it.read_tensors(A / "v", {"x": "float32"})["x"]) == 1.5
    spoil(it)

    with pytest.raises(TENSORFLOW_ERRORS[error]):
        it.read_tensors(A / "v", {"x": "float32"})


def test_a_look_that_fails_is_an_index_that_is_not_there_for_tensorflow() -> None:
    def call(what: str, path: Path, do: Callable[[], Any]) -> Any:
        if what == "access":
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return do()

    it = SimulatedFiles(LocalMount(Tree()), call)
    it.make_folder(A)
    it.write_tensors(A / "v", {"x": np.float32(1.5)})  # type: ignore[dict-item]

    with pytest.raises(TENSORFLOW_ERRORS["NotFoundError"]):
        it.read_tensors(A / "v", {"x": "float32"})


# --- A disk that loses power ---


def found_after_a_power_cut(
    prepare: Callable[[LocalMount], None], survivors: int, keeps_data: bool
) -> object:
    tree = Tree()
    prepare(LocalMount(tree))
    tree.lose_power(survivors, keeps_data)
    return tree.contents()


def written(mount: LocalMount, *synced: Path) -> None:
    mount.mkdir(A)
    mount.put(mount.create(A / "x"), b"1")
    for path in synced:
        mount.fsync(path)


@pytest.mark.parametrize(
    ("synced", "survivors", "keeps_data", "left"),
    [
        ([], 0, True, {}),
        ([A / "x", A], 0, True, {}),  # nothing leads to it: the folder above wasn't synced
        ([ROOT], 0, True, {"/a": None}),
        ([A, ROOT], 0, False, {"/a": None, "/a/x": b""}),
        ([A / "x", A, ROOT], 0, False, {"/a": None, "/a/x": b"1"}),
        ([], 1, True, {"/a": None}),
        ([], 9, True, {"/a": None, "/a/x": b"1"}),
    ],
)
def test_a_power_cut_leaves_what_was_synced(
    synced: list[Path], survivors: int, keeps_data: bool, left: object
) -> None:
    assert found_after_a_power_cut(lambda mount: written(mount, *synced), survivors, keeps_data) == left


@pytest.mark.parametrize("synced", [A, B])
def test_a_rename_between_folders_survives_as_a_whole(synced: Path) -> None:
    def prepare(mount: LocalMount) -> None:
        mount.mkdir(B)
        written(mount, A / "x", ROOT, A)
        mount.rename(A / "x", B / "x", lambda: None)
        mount.fsync(synced)

    left = found_after_a_power_cut(prepare, 0, False)
    assert left == {"/a": None, "/b": None, "/b/x": b"1"}


# --- NFS ---


class Nfs:
    """Two machines and what they both see."""

    def __init__(self, *, lists_anew: bool = True) -> None:
        self.clock, self.tree = Clock(), Tree()
        self.one, self.other = (NfsMount(self.tree, self.clock, lists_anew=lists_anew) for _ in range(2))


def test_nfs_entries_and_their_absence_are_known_for_a_minute() -> None:
    it = Nfs()
    it.one.mkdir(A)
    assert it.other.stat(A) == ("folder", 0)
    assert error_of(lambda: it.other.stat(B)) == "ENOENT"
    it.one.rename(A, B, lambda: None)
    assert it.other.stat(A) == ("folder", 0)
    assert error_of(lambda: it.other.stat(B)) == "ENOENT"
    it.clock.now += 60

    assert error_of(lambda: it.other.stat(A)) == "ENOENT"
    assert it.other.stat(B) == ("folder", 0)


@pytest.mark.parametrize(("lists_anew", "seen"), [(True, ["a", "b"]), (False, ["a"])], ids=["cto", "nocto"])
def test_nfs_listings_are_as_late_as_the_mount_allows(lists_anew: bool, seen: list[str]) -> None:
    it = Nfs(lists_anew=lists_anew)
    it.one.mkdir(A)
    assert it.other.listdir(ROOT) == ["a"]
    it.one.mkdir(B)
    assert it.other.listdir(ROOT) == seen
    assert it.one.listdir(ROOT) == ["a", "b"]
    it.clock.now += 60

    assert it.other.listdir(ROOT) == ["a", "b"]


def test_nfs_handles_outlive_a_rename_and_not_a_deletion() -> None:
    """Why a claim counts only once the other one is deleted: moved away it is still written through."""
    it = Nfs()
    it.one.mkdir(A)
    it.one.put(it.one.create(A / "x"), b"1")
    it.one.put(it.one.create(A / "y"), b"2")
    it.other.mkdir(B)
    it.other.rename(A, B / "moved", lambda: None)

    it.one.rename(A / "x", ROOT / "published", lambda: None)

    assert "/published" in it.tree.contents()
    files(it.other).remove(B / "moved")
    assert error_of(lambda: it.one.rename(A / "y", ROOT / "again", lambda: None)) == "ENOENT"
    assert error_of(lambda: it.one.create(A / "z")) == "ENOENT"


def test_nfs_an_open_file_that_another_machine_deletes_is_stale() -> None:
    it = Nfs()
    it.one.put(it.one.create(A), b"1")
    handle = it.one.open(A)
    it.other.unlink(A)

    assert error_of(lambda: it.one.get(handle)) == "ESTALE"
    assert error_of(lambda: it.one.open(A)) == "ENOENT"


def test_nfs_a_file_that_this_machine_has_open_keeps_its_folder() -> None:
    it = Nfs()
    it.one.mkdir(A)
    it.one.put(handle := it.one.create(A / "x"), b"1")
    it.one.close(handle)
    handle = it.one.open(A / "x")

    assert error_of(lambda: files(it.one).remove(A)) == "ENOTEMPTY"

    assert it.one.get(handle) == b"1"
    (name,) = it.one.listdir(A)
    assert name.startswith(".nfs")
    it.one.close(handle)
    files(it.one).remove(A)
    assert it.tree.contents() == {}


@pytest.mark.parametrize(
    ("call", "error", "left"),
    [
        (lambda mount: mount.mkdir(B), "EEXIST", ["a", "b"]),
        (lambda mount: mount.rename(A, B, lambda: None), "ENOENT", ["b"]),
        (lambda mount: mount.rmdir(A), "ENOENT", []),
    ],
    ids=["mkdir", "rename", "rmdir"],
)
def test_nfs_a_call_whose_answer_is_lost_fails_although_it_is_done(
    call: Callable[[NfsMount], None], error: str, left: list[str]
) -> None:
    it = Nfs()
    it.one.mkdir(A)
    it.one.is_resent = True

    assert error_of(lambda: call(it.one)) == error

    it.one.is_resent = False
    assert it.one.listdir(ROOT) == left
    assert it.other.listdir(ROOT) == left


# --- Buckets ---


def test_a_bucket_is_known_for_a_minute_and_what_it_lacks_for_seconds() -> None:
    clock, bucket = Clock(), Bucket()
    one, other = (BucketMount(bucket, clock, copies_folders=True) for _ in range(2))
    one.put(one.create(A), b"1")
    assert other.stat(A) == ("file", 1)
    assert error_of(lambda: other.stat(B)) == "ENOENT"
    one.unlink(A)
    one.put(one.create(B), b"2")
    assert other.stat(A) == ("file", 1)
    assert error_of(lambda: other.stat(B)) == "ENOENT"
    assert other.listdir(ROOT) == ["b"]
    assert error_of(lambda: other.get(other.open(A))) == "ESTALE"
    clock.now += 5
    assert other.stat(B) == ("file", 1)
    clock.now += 55

    assert error_of(lambda: other.stat(A)) == "ENOENT"


def test_a_bucket_makes_a_folder_once_and_moves_it_piece_by_piece() -> None:
    clock, bucket = Clock(), Bucket()
    one, other = (BucketMount(bucket, clock, copies_folders=True) for _ in range(2))
    one.mkdir(A)
    assert error_of(lambda: other.mkdir(A)) == "EEXIST"
    for name in ("x", "y"):
        one.put(one.create(A / name), b"1")
    seen: list[list[str]] = []

    one.rename(A, B, lambda: seen.append(sorted(bucket.objects)))

    assert seen[0] == ["a/", "a/x", "a/y", "b/"]
    assert ["a/", "a/y", "b/", "b/x"] in seen
    assert sorted(bucket.objects) == ["b/", "b/x", "b/y"]


def test_a_bucket_as_it_is_mounted_by_default_moves_files_only() -> None:
    mount = BucketMount(Bucket(), Clock(), copies_folders=False)
    mount.mkdir(A)
    mount.put(mount.create(A / "x"), b"1")

    mount.rename(A / "x", A / "y", lambda: None)

    assert mount.listdir(A) == ["y"]
    assert error_of(lambda: mount.rename(A, B, lambda: None)) == "ENOSYS"


def test_mountpoint_refuses_what_it_says_it_refuses() -> None:
    bucket = Bucket()
    one, other = MountpointMount(bucket), MountpointMount(bucket)
    one.mkdir(A)
    assert one.listdir(ROOT) == ["a"]
    assert other.listdir(ROOT) == []  # a folder is this machine's own until a file is in it
    one.put(one.create(A / "x"), b"1")
    assert other.listdir(A) == ["x"]

    assert error_of(lambda: one.create(A / "x")) == "EPERM"
    assert error_of(lambda: one.rename(A / "x", A / "y", lambda: None)) == "ENOSYS"
    assert error_of(lambda: one.rename(A, B, lambda: None)) == "ENOSYS"
    assert error_of(lambda: one.unlink(A / "x")) == "EPERM"
    assert error_of(lambda: one.rmdir(A)) == "ENOTEMPTY"
    one.fsync(A)
