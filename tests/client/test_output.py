"""The output of a job: archives that can do no harm, and the pod that reads it in a cluster."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
import websocket
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from support.cli.outputs import READING, STARTED, store_job_with_output, store_run_with_output, write_output
from support.cli.requests import Answer, Asked
from support.cli.server import CliServer
from support.cli.stored_jobs import ended, stored_job
from support.golden import Golden
from trainjob import ClusterProblem, Job, NoCluster
from trainjob.client import output, output_archive
from trainjob.client.output import (
    Copied,
    NoSuchPath,
    UnsafeArchive,
    plan_reader,
    receive,
    safe_path,
    why_not_running,
)
from trainjob.client.view import read_job
from trainjob.cluster.kube.exec import Executed, RunningProgram
from trainjob.cluster.protocol import RequestFailure

# Archives.


class Played:
    """A program that has printed this."""

    def __init__(self, printed: bytes, code: int | None = 0, complaint: str = "") -> None:
        self._stream = io.BytesIO(printed)
        self.result = Executed(code, complaint)

    def read(self) -> bytes:
        return self._stream.read(1000)

    def stop(self) -> None: ...

    def close(self) -> None: ...


def archive_of(root: Path, **request: Any) -> bytes:
    """What the program prints, in any Python from 3.9 (in this one here)."""
    words = [sys.executable, "-I", "-S", output_archive.__file__, str(root), json.dumps(request)]
    return subprocess.run(words, capture_output=True, check=True).stdout


def sent(*lines: dict[str, Any] | bytes, end: object = (), **header: Any) -> bytes:
    """A stream with these lines and bytes, as somebody might plant it."""
    every = ({"files": 1, "folders": 0, "bytes": 10} | header, *lines, {"leftOut": end})
    return b"".join(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in every)


def a_file(path: object = "a", size: object = 1, offset: object = 0) -> dict[str, Any]:
    return {"path": path, "offset": offset, "bytes": size}


def everything_in(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def test_an_archive_has_all_that_was_asked_for(tmp_path: Path) -> None:
    root = write_output(tmp_path / "digits")
    (root / "empty").mkdir()
    (root / "latest").symlink_to("model/model.keras")
    (root / "passwords").symlink_to("/etc/passwd")
    (root / "loop").symlink_to(".")
    seen: list[tuple[Copied, Copied]] = []
    copied = receive(
        "digits", Played(archive_of(root, paths=[""])), tmp_path / "to", lambda *now: seen.append(now)
    )
    for link in ("latest", "passwords", "loop"):
        (root / link).unlink()
    (root / "latest").write_bytes((root / "model/model.keras").read_bytes())
    assert everything_in(tmp_path / "to") == everything_in(root)
    assert [each.split()[0] for each in copied.left_out] == ["loop", "passwords"]
    assert (copied.files, copied.size) == (seen[-1][0].files, seen[-1][0].size)
    assert seen[-1][1] == Copied(copied.files, copied.size)


def test_files_that_grow_are_continued(tmp_path: Path) -> None:
    root, to = write_output(tmp_path / "digits", {"a": b"one", "b": b"same"}), tmp_path / "to"
    receive("digits", Played(archive_of(root, paths=[""])), to)
    (root / "a").write_bytes(b"one two")
    copied = receive("digits", Played(archive_of(root, paths=[""], sizes={"a": 3, "b": 4})), to)
    assert (copied.files, copied.size) == (1, 4)
    assert everything_in(to) == {"a": b"one two", "b": b"same"}
    (root / "a").write_bytes(b"new")  # shorter than what is known
    receive("digits", Played(archive_of(root, paths=["a"], sizes={"a": 7})), tmp_path / "again")
    assert everything_in(tmp_path / "again") == {"a": b"new"}


CHECKPOINTS = {
    "": {"time": 1},
    "step-5": {"time": 1},
    "step-5/weights.index": {"blob": "blobs/a/1-weights.index", "bytes": 3},
    "step-5/metadata.json": {"text": "{}"},
    "../outside": {"text": "no"},
}


def bucket_with(**objects: bytes) -> MemoryStore:
    store = MemoryStore()
    index = json.dumps({"format": 1, "entries": CHECKPOINTS, "writers": {}}).encode()
    known = {"checkpoints/index.json": index, "checkpoints/blobs/a/1-weights.index": b"abc"}
    for key, content in {**known, "checkpoints/blobs/a/2-unnamed": b"x", **objects}.items():
        obstore.put(store, key, content)
    return store


@pytest.mark.parametrize(
    ("request_", "sizes"),
    [
        (
            {"paths": [""]},
            {"step-5/weights.index": 3, "step-5/metadata.json": 2, "model/a": 5, "model.txt": 4},
        ),
        ({"paths": ["model"]}, {"model/a": 5}),
        ({"paths": ["checkpoints/step-5"]}, {"step-5/weights.index": 3, "step-5/metadata.json": 2}),
        ({"paths": [""], "pattern": r"\.txt$"}, {"model.txt": 4}),
        ({"paths": ["nothing"]}, {}),
    ],
)
def test_of_a_bucket_comes_what_is_asked_for_and_the_names_of_all(
    tmp_path: Path, request_: dict[str, Any], sizes: dict[str, int]
) -> None:
    store, root = bucket_with(**{"model/a": b"model", "model.txt": b"text"}), tmp_path / "digits"
    root.mkdir()
    (root / "of-an-earlier-request").touch()
    output_archive.bring(store, root, request_)
    found = {path.removeprefix("checkpoints/"): data for path, data in everything_in(root).items()}
    assert {path: len(data) for path, data in found.items() if data} == sizes
    assert {path for path, data in found.items() if data is not None} == {
        *("step-5/weights.index", "step-5/metadata.json", "model/a", "model.txt")
    }


def test_a_bucket_without_the_jobs_folder_has_no_output(tmp_path: Path) -> None:
    output_archive.bring(MemoryStore(), tmp_path / "digits", {"paths": [""]})
    assert not (tmp_path / "digits").exists()


NAMES = st.one_of(
    st.lists(st.sampled_from(["..", ".", "", "a", "b\0", "/", "etc", "\\", "~"]), max_size=6).map("/".join),
    st.text(max_size=20),
)


@given(NAMES)
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    into = Path("/new/folder")
    try:
        path = safe_path(into, name)
    except UnsafeArchive:
        return
    assert path.is_relative_to(into)
    assert path != into
    assert ".." not in path.parts


def tar_of(name: str, content: bytes = b"x", **fields: Any) -> bytes:
    """An archive of tar with one file."""
    out, file = io.BytesIO(), tarfile.TarInfo(name)
    file.size = len(content)
    for field, value in fields.items():
        setattr(file, field, value)
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(file, io.BytesIO(content))
    return out.getvalue()


SPARSE = {
    "GNU.sparse.major": "0",
    "GNU.sparse.minor": "1",
    "GNU.sparse.map": "0,0",
    "GNU.sparse.size": "2147483648",
}
TWO, MANY = {"files": 2}, {"files": 9, "folders": 9}
REFUSED = {
    "an absolute path": sent(a_file("/etc/planted"), b"x"),
    "a path that leads out": sent(a_file("a/../../planted"), b"x"),
    "a path that stays": sent(a_file("./a"), b"x"),
    "the folder itself": sent(a_file(""), b"x"),
    "NUL": sent(a_file("a\0b"), b"x"),
    "no path": sent({"bytes": 1}, b"x"),
    "a path that is a number": sent(a_file(7), b"x"),
    "a path that can be in no file system": sent(a_file("\ud800"), b"x"),
    "a long name": sent(a_file("n" * 256), b"x"),
    "a long path": sent(a_file("/".join(["n" * 200] * 50)), b"x"),
    "many folders in each other": sent(a_file("/".join(["n"] * 1500)), b"x"),
    "control characters in a refused name": sent(a_file("\x1b[8m\n\u202e/../b"), b"x"),
    "twice": sent(a_file(), b"x", a_file(), b"x", **MANY),
    "in a file": sent(a_file(), b"x", a_file("a/b"), b"x", **MANY),
    "a folder in a file": sent(a_file(), b"x", {"path": "a/b"}, **MANY),
    "a folder that is a file": sent(a_file(), b"x", {"path": "a"}, **MANY),
    "a file that is a folder": sent({"path": "a"}, a_file(), b"x", **MANY),
    "more bytes than announced": sent(a_file(size=11), b"x" * 11),
    "more bytes in two files": sent(a_file(size=6), b"x" * 6, a_file("b", 6), b"x" * 6, **TWO),
    "more files than announced": sent(a_file(), b"x", a_file("b"), b"x"),
    "a folder more": sent({"path": "a"}),
    "bytes without a line": sent(a_file(), b"xy"),
    "a negative size": sent(a_file(size=-1), b"x"),
    "half a byte": sent(a_file(size=0.5), b"x"),
    "a true size": sent(a_file(size=True), b"x"),
    "a size in words": sent(a_file(size="1"), b"x"),
    "a negative offset": sent(a_file(offset=-1), b"x"),
    "a hole": sent(a_file(offset=5), b"x"),
    "no number of bytes": sent(bytes=float("inf")),
    "no number of files": sent(files=float("nan")),
    "more than a disk has": sent(bytes=1 << 63),
    "a number of 4,000 digits": sent(bytes=10**4000),
    "no number of folders": sent(folders=None),
    "a list": b"[1]\n",
    "a list in a list in a list": b"[" * 50_000 + b"\n",
    "no JSON": b"no JSON\n",
    "no text": b"\xff\xfe\n",
    "a line without an end": sent()[:-1] + b" " * (1 << 20),
    "a line that is too long": b" " * (1 << 20) + sent(),
    "an end that is no list": sent(a_file(), b"x", end=7),
    "something behind the end": sent(a_file(), b"x") + b"x",
    "missing, and no list of what is there": b'{"missing": "a", "there": 7}\n',
    "tar": tar_of("files/a"),
    "tar with a long name": tar_of("files/" + "n" * 5000),
    "tar, sparse": tar_of("files/a", pax_headers=SPARSE),
    "tar, a link": tar_of("files/a", b"", type=tarfile.SYMTYPE, linkname="/etc"),
}


class Counted:
    """Endless output, and how much of it was read."""

    def __init__(self, printed: bytes) -> None:
        self._stream, self.read_bytes, self.result = io.BytesIO(printed), 0, Executed(0, "")

    def read(self) -> bytes:
        piece = self._stream.read(1000) or b" " * 1000
        self.read_bytes += len(piece)
        assert self.read_bytes < 1 << 23, "it is read without end"
        return piece

    def stop(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.replace(",", "").replace(" ", "-"))
def test_what_no_honest_program_sends_is_refused(case: str, tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "outside").write_text("safe")
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(UnsafeArchive) as refused:
        receive("digits", Counted(REFUSED[case]), into)
    assert str(refused.value).isprintable()
    golden(str(refused.value))
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "into"}
    assert not [path for path in into.rglob("*") if path.is_symlink()]
    assert sum(path.stat().st_size for path in into.rglob("*") if path.is_file()) <= 10


def test_a_disk_that_takes_two_spellings_for_one_gets_no_file_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = output.safe_path
    monkeypatch.setattr(output, "safe_path", lambda into, name: plain(into, name.lower()))
    with pytest.raises(UnsafeArchive, match="A comes twice, perhaps in another spelling"):
        receive("digits", Played(sent(a_file("a"), b"x", a_file("A"), b"y", **TWO)), tmp_path)
    assert (tmp_path / "a").read_bytes() == b"x"


@pytest.mark.parametrize("name", ["\x1b[8mhidden", "two\nlines", "\u202etxt", "caf\udce9", "Ä" * 100])
def test_a_name_is_kept_and_shown(name: str, tmp_path: Path) -> None:
    """Whatever a file system takes; what a terminal wouldn't show is visible where the name is printed."""
    root = write_output(tmp_path / "digits", {name: b"x", "b": b""})
    (root / f"{name}2").symlink_to("/etc/passwd")
    copied = receive("digits", Played(archive_of(root, paths=[""])), tmp_path / "to")
    assert everything_in(tmp_path / "to") == {name: b"x", "b": b""}
    with pytest.raises(NoSuchPath) as missing:
        receive("digits", Played(archive_of(root, paths=["none"])), tmp_path / "to")
    shown = name if name.isprintable() else repr(name)[1:-1]
    for text in (*copied.left_out, str(missing.value)):
        assert text.isprintable()
        assert shown in text


