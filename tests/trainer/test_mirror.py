"""The files of a pod's folder, kept in a bucket."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from trainjob_trainer import mirror as module
from trainjob_trainer.checkpoint import bucket
from trainjob_trainer.checkpoint.bucket import BucketError, Changed, ObjectStore, build_files
from trainjob_trainer.checkpoint.files import Files
from trainjob_trainer.environment import Environment
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.mirror import Mirror, pulled_mirror

URI = "s3://bucket/runs/digits"


class Memory(ObjectStore):
    """A store in memory that counts what is sent and fetched."""

    def __init__(self, memory: Any = None) -> None:
        super().__init__("memory:///")
        self._store = memory or MemoryStore()
        self.sent: list[str] = []
        self.fetched: list[str] = []

    def put(self, key: str, content: bytes | Path) -> str:
        self.sent.append(key)
        return super().put(key, content)

    def put_if(self, key: str, data: bytes, version: str) -> str:
        self.sent.append(key)
        return super().put_if(key, data, version)

    def fetch(self, key: str, path: Path) -> str:
        self.fetched.append(key)
        return super().fetch(key, path)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".tmp-"))
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def make(folder: Path, store: Memory, start: int = 1) -> Mirror:
    return Mirror(folder, store, start)


def test_what_has_changed_is_sent_once(tmp_path: Path) -> None:
    store = Memory()
    mirror = make(tmp_path, store)
    write(tmp_path, model_keras="one", logs__history_jsonl="1\n", checkpoints__index_json="no", empty="")
    (tmp_path / ".tmp-half").write_text("half")
    (tmp_path / "link").symlink_to("/etc/passwd")
    mirror.push()
    mirror.push()
    assert sorted(store.sent) == ["empty", "logs/history.jsonl", "model.keras"]
    write(tmp_path, logs__history_jsonl="1\n2\n")
    (tmp_path / "model.keras").unlink()
    mirror.push()
    assert store.sent[3:] == ["logs/history.jsonl"]
    assert sorted(store.versions("")) == ["empty", "logs/history.jsonl"]
    make(tmp_path, store).push()  # the next process in this pod
    assert len(store.sent) == 4


def test_each_start_has_what_the_bucket_has(tmp_path: Path) -> None:
    store = Memory()
    first, second = tmp_path / "first", tmp_path / "second"
    mirror = make(first, store)
    write(first, a="1", b__c="2", logs__events_out_tfevents_1="events")
    mirror.push()
    write(first, a="unsent", new="unsent")
    other = Memory(store._store)
    make(second, other).pull()
    assert contents(second) == {"a": "1", "b/c": "2"}
    mirror.pull()
    assert contents(first) == {"a": "1", "b/c": "2", "logs/events.out.tfevents.1": "events"}
    assert store.fetched == ["a"]
    make(second, other).push()
    assert other.sent == []
    write(second, a="3")
    make(second, other).push()
    mirror.pull()
    make(first, store).pull()
    assert contents(first)["a"] == "1"  # a further process of the same start
    make(first, store, 2).pull()
    assert contents(first)["a"] == "3"
    make(second, other, 2).pull()
    assert other.fetched == ["a", "b/c"]


@pytest.mark.parametrize(
    "key",
    [
        *("../outside", "a/../../outside", "checkpoints/x", "evaluator/x", ".tmp-x"),
        *(".trainjob.json", "logs/replicas/worker-0.log"),
    ],
)
def test_other_keys_are_no_files_of_the_folder(tmp_path: Path, key: str) -> None:
    assert not make(tmp_path, Memory())._is_part(key)


@pytest.mark.parametrize("key", ["checkpoints.txt", "logs/replicas.txt", "model/evaluator/x"])
def test_names_that_begin_alike_are_files_of_the_folder(tmp_path: Path, key: str) -> None:
    assert make(tmp_path, Memory())._is_part(key)


class Late(Memory):
    """A store whose first request that writes gets no answer; `arrive` is the moment at which it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.arrive: Callable[[], object] | None = None

    def put(self, key: str, content: bytes | Path) -> str:
        data = content if isinstance(content, bytes) else content.read_bytes()
        return self._request(lambda: super(Late, self).put(key, data))

    def put_if(self, key: str, data: bytes, version: str) -> str:
        return self._request(lambda: super(Late, self).put_if(key, data, version))

    def _request(self, request: Callable[[], str]) -> str:
        if self.arrive is None:
            self.arrive = request
            raise BucketError(errno.EIO, "timed out")
        return request()


