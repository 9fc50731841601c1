"""A folder in a bucket: operations on files by way of an index, and requests without an answer."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from obstore.store import MemoryStore

from support.trainer.google_storage import GoogleStorage
from trainjob_trainer.checkpoint import bucket as module
from trainjob_trainer.checkpoint.bucket import BLOBS, INDEX, BucketError, BucketFiles, Changed, ObjectStore
from trainjob_trainer.checkpoint.fence import Fence
from trainjob_trainer.checkpoint.files import NotAFile
from trainjob_trainer.checkpoint.snapshot import NamedArray
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.environment import Generation

ROOT = Path("/output/checkpoints")


class FaultyStore(ObjectStore):
    """A store in memory; `meets` is called before and after each request that writes."""

    def __init__(self, memory: MemoryStore | None = None) -> None:
        super().__init__("memory:///")
        self._store = MemoryStore() if memory is None else memory
        self.meets: Callable[[str, bool], None] = lambda _what, _is_done: None

    @property
    def memory(self) -> Any:
        return self._store

    def put_if(self, key: str, data: bytes, version: str) -> str:
        self.meets("put_if", False)
        put = super().put_if(key, data, version)
        self.meets("put_if", True)
        return put

    def versions(self, prefix: str) -> dict[str, str]:
        listed = super().versions(prefix)
        self.meets("versions", True)
        return listed


def once(what: str, *, is_done: bool, raises: Exception) -> Callable[[str, bool], None]:
    """A fault of the first such request, before or after it is done."""
    left = [raises]

    def meets(now: str, done: bool) -> None:
        if (now, done) == (what, is_done) and left:
            raise left.pop()

    return meets


def bucket(store: ObjectStore | None = None, **options: Any) -> BucketFiles:
    files = BucketFiles(ROOT, store or FaultyStore(), sleep=lambda _: None, **options)
    files.make_folder(ROOT)
    return files


def number_of(call: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is what is tested
        call()
    return caught.value.errno


@pytest.mark.parametrize("inline", [0, 1 << 16], ids=["objects", "index"])
def test_the_operations_are_those_of_a_local_disk(tmp_path: Path, inline: int) -> None:
    in_bucket = bucket(inline=inline)
    on_disk = module.Files()
    for files, root in ((in_bucket, ROOT), (on_disk, tmp_path)):
        assert files.names(root) == []
        assert files.names(root / "nothing") == []
        assert number_of(lambda f=files, r=root: f.write(r / "none/file", b"x")) == errno.ENOENT  # type: ignore[misc]
        files.create_folder(root / "a")
        assert number_of(lambda f=files, r=root: f.create_folder(r / "a")) == errno.EEXIST  # type: ignore[misc]
        assert number_of(lambda f=files, r=root: f.create_folder(r / "b/c")) == errno.ENOENT  # type: ignore[misc]
        files.make_folder(root / "x/y")
        files.write(root / "a/file", "grün".encode())
        files.write(root / "a/file", b"\xff\x00 no text")
        assert files.read(root / "a/file", 20) == b"\xff\x00 no text"
        files.write(root / "a/file", "grün".encode())
        assert (files.size(root / "a/file"), files.read(root / "a/file", 5)) == (5, "grün".encode())
        with pytest.raises(NotAFile):
            files.read(root / "a/file", 4)
        with pytest.raises(NotAFile):
            files.read(root / "a", 4)
        assert number_of(lambda f=files, r=root: f.size(r / "none")) == errno.ENOENT  # type: ignore[misc]
        assert number_of(lambda f=files, r=root: f.read(r / "none", 1)) == errno.ENOENT  # type: ignore[misc]
        assert [files.kind(root / name) for name in ("a", "a/file", "none")] == ["folder", "file", None]
        for source, target, number in (
            ("none", "new", errno.ENOENT),
            ("a", "none/new", errno.ENOENT),
            ("x", "a", errno.ENOTEMPTY),
            ("a/file", "x", errno.EISDIR),
            ("x", "a/file", errno.ENOTDIR),
        ):
            rename = lambda f=files, r=root, s=source, t=target: f.rename(r / s, r / t)  # type: ignore[misc]  # noqa: E731
            assert number_of(rename) == number, (source, target)
        files.rename(root / "a", root / "x/y")  # an empty folder is replaced
        assert (files.names(root), files.names(root / "x"), files.names(root / "x/y")) == (
            ["x"],
            ["y"],
            ["file"],
        )
        assert number_of(lambda f=files, r=root: f.remove_folder(r / "x")) == errno.ENOTEMPTY  # type: ignore[misc]
        assert number_of(lambda f=files, r=root: f.touch(r / "none")) == errno.ENOENT  # type: ignore[misc]
        before = files.changed(root / "x")
        files.touch(root / "x")
        assert files.changed(root / "x") != before
        assert files.changed(root / "none") is None
        files.remove(root / "x/none")
        files.remove(root / "x")
        files.remove_folder(root / "x")
        assert files.names(root) == []
    left = in_bucket._objects.versions(BLOBS)
    assert len(left) == (inline == 0), left  # of the write without a folder; `tidy` deletes it


def test_tensors_go_and_come_as_files(tmp_path: Path) -> None:
    files = bucket(scratch=tmp_path)
    arrays = {"a": np.arange(5, dtype="float32"), "b": np.ones((2, 2), dtype="int64")}
    files.write_tensors(ROOT / "variables", arrays)
    assert files.names(ROOT) == ["variables.data-00000-of-00001", "variables.index"]
    found = files.read_tensors(ROOT / "variables", {"a": "float32", "b": "int64"})
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_done", [False, True], ids=["lost", "done"])
@pytest.mark.parametrize("error", [BucketError(errno.EIO, "timed out"), Changed()], ids=["timeout", "resent"])
def test_a_change_without_an_answer_is_made_once(is_done: bool, error: Exception) -> None:
    """A client that sends a request again may be refused because of its first one."""
    store = FaultyStore()
    files = bucket(store)
    store.meets = once("put_if", is_done=is_done, raises=error)
    files.create_folder(ROOT / "claim")
    store.meets = once("put_if", is_done=is_done, raises=error)
    files.rename(ROOT / "claim", ROOT / "published")
    assert files.names(ROOT) == ["published"]


def test_two_processes_change_one_index() -> None:
    store = FaultyStore()
    first, second = bucket(store), bucket(FaultyStore(store.memory))
    left = [1, 2]

    def overtake(_what: str, is_done: bool) -> None:
        if not is_done and left:
            second.create_folder(ROOT / f"second-{left.pop()}")

    store.meets = overtake
    first.create_folder(ROOT / "first")
    assert first.names(ROOT) == second.names(ROOT) == ["first", "second-1", "second-2"]


def test_who_is_always_overtaken_says_so() -> None:
    store = FaultyStore()
    files = bucket(store)

    def refuse(_what: str, is_done: bool) -> None:
        if not is_done:
            raise Changed

    store.meets = refuse
    assert number_of(lambda: files.create_folder(ROOT / "first")) == errno.EAGAIN


def make_store(memory: Any, attempt: int, **options: Any) -> tuple[CheckpointStore, BucketFiles]:
    files = BucketFiles(ROOT, FaultyStore(memory), sleep=lambda _: None, inline=0)
    fence = Fence(ROOT, Generation(1, attempt), "job", files, sleep=lambda _: None)
    return CheckpointStore(ROOT, files=files, fence=fence, sleep=lambda _: None, **options), files


def groups(step: int) -> dict[str, list[NamedArray]]:
    return {"model": [NamedArray("w", np.full(3, step, dtype="float32"))]}


def test_a_writer_deletes_what_earlier_ones_have_uploaded_in_vain() -> None:
    memory = MemoryStore()
    first, files = make_store(memory, 1)
    first.prepare()
    first.save(1, 0, groups(1), "job")
    files._objects.put(f"{BLOBS}{files._writer}/99-lost", b"uploaded, and then killed")
    second, _ = make_store(memory, 2)
    second.prepare()
    assert not any("lost" in key for key in files._objects.versions(BLOBS))
    assert second.steps() == [1]
    second.read(second.at(1))


def test_who_has_lost_its_claim_deletes_nothing() -> None:
    """The next writer uploads between the list of objects and the look at the index."""
    memory = MemoryStore()
    first, files = make_store(memory, 1)
    second, others = make_store(memory, 2)

    def overtake(what: str, _is_done: bool) -> None:
        if what == "versions":
            second.prepare()
            others._objects.put(f"{BLOBS}{others._writer}/1-data", b"about to be named")
            files._objects.meets = lambda _what, _is_done: None  # type: ignore[attr-defined]

    first.prepare()
    files._objects.meets = overtake  # type: ignore[attr-defined]
    files.tidy(first._publisher._fence.folder)  # type: ignore[union-attr]
    assert f"{BLOBS}{others._writer}/1-data" in others._objects.versions(BLOBS)


def test_one_save_needs_few_requests() -> None:
    memory = MemoryStore()
    store, files = make_store(memory, 1)
    store.prepare()
    store.save(1, 0, groups(1), "job")
    writes: list[str] = []
    files._objects.meets = lambda what, is_done: writes.append(what) if not is_done else None  # type: ignore[attr-defined]
    store.save(2, 0, groups(2), "job")
    assert len(writes) == 6, writes


def test_a_process_forked_from_one_that_has_used_the_bucket_gets_a_sentence() -> None:
    """obstore's threads aren't in it: a request would never end."""
    code = """