def test_the_longest_names_and_many_links_fit_the_lines(tmp_path: Path) -> None:
    name = b"\xff" * 250
    folder = root = write_output(tmp_path / "digits", {"b": b""})
    for _ in range(3):  # six characters for each byte
        folder = folder / os.fsdecode(name)
        folder.mkdir()
    for number in range(100):
        (folder / f"{number}").symlink_to("/etc/passwd")
    copied = receive("digits", Played(archive_of(root, paths=[""])), tmp_path / "to")
    assert copied.files == 1
    shown = len(copied.left_out) - 1
    assert copied.left_out[-1] == f"{100 - shown} more"


def test_a_file_that_grows_meanwhile_comes_as_long_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, out, plain = (
        write_output(tmp_path / "digits", {"a": b"one"}),
        io.BytesIO(),
        output_archive.find_files,
    )

    def grow(*arguments: Any) -> Any:
        found = plain(*arguments)
        (root / "a").write_bytes(b"one two")
        return found

    monkeypatch.setattr(output_archive, "find_files", grow)
    output_archive.send(root, {"paths": [""]}, out)
    receive("digits", Played(out.getvalue()), tmp_path / "to")
    assert everything_in(tmp_path / "to") == {"a": b"one"}


WHOLE = sent(a_file(size=10), b"0123456789")