@pytest.mark.parametrize("known", [False, True], ids=["new", "sent before"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_sent_late_replaces_nothing_newer(tmp_path: Path, when: str, known: bool) -> None:
    store = Late()
    mirror = make(tmp_path, store)
    if known:
        store.arrive = lambda: None
        write(tmp_path, logs__history_jsonl="0\n")
        mirror.push()
        store.arrive = None
    write(tmp_path, logs__history_jsonl="0\n1\n")
    with pytest.raises(BucketError, match="timed out"):
        mirror.push()
    write(tmp_path, logs__history_jsonl="0\n1\n2\n")
    assert store.arrive is not None
    if when == "before":
        store.arrive()
    mirror.push()
    if when == "after":
        with contextlib.suppress(Changed):
            store.arrive()
    found = store.get("logs/history.jsonl")
    assert found is not None
    assert found[0] == b"0\n1\n2\n"


def test_a_file_that_is_gone_from_the_bucket_is_sent_once_it_changes(tmp_path: Path) -> None:
    store = Memory()
    mirror = make(tmp_path, store)
    write(tmp_path, a="1")
    mirror.push()
    store.delete(["a"])
    write(tmp_path, a="22")
    mirror.push()
    assert list(store.versions("")) == ["a"]


def test_the_next_start_removes_a_checkpoint_that_a_killed_process_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The containers of a pod, and their disk, outlive their processes."""
    monkeypatch.setattr(bucket, "ObjectStore", lambda _uri: Memory())
    folder = tmp_path / "output"
    environment = Environment(
        "digits", "", 1, folder, folder / "checkpoints", folder / "logs", output_uri=URI
    )
    left: list[Path] = []

    def write(_files: Files, prefix: Path, _tensors: object) -> None:
        left.append(prefix.parent)
        shutil.copytree(folder, tmp_path / "killed")

    monkeypatch.setattr(Files, "write_tensors", write)
    build_files(environment).write_tensors(folder / "checkpoints/claim/variables", {})
    assert not left[0].exists()
    killed = tmp_path / "killed"
    assert (killed / left[0].name).is_dir()
    store = Memory()
    make(killed, store).pull()
    assert [path.name for path in killed.iterdir()] == [".tmp-sent.json"]
    (killed / left[0].name).mkdir()
    make(killed, store).pull()  # a further process of the same start: it may be on its way
    assert (killed / left[0].name).is_dir()


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    store = Memory()
    write(tmp_path / "first", logs__a="1")
    make(tmp_path / "first", store).push()
    (tmp_path / "second").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "second/logs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidConfiguration, match="is a link"):
        make(tmp_path / "second", store).pull()
    assert contents(tmp_path / "elsewhere") == {}


def test_a_large_file_comes_in_parts_of_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Memory()
    data = os.urandom(1000)
    (tmp_path / "first").mkdir()
    (tmp_path / "first/large").write_bytes(data)
    make(tmp_path / "first", store).push()
    monkeypatch.setattr("trainjob_trainer.checkpoint.bucket.PART", 300)
    make(tmp_path / "second", store).pull()
    assert (tmp_path / "second/large").read_bytes() == data

    head = store._obstore.head

    def changed_meanwhile(inner: Any, key: str) -> Any:
        found = head(inner, key)
        store._obstore.put(inner, key, b"x" * 900)
        return found

    monkeypatch.setattr(store._obstore, "head", changed_meanwhile)
    with pytest.raises(BucketError):
        make(tmp_path / "third", store).pull()
    assert contents(tmp_path / "third") == {}


def test_only_a_replica_with_an_address_has_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ObjectStore", lambda _uri: Memory())
    of_a_volume = Environment("digits", "", 1, tmp_path, tmp_path / "checkpoints", tmp_path / "logs")
    assert pulled_mirror(of_a_volume) is None
    uri = URI
    in_bucket = Environment(
        "digits", "", 1, tmp_path, tmp_path / "checkpoints", tmp_path / "logs", output_uri=uri
    )
    assert pulled_mirror(in_bucket) is not None
    assert in_bucket.checkpoint_uri == f"{uri}/checkpoints"
    of_evaluator = Environment(
        "digits",
        "",
        1,
        tmp_path / "evaluator",
        tmp_path / "checkpoints",
        tmp_path / "evaluator/logs",
        output_uri=f"{uri}/evaluator",
    )
    assert of_evaluator.checkpoint_uri == f"{uri}/checkpoints"