import os
from trainjob_trainer.checkpoint.bucket import BucketError, ObjectStore
store = ObjectStore("memory:///")
if not os.fork():  # before the first request it is fine
    os._exit(store.put("a", b"") == "")
assert os.wait()[1] == 0
store.put("a", b"")
if not os.fork():
    try:
        ObjectStore("memory:///").versions("")
    except BucketError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "forked by one that had used it" in done.stdout


@pytest.mark.parametrize(
    ("uri", "what"), [("ftp://host/folder", "ftp"), ("nonsense", "nonsense"), ("s3://", "s3://")]
)
def test_a_uri_that_is_none_of_a_bucket_is_refused(uri: str, what: str) -> None:
    with pytest.raises(BucketError, match=what):
        ObjectStore(uri)


def test_without_obstore_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(BucketError, match="needs obstore: pip install"):
        ObjectStore("s3://bucket/folder")


def test_a_password_of_an_endpoint_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": "http://eva:secret@127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "another-secret",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BucketError, match=r"PUT http://127\.0\.0\.1:1/results/key in") as caught:
        ObjectStore("s3://results").put("key", b"")
    assert "secret" not in str(caught.value)


def test_what_cannot_succeed_later_is_no_outage(tmp_path: Path) -> None:
    store = ObjectStore("memory:///")
    with pytest.raises(BucketError) as caught, store._explained():
        raise store._obstore.exceptions.GenericError(
            "Generic S3 error: Error performing PUT https://s3.amazonaws.com/results/k in 1ms - Received"
            " redirect without LOCATION, this normally indicates an incorrectly configured region"
        )
    assert caught.value.errno == errno.EINVAL
    folder = ObjectStore(tmp_path.as_uri())
    version = folder.put_if("key", b"1", "")
    assert number_of(lambda: folder.put_if("key", b"2", version)) == errno.EINVAL