@pytest.mark.parametrize(
    "program",
    [
        Played(WHOLE[:-20]),
        Played(WHOLE[:-2]),
        Played(WHOLE[:20]),
        Played(b""),
        Played(b"", 1, "Traceback\nOSError: a: No space"),
        Played(b"", 1, "\x1b]0;title\x07\x1b[8mOSError: \u202ea"),
        Played(b"", None, "exec: python3: not found"),
        Played(WHOLE, None, "the connection broke off"),
        Played(b'{"missing": ""}\n'),
    ],
)
def test_what_was_not_received_whole_is_an_error(program: Played, tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(ClusterProblem) as problem:
        receive("digits", program, tmp_path)
    golden(str(problem.value))


def test_a_path_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path, golden: Golden) -> None:
    root = write_output(tmp_path / "digits")
    for path in ("modle", "checkpoints/step-50", "result.json/x"):
        with pytest.raises(NoSuchPath) as problem:
            receive("digits", Played(archive_of(root, paths=[path])), tmp_path)
        golden(str(problem.value))


class Flood:
    """A connection over which a program complains without end, and what its last frames are."""

    def __init__(self, frames: int) -> None:
        self._frames = iter(
            [b"\2" + b"x" * 10_000] * frames + [b"\2\nOSError: a", b'\3{"status": "Failure"}']
        )

    def recv_data_frame(self, **_: object) -> tuple[int, Any]:
        data = next(self._frames, None)
        opcode = websocket.ABNF.OPCODE_CLOSE if data is None else websocket.ABNF.OPCODE_BINARY
        return opcode, SimpleNamespace(data=data)


