"""A folder of checkpoints in a bucket of a real S3 server."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from testbed.bucket_server import BucketServer
from testbed.waiting import until

from support.cli.program import trainjob
from support.trainer.checkpoints import final_variables
from support.trainer.processes import WorkerGroup
from trainjob.client.doctor import BucketTrial, try_bucket
from trainjob_trainer.checkpoint.bucket import BucketError, BucketFiles, Changed, ObjectStore
from trainjob_trainer.checkpoint.fence import Fence
from trainjob_trainer.checkpoint.snapshot import NamedArray
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.environment import Generation
from trainjob_trainer.errors import Fenced, OutputUnwritable

ROOT = Path("/output/digits/checkpoints")
URI = "s3://results/digits/checkpoints"
SCRIPT = Path(__file__).parents[1] / "multiprocess" / "scripts" / "library_run.py"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    one = BucketServer(tmp_path)
    one.start()
    for name, value in one.env.items():
        monkeypatch.setenv(name, value)
    yield one
    one.kill()


def open_store(attempt: int | None) -> CheckpointStore:
    files = BucketFiles(ROOT, ObjectStore(URI))
    fence = Fence(ROOT, Generation(1, attempt), "job", files) if attempt else None
    return CheckpointStore(ROOT, files=files, fence=fence)


def groups(step: int, size: int = 1000) -> dict[str, list[NamedArray]]:
    return {"model": [NamedArray("kernel", np.full((size, 1000), step, dtype="float32"))]}


def step_in(store: CheckpointStore) -> float:
    latest = store.latest()
    assert latest is not None
    return float(store.read(latest)["model"][0].value[0, 0])


def test_of_sixteen_that_create_or_replace_an_object_one_wins(server: BucketServer) -> None:
    del server

    def wins(version: str) -> bool:
        try:
            ObjectStore(URI).put_if("claim", os.urandom(8), version)
        except Changed:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(wins, [""] * 16)) == 1
        found = ObjectStore(URI).get("claim")
        assert found is not None
        assert sum(pool.map(wins, [found[1]] * 16)) == 1


def test_checkpoints_stay_when_the_next_start_takes_over(server: BucketServer) -> None:
    del server
    first, second, reader = open_store(1), open_store(2), open_store(None)
    assert reader.latest() is None
    first.prepare()
    for step in range(1, 6):
        first.save(step, 0, groups(step), "job")
    assert (reader.steps(), step_in(reader)) == ([3, 4, 5], 5.0)
    second.prepare()
    with pytest.raises(Fenced):
        first.save(6, 0, groups(-6), "job")
    second.save(6, 0, groups(6), "job")
    assert (reader.steps(), step_in(reader)) == ([4, 5, 6], 6.0)


def test_a_save_waits_for_a_server_that_is_away(server: BucketServer) -> None:
    """Killed in the midst of an upload, with parts of it on its disk."""
    store = open_store(1)
    store.prepare()
    store.save(1, 0, groups(1), "job")
    saving = threading.Thread(target=store.save, args=(2, 0, groups(2, 100_000), "job"))
    saving.start()
    saving.join(1.0)
    server.kill()
    until(lambda: store.patience.is_waiting, what="the save to wait", seconds=60)
    server.start()
    saving.join(60)
    assert not saving.is_alive()
    assert (store.steps(), step_in(store)) == ([1, 2], 2.0)


def test_a_training_is_killed_and_resumes_in_new_pods_from_the_bucket(
    server: BucketServer, tmp_path: Path
) -> None:
    """With two workers and an evaluator, none of which shares a folder with another."""
    del server
    uri = "s3://results/digits"

    def group(name: str, attempt: int, uri: str) -> WorkerGroup:
        env = {"TRAINJOB_GENERATION": f"1.{attempt}", "TRAINJOB_SPEC": "spec"}
        return WorkerGroup(SCRIPT, tmp_path / name, evaluator=True, attempt=attempt, env=env, uri=uri)

    with group("undisturbed", 1, "") as undisturbed:
        assert set(undisturbed.wait().values()) == {0}, undisturbed.report
    with group("first", 1, uri) as first:
        until(lambda: open_store(None).steps(), what="a checkpoint", seconds=120)
        first["worker-0"].kill()
    assert open_store(None).final() is None
    with group("second", 2, uri) as second:
        assert set(second.wait().values()) == {0}, second.report
        assert second.progress("evaluator-0")["evaluation"]["final"] is True
        assert second.progress("worker-0")["resumedFrom"] > 0
    store = open_store(None)
    final = store.final()
    assert final is not None
    there = store.read(store.checked(final.step))
    here = final_variables(tmp_path / "undisturbed")
    found = {f"{kind}/{one.name}": one.value for kind, all_of in there.items() for one in all_of}
    assert found.keys() == here.keys()
    assert all(np.array_equal(found[name], here[name]) for name in here)
    kept = set(ObjectStore(uri).versions(""))
    assert {"logs/history.jsonl", "evaluator/evaluations.jsonl"} <= kept
    assert any(name.startswith("logs/train/events.out.tfevents.") for name in kept)


def test_a_script_without_keras_is_complete_once_its_files_are_in_the_bucket(
    server: BucketServer, tmp_path: Path
) -> None:
    """The bucket is away when it ends, so its agent waits."""
    away = tmp_path / "away"
    script = f"""
