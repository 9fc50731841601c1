"""The output of a job: archives that can do no harm, and the pod that reads it in a cluster."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from trainjob.cluster.kube.exec import Executed

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


def packed(*members: tuple[tarfile.TarInfo, bytes], files: int | None = None) -> bytes:
    """An archive with these members and an end, as somebody might plant it."""
    out = io.BytesIO(b'{"files": 1, "bytes": 1}\n')
    out.seek(0, 2)
    end = json.dumps({"files": len(members) if files is None else files, "leftOut": []}).encode()
    with tarfile.open(fileobj=out, mode="w|") as archive:
        for member, content in (*members, (tarfile.TarInfo("end"), end)):
            if member.isreg():
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    for field, value in fields.items():
        setattr(made, field, value)
    return made


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


NAMES = st.one_of(
    st.lists(st.sampled_from(["files", "..", ".", "", "a", "b\0", "/", "etc", "\\", "~"]), max_size=6).map(
        "/".join
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
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


@pytest.mark.parametrize(
    "planted",
    [
        member("/etc/planted"),
        member("../planted"),
        member("files/../../planted"),
        member("files/"),
        member("other/planted"),
        member("files/a", tarfile.SYMTYPE, linkname="/etc"),
        member("files/a", tarfile.LNKTYPE, linkname="../outside"),
        member("files/a", tarfile.FIFOTYPE),
        member("files/a", tarfile.CHRTYPE),
        member("files/a", pax_headers={"path": "../../planted"}),
        member("files/a", pax_headers={"TRAINJOB.offset": "5"}),
    ],
    ids=lambda planted: f"{planted.name} {planted.linkname or planted.pax_headers}",
)
def test_what_no_honest_program_sends_is_refused(planted: tarfile.TarInfo, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("safe")
    (tmp_path / "into").mkdir()
    with pytest.raises((ClusterProblem, OSError)):
        receive("digits", Played(packed((planted, b"x" if planted.isreg() else b""))), tmp_path / "into")
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "into"}
    assert everything_in(tmp_path / "into") == {}


WHOLE = packed((member("files/a"), b"content"))


@pytest.mark.parametrize(
    "program",
    [
        Played(WHOLE[:1200]),
        Played(WHOLE[:600]),
        Played(packed((member("files/a"), b""), files=2)),
        Played(b"no JSON\n" + WHOLE),
        Played(b"", 1, "Traceback\nOSError: a: No space"),
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
    pod, root = plan_reader(read_job(job), "abcd")
    assert root == "/mnt/digits-36a29e50"
    assert pod["spec"]["volumes"][0]["nfs"] == {"server": "s", "path": "/"}


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
    assert job.history() == {"loss": {40: 0.5}, "val_loss": {40: 0.6}}
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
    with pytest.raises(ClusterProblem, match="digits has left no model: train_and_evaluate leaves one"):
        Job.attach("digits").model(tmp_path / "another")
    with pytest.raises(ClusterProblem, match="digits has no result: only a function has one"):
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
    assert job.history() == {"loss": {40: 0.5}, "val_loss": {40: 0.6}}
    assert job.result() == {"accuracy": 0.9}
    assert everything_in(job.model(tmp_path / "model")) == everything_in(here / "model")