def test_of_endless_complaints_the_last_are_kept() -> None:
    program = RunningProgram(Flood(1000), RequestFailure("create", "pods/exec", "pod", "server"))
    assert program.read() == b""
    assert program.result.complaint.endswith("\nOSError: a")
    assert len(program.result.complaint) <= 1 << 16


# The pod.


ALONE = {"worker": {"replicas": 1}, "evaluator": {"replicas": 0}}


@pytest.mark.parametrize(
    ("spec", "status"),
    [(ALONE | {"output": {"emptyDir": {}}}, STARTED), ({}, {}), ({"worker": {"replicas": 0}}, STARTED)],
)
def test_a_job_without_an_output_gets_no_pod(spec: Any, status: Any, golden: Golden) -> None:
    job = stored_job("Pending", **status)
    job["spec"] |= spec
    with pytest.raises(ClusterProblem) as problem:
        plan_reader(read_job(job), "abcd")
    golden(str(problem.value))


def test_the_output_is_where_the_job_has_it() -> None:
    job = stored_job("Pending", **STARTED)
    job["spec"]["output"] = {"nfs": {"server": "s", "path": "/"}, "mountPath": "/mnt/", "resume": "Never"}
    pod, place = plan_reader(read_job(job), "abcd")
    assert place == ("/mnt/digits-36a29e50", "")
    assert pod["spec"]["volumes"][0]["nfs"] == {"server": "s", "path": "/"}