import os, pathlib
print("found", sorted(os.listdir(os.environ["TRAINJOB_OUTPUT_DIR"])))
pathlib.Path(os.environ["TRAINJOB_OUTPUT_DIR"], "a.txt").write_text("here")
os.rename({str(server.bucket)!r}, {str(away)!r})
"""

    def bring_back() -> None:
        until(away.exists, what="the end of the script", seconds=60)
        time.sleep(6.0)
        away.rename(server.bucket)

    (tmp_path / "plain.py").write_text(script)
    ObjectStore("s3://results/plain").put("earlier.txt", b"of an earlier start")
    with ThreadPoolExecutor(1) as pool:
        back = pool.submit(bring_back)
        run = ("run", "plain.py", "--no-evaluator", "--plain", "--output", "s3://results")
        done = trainjob(*run, cwd=tmp_path, env=server.env)
        back.result()
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "earlier.txt" in said
    assert "the output can't say so: s3://results/plain" in said
    found = ObjectStore("s3://results/plain").get("a.txt")
    assert found is not None
    assert found[0] == b"here"


def test_a_script_is_not_started_without_its_bucket(server: BucketServer, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print('started')")
    run = ("run", "plain.py", "--no-evaluator", "--plain", "--output", "s3://elsewhere")
    done = trainjob(*run, cwd=tmp_path, env=server.env)
    assert done.returncode == 1
    assert "(exit code 82: cannot write" in done.stderr + done.stdout
    assert "s3://elsewhere/plain: The specified bucket does not exist." in done.stderr + done.stdout
    assert "started\n" not in done.stdout


def test_a_key_may_end_with_the_line_break_of_its_file(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, f"{server.env[name]}\n")
    ObjectStore(URI).put("a", b"content")
    assert ObjectStore(URI).versions("").keys() == {"a"}


@pytest.mark.parametrize(
    ("changes", "uri", "said"),
    [
        ({}, "s3://no-results/digits", "The specified bucket does not exist. (NoSuchBucket)"),
        ({"AWS_SECRET_ACCESS_KEY": "another"}, URI, "(SignatureDoesNotMatch)"),
        ({"AWS_ACCESS_KEY_ID": "another"}, URI, "No user exists with the provided access key ID."),
        ({"AWS_REGION": "eu-west-1"}, URI, 'the region "eu-west-1" is wrong; expecting "us-east-1"'),
    ],
    ids=["bucket", "secret", "key", "region"],
)
def test_what_is_set_wrong_is_one_sentence_at_the_start(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], uri: str, said: str
) -> None:
    del server
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    files = BucketFiles(ROOT, ObjectStore(uri))
    store = CheckpointStore(ROOT, files=files, fence=Fence(ROOT, Generation(1, 1), "job", files))
    with pytest.raises(OutputUnwritable) as refused:
        store.prepare()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_doctor_tries_a_bucket_and_leaves_nothing(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    del server
    python = [sys.executable, "-P"]
    assert try_bucket(python, URI) == BucketTrial()
    assert not ObjectStore("s3://results").versions("")
    failed = try_bucket(python, "s3://no-results/digits")
    assert isinstance(failed, BucketTrial)
    assert (failed.step, failed.why) == ("write", "EINVAL")
    assert "The specified bucket does not exist. (NoSuchBucket)" in failed.said
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    failed = try_bucket(python, URI)
    assert isinstance(failed, BucketTrial)
    assert (failed.step, failed.why) == ("write", "EACCES")
    assert "another-secret" not in failed.said


def test_a_clock_that_is_off_is_one_sentence() -> None:
    """The signature has the time; what S3 answers is documented, and versitygw's is the same."""
    with pytest.raises(BucketError) as caught, ObjectStore("memory:///")._explained():
        raise ObjectStore("memory:///")._obstore.exceptions.PermissionDeniedError(
            "403: <Error><Code>RequestTimeTooSkewed</Code><Message>The difference between the request time "
            "and the server's time is too large.</Message></Error>"
        )
    assert caught.value.errno == errno.EACCES
    assert "server's time is too large. (RequestTimeTooSkewed)" in str(caught.value)


def test_obstore_is_imported_only_for_a_bucket() -> None:
    code = "import sys, trainjob_trainer.checkpoint.bucket; print('obstore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
