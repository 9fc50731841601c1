"""The trial of a bucket: stores that are right, that ignore conditions, or that allow only a part."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from typing import Any

import pytest
from obstore.store import MemoryStore

from trainjob_trainer.checkpoint import bucket_trial
from trainjob_trainer.checkpoint.bucket import BucketError, Changed, ObjectStore
from trainjob_trainer.checkpoint.bucket_trial import Outcome, try_bucket

KEY = ".tmp-doctor-0a1b2c3d/object"
DENIED = BucketError(errno.EACCES, "s3://results/digits: Access Denied (AccessDenied)")
UNKNOWN = BucketError(errno.EIO, "A header implies what is not implemented (NotImplemented)")


class Right(ObjectStore):
    """In memory; subclasses do one thing wrong."""

    def __init__(self) -> None:
        super().__init__("memory:///")
        self._store: Any = MemoryStore()


class CreatesAlways(Right):
    def put_if(self, key: str, data: bytes, version: str) -> str:
        return super().put_if(key, data, version) if version else self.put(key, data)


class ReplacesAlways(Right):
    def put_if(self, key: str, data: bytes, version: str) -> str:
        return self.put(key, data) if version else super().put_if(key, data, version)


class CreatesIfPresent(Right):
    def put_if(self, key: str, data: bytes, version: str) -> str:
        if not version and not self.versions(key.partition("/")[0]):
            raise Changed
        return self.put(key, data)


class RefusesButWrites(Right):
    def put_if(self, key: str, data: bytes, version: str) -> str:
        try:
            return super().put_if(key, data, version)
        except Changed:
            self.put(key, data)
            raise


class KnowsNoConditions(Right):
    def put_if(self, *_: object) -> str:
        raise UNKNOWN


class IsReadOnly(Right):
    def put(self, *_: object) -> str:
        raise DENIED

    def delete(self, *_: object) -> None:
        raise DENIED


class ListsNothing(Right):
    def versions(self, *_: object) -> dict[str, str]:
        return {}


class ReadsOthers(Right):
    def get(self, *_: object) -> tuple[bytes, str]:
        return b"other", ""


class DeletesNothing(Right):
    def delete(self, *_: object) -> None:
        raise DENIED


class DeletesOnce(Right):
    deleted = 0

    def delete(self, keys: list[str]) -> None:
        self.deleted += 1
        if self.deleted > 1:
            raise DENIED
        super().delete(keys)


class DeletesLater(Right):
    deleted = 0

    def delete(self, keys: list[str]) -> None:
        self.deleted += 1
        if self.deleted > 1:
            super().delete(keys)


@pytest.mark.parametrize(
    ("store", "outcome"),
    [
        (Right, Outcome()),
        (CreatesAlways, Outcome("create", "accepted")),
        (ReplacesAlways, Outcome("replace", "accepted")),
        (CreatesIfPresent, Outcome("create", "refused")),
        (RefusesButWrites, Outcome("create", "stale")),
        (KnowsNoConditions, Outcome("create", "EIO", UNKNOWN.strerror)),
        (IsReadOnly, Outcome("write", "EACCES", DENIED.strerror)),
        (ReadsOthers, Outcome("read", "stale")),
        (ListsNothing, Outcome("list", "stale")),
        (DeletesNothing, Outcome("delete", "EACCES", DENIED.strerror, KEY)),
        (DeletesOnce, Outcome("delete", "EACCES", DENIED.strerror, KEY)),
        (DeletesLater, Outcome("delete", "stale")),
    ],
)  # fmt: skip
def test_what_a_store_does_wrong_is_found(store: type[Right], outcome: Outcome) -> None:
    objects = store()
    assert try_bucket(objects, KEY, sleep=lambda _: None) == outcome
    assert list(ObjectStore.versions(objects, "")) == ([outcome.left] if outcome.left else [])


def test_writes_of_the_object_are_a_second_apart() -> None:
    slept: list[float] = []
    try_bucket(Right(), KEY, sleep=slept.append)
    assert slept == [1.0, 1.0]


@pytest.mark.parametrize(
    ("uri", "outcome"),
    [
        ("memory:///", {"step": "", "why": "", "said": "", "left": ""}),
        ("ftp://host/a", {"step": "open", "why": "EINVAL", "left": "",
                          "said": 'ftp://host/a: Generic URL error: Unable to recognise URL "ftp://host/a"'}),
    ],
)  # fmt: skip
def test_the_program_prints_a_line_of_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], uri: str, outcome: dict[str, str]
) -> None:
    keys: list[str] = []
    put = ObjectStore.put
    monkeypatch.setattr(
        ObjectStore, "put", lambda self, key, data: (keys.append(key), put(self, key, data))[1]
    )
    monkeypatch.setattr(bucket_trial, "_SECONDS", 0.0)
    monkeypatch.setattr(sys, "argv", ["bucket_trial", uri])
    bucket_trial.main()
    assert json.loads(capsys.readouterr().out) == outcome
    # A mirror leaves it out, and `trainjob doctor` says what to delete.
    assert all(key.startswith(".tmp-doctor-") for key in keys)


def test_it_needs_no_numpy() -> None:
    """A machine from which jobs are submitted has none, nor TensorFlow."""
    code = "import sys; sys.modules['numpy'] = None; import trainjob_trainer.checkpoint.bucket_trial"
    subprocess.run([sys.executable, "-c", code], check=True)