def test_the_output_is_in_its_bucket() -> None:
    job = stored_job("Pending", **STARTED)
    job["spec"]["output"] = {"uri": "s3://results/team/", "resume": "Never"}
    _, place = plan_reader(read_job(job), "abcd")
    assert place == ("/output/digits-36a29e50", "s3://results/team/digits-36a29e50")


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"containerStatuses": [{"name": "reader", "state": state}]}


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes.",
}


@pytest.mark.parametrize(
    ("status", "why", "is_final"),
    [
        ({}, "it is starting", False),
        (READING, "", False),
        ({"conditions": [UNSCHEDULABLE]}, "Unschedulable: 0/3 nodes", False),
        (waiting("ContainerCreating"), "it is starting", False),
        (waiting("ErrImagePull", "no such image"), "ImagePullBackOff: no such image", True),
        (waiting("CreateContainerConfigError", "is root"), "CreateContainerConfigError: is root", True),
        (
            {"phase": "Failed", "reason": "DeadlineExceeded", "message": "over"},
            "DeadlineExceeded: over",
            True,
        ),
        ({"containerStatuses": [{"name": "reader", "state": ended(1)}]}, "it has ended", True),
    ],
)
def test_why_a_pod_does_not_run(status: dict[str, Any], why: str, is_final: bool) -> None:
    assert why_not_running({"status": status}) == (why, is_final)


# From Python.


@pytest.fixture
def job(api: CliServer, tmp_path: Path) -> Job:
    store_job_with_output(api, write_output(tmp_path / "there"))
    return Job.attach("digits")


def test_history_result_and_model_come_from_the_cluster(job: Job, api: CliServer, tmp_path: Path) -> None:
    assert job.history() == [{"step": 40, "loss": 0.5, "val_loss": 0.6}]
    assert job.result() == {"accuracy": 0.9}
    model = job.model(tmp_path / "new" / "model")
    assert everything_in(model) == everything_in(tmp_path / "there" / "model")
    assert model.stat().st_mode & 0o777 == (tmp_path / "there").stat().st_mode & 0o777
    with pytest.raises(FileExistsError, match="exists already"):
        job.model(model)
    assert (api.count("create", "pods"), api.count("delete", "pods")) == (4, 4)
    assert not [asked for asked in api.asked if asked.verb in ("patch", "update")]