@pytest.mark.parametrize(
    ("kind", "code", "number"),
    [
        ("AlreadyExistsError", "BlobAlreadyExists", None),
        ("AlreadyExistsError", "ConditionalRequestConflict", None),
        ("AlreadyExistsError", "BlobImmutableDueToPolicy", errno.EINVAL),
        ("AlreadyExistsError", "ContainerBeingDeleted", errno.EINVAL),
        ("PreconditionError", "PreconditionFailed", None),
        ("PreconditionError", "ConditionNotMet", None),
        ("PreconditionError", "LeaseIdMissing", errno.EIO),
    ],
)
def test_only_a_condition_that_does_not_hold_is_a_change(
    monkeypatch: pytest.MonkeyPatch, kind: str, code: str, number: int | None
) -> None:
    """The answers of S3, Google and Azure; those of Azure have three lines."""
    store = ObjectStore("memory:///")
    status = "409 Conflict" if kind == "AlreadyExistsError" else "412 Precondition Failed"

    def put(*_args: object, **_options: object) -> None:
        raise getattr(store._obstore.exceptions, kind)(
            f"Server returned non-2xx status code: {status}: <?xml version='1.0'?><Error><Code>{code}</Code>"
            "<Message>It can't be written.\nRequestId:1\nTime:2026-11-28T12:00:00Z</Message></Error>"
        )

    monkeypatch.setattr(store._obstore, "put", put)
    with pytest.raises(Changed if number is None else BucketError) as caught:
        store.put_if("key", b"", "")
    if number is not None:
        assert isinstance(caught.value, BucketError)
        assert (caught.value.errno, caught.value.strerror) == (
            number,
            f"memory:///: It can't be written. ({code})",
        )


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleStorage]:
    with GoogleStorage() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", server.account)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server
        server.shutdown()


def test_google_tells_writers_from_each_other_by_generations(google: GoogleStorage) -> None:
    """A copy of an object, such as one of another storage class, has another generation, and the same tag."""
    store = ObjectStore("gs://results/digits")
    files = bucket(store)
    google.put(f"digits/{INDEX}", google.objects[f"digits/{INDEX}"][0])
    files.create_folder(ROOT / "a")
    with pytest.raises(Changed):
        store.put_if(INDEX, b"", "")
    found = store.get(INDEX)
    assert found is not None
    assert store.get(INDEX, found[1]) is None
    store.put_if(INDEX, found[0], found[1])
    with pytest.raises(Changed):
        store.put_if(INDEX, found[0], found[1])
    assert files.names(ROOT) == ["a"]


def test_a_list_of_google_says_which_objects_have_changed(google: GoogleStorage, tmp_path: Path) -> None:
    store = ObjectStore("gs://results/digits")
    put = store.put("key", b"content")
    assert store.versions("") == {"key": put}
    assert store.fetch("key", tmp_path / "file") == put
    assert (tmp_path / "file").read_bytes() == b"content"
    google.put("digits/key", b"another")
    assert store.versions("") != {"key": put}
    assert module._tag({"e_tag": '"0x8D"'}) == module._tag({"e_tag": "0x8D"})  # Azure's put, and its list


def test_an_object_that_is_gone_keeps_no_others(google: GoogleStorage) -> None:
    store = ObjectStore("gs://results/digits")
    for number in range(20):
        google.put(f"digits/{number}", b"")
    store.delete(["gone", *map(str, range(20))])
    assert not google.objects


def test_google_allows_one_change_of_an_object_a_second(google: GoogleStorage) -> None:
    google.interval = 1.0
    store = ObjectStore("gs://results/digits")
    store.put("key", b"1")
    store.put("key", b"2")
    assert google.objects["digits/key"][0] == b"2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ("{}", "is damaged"),
        ('{"format": 1, "entries": [], "writers": {}}', "is damaged"),
        ('{"format": 1, "entries": {"a": null}, "writers": {}}', "is damaged"),
        ('{"format": 1, "entries": {"a": {"blob": "b"}}, "writers": {}}', "is damaged"),
        ('{"format": 1, "entries": {"a": {"time": "now"}}, "writers": {}}', "is damaged"),
        ('{"format": 2}', "a later version"),
    ],
)
def test_an_index_that_cannot_be_read_is_one_sentence(text: str, said: str) -> None:
    store = FaultyStore()
    store.put(INDEX, text.encode())
    with pytest.raises(BucketError, match=said):
        bucket(store)


def test_a_key_may_end_with_the_line_break_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    for name in names:
        monkeypatch.setenv(name, "key\n")
    ObjectStore("s3://bucket/folder")
    assert [os.environ[name] for name in names] == ["key", "key"]


def test_the_index_has_a_known_name() -> None:
    store = FaultyStore()
    bucket(store)
    assert list(store.versions("")) == [INDEX]