def test_a_scripts_own_model_is_found(api: CliServer, tmp_path: Path) -> None:
    root = write_output(tmp_path / "there", {"best.keras": b"weights", "logs/history.jsonl": b""})
    store_job_with_output(api, root)
    assert everything_in(Job.attach("digits").model(tmp_path / "model")) == {"best.keras": b"weights"}
    (root / "best.keras").unlink()
    with pytest.raises(ClusterProblem, match="digits has no model: train_and_evaluate saves one"):
        Job.attach("digits").model(tmp_path / "another")
    with pytest.raises(ClusterProblem, match="digits has no result: only a function that has returned"):
        Job.attach("digits").result()
    assert {path.name for path in tmp_path.iterdir()} == {"there", "model", "kubeconfig"}


def forbid(part: str, message: str) -> Callable[[Asked], None]:
    def rule(asked: Asked) -> None:
        if (asked.verb, asked.plural) == (part, "pods"):
            raise Answer(403, "Forbidden", message)

    return rule


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("create", 'pods is forbidden: User "u" cannot create resource "pods"'),
        ("create", "violates PodSecurity"),
        ("exec", 'User "u" cannot create resource "pods/exec"'),
    ],
)
def test_what_a_user_may_not_do_is_named(
    job: Job, api: CliServer, part: str, message: str, tmp_path: Path, golden: Golden
) -> None:
    api.rules.append(forbid(part, message))
    with pytest.raises(ClusterProblem) as problem:
        job.model(tmp_path / "model")
    golden(str(problem.value))
    assert isinstance(problem.value, NoCluster) == ("cannot" in message)
    assert api.count("delete", "pods") == 1


def test_a_pod_that_can_not_start_says_why(
    job: Job,
    api: CliServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    api.pod_status = waiting("ErrImagePull", "no such image")
    with pytest.raises(
        ClusterProblem, match="which reads the output, can't start: ImagePullBackOff: no such"
    ):
        job.model(tmp_path / "model")
    monkeypatch.setattr(output, "_START_SECONDS", 0.5)
    monkeypatch.setattr(output, "token_hex", lambda _: "abcd")
    api.pod_status = {"conditions": [UNSCHEDULABLE]}
    with pytest.raises(ClusterProblem, match=r"didn't start within .* minutes: Unschedulable: 0/3 nodes"):
        job.model(tmp_path / "model")
    assert "waiting for the pod that reads the output: Unschedulable: 0/3" in capsys.readouterr().err
    api.put(
        {
            "kind": "Event",
            "metadata": {"name": "event"},
            "involvedObject": {"name": "digits-output-abcd"},
            "type": "Warning",
            "reason": "FailedAttachVolume",
            "message": "used by another node",
        }
    )
    with pytest.raises(ClusterProblem, match="FailedAttachVolume: used by another node"):
        job.model(tmp_path / "model")
    assert api.count("delete", "pods") == 3


def test_a_pod_that_can_not_be_deleted_is_told(
    job: Job, api: CliServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.rules.append(forbid("delete", 'User "u" cannot delete resource "pods"'))
    job.model(tmp_path / "model")
    assert "it ends by itself within an hour" in capsys.readouterr().err


def test_a_connection_that_breaks_off_leaves_nothing(job: Job, api: CliServer, tmp_path: Path) -> None:
    pod = api.program
    assert pod is not None

    def half(command: Any) -> Any:
        _, printed, complaint = pod(command)
        return None, printed[:-3000], complaint

    api.program = half
    with pytest.raises(ClusterProblem):
        job.model(tmp_path / "model")
    assert {path.name for path in tmp_path.iterdir()} == {"there", "kubeconfig"}
    assert api.count("delete", "pods") == 1


def test_a_run_here_has_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    here = store_run_with_output(tmp_path / "digits")
    job = Job.attach("digits")
    assert job.history() == [{"step": 40, "loss": 0.5, "val_loss": 0.6}]
    assert job.result() == {"accuracy": 0.9}
    assert everything_in(job.model(tmp_path / "model")) == everything_in(here / "model")
