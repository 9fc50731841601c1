"""Where a job's output goes, who may write there, and what is kept of its logs."""

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.local.local_cluster import build_pod, ended, local_cluster, python
from trainjob.cluster import Refused
from trainjob.cluster.local import (
    CannotRunHere,
    add_folder,
    bring_back,
    folders_of,
    has_saved,
    remove_folder,
    set_aside,
)
from trainjob.cluster.local.output import LOCK_NAME, OutputLock, check_writable, is_taken
from trainjob.cluster.local.process import ReplicaLog, replica_log_path
from trainjob_trainer.contract.exits import ExitCode


async def test_prepare_creates_the_output_and_says_what_differs(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        notes = cluster.prepare([build_pod(), build_pod(name="digits-worker-1-aaaaaaaa", index=1)])
        assert (tmp_path / "runs/training/digits").is_dir()
        assert list(notes) == [
            "image acme/digits:1 is not used: replicas run in the Python environment of trainjob",
            f"claim training is the folder {tmp_path}/runs/training here",
        ]


async def test_a_pod_writes_into_the_folder_of_its_claim(tmp_path: Path) -> None:
    code = "import os; open(os.environ['TRAINJOB_OUTPUT_DIR'] + '/mark', 'w').close()"
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod(python(code)))
        assert (await ended(cluster))["exitCode"] == 0
    assert (tmp_path / "runs/training/digits/mark").exists()


async def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    async with local_cluster(tmp_path) as (cluster, _):
        with pytest.raises(CannotRunHere, match=r"runs is a file, not a folder; move it, or choose another"):
            cluster.prepare([build_pod()])
        with pytest.raises(Refused, match="runs is a file"):
            await cluster.create(build_pod())


async def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    async with local_cluster(tmp_path, folder=Path("/proc/trainjob")) as (cluster, _):
        with pytest.raises(
            CannotRunHere, match=r"can't write into /proc/trainjob/training/digits \(.+\): make it"
        ):
            cluster.prepare([build_pod()])


async def test_an_output_that_has_become_unwritable_fails_the_pod(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        cluster.prepare([build_pod(role="evaluator")])
        (tmp_path / "runs/training/digits/evaluator").write_text("a file")
        await cluster.create(build_pod(role="evaluator"))
        state = await ended(cluster)
        assert state["exitCode"] == 82
        assert "evaluator is a file, not a folder" in state["message"]


async def test_two_runs_do_not_share_an_output(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (one, _), local_cluster(tmp_path) as (two, _):
        one.prepare([build_pod()])
        with pytest.raises(
            CannotRunHere, match=rf"another `trainjob run` \(process {os.getpid()}\) trains into"
        ):
            two.prepare([build_pod()])
        with pytest.raises(Refused, match="or use another --folder"):
            await two.create(build_pod())
        await one.close()
        two.prepare([build_pod()])


def test_links_in_a_folder_that_somebody_has_sent_are_not_followed(tmp_path: Path) -> None:
    folder, mine = tmp_path / "output", tmp_path / "thesis.txt"
    (folder / "logs" / "replicas").mkdir(parents=True)
    mine.write_text("all of it")
    (folder / LOCK_NAME).symlink_to(mine)
    log_path = replica_log_path(folder, "worker-0")
    log_path.symlink_to(mine)
    os.close(OutputLock(folder).fd)
    log = ReplicaLog(log_path, "a new attempt")
    assert log.problem is not None
    os.mkfifo(replica_log_path(folder, "worker-1"))  # nobody reads it
    assert ReplicaLog(replica_log_path(folder, "worker-1"), "a new attempt").problem is not None
    assert mine.read_text() == "all of it"
    assert not (folder / LOCK_NAME).is_symlink()
    (folder / LOCK_NAME).unlink()
    os.mkfifo(folder / LOCK_NAME)  # nobody writes into it
    assert not is_taken(folder)


@pytest.mark.parametrize("name", ["checkpoints", "logs", "evaluator"])
async def test_an_output_whose_folders_lead_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    output = tmp_path / "runs/training/digits"
    output.mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    (output / name).symlink_to(tmp_path / "mine")
    async with local_cluster(tmp_path) as (cluster, _):
        with pytest.raises(CannotRunHere, match=f"{name} is a link"):
            cluster.prepare([build_pod()])


async def test_the_output_is_held_until_the_last_process_has_ended(tmp_path: Path) -> None:
    code = "import signal; print('up', flush=True); signal.pause()"
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_pod(python(code)))
        await lines.wait_for("up")
        cluster._sandbox._lock.close()  # as if this process were gone
        with (
            (tmp_path / "runs/training/digits/.trainjob.lock").open() as lock,
            pytest.raises(BlockingIOError),
        ):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        await cluster.close()
        with (tmp_path / "runs/training/digits/.trainjob.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_the_log_of_a_replica_is_kept_over_attempts(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod(python("print('first')")))
        await ended(cluster)
        second = build_pod(
            python("print('second')"),
            name="digits-worker-0-bbbbbbbb",
            env=[{"name": "TRAINJOB_ATTEMPT", "value": "2"}],
        )
        await cluster.create(second)
        await ended(cluster, "digits-worker-0-bbbbbbbb")
    log = replica_log_path(tmp_path / "runs/training/digits", "worker-0")
    assert log == tmp_path / "runs/training/digits/logs/replicas/worker-0.log"
    lines = log.read_text().splitlines()
    assert [lines[1], lines[3]] == ["first", "second"]
    assert lines[0].startswith("--- attempt 1, pod digits-worker-0-aaaaaaaa, 2")
    assert lines[2].startswith("--- attempt 2, pod digits-worker-0-bbbbbbbb, 2")


def test_a_log_takes_up_again_once_it_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ReplicaLog(tmp_path / "logs" / "worker-0.log", "attempt 1")
    log.write(["first"])
    assert log._file is not None
    with monkeypatch.context() as away:
        away.setattr(log, "_file", open("/dev/full", "wb"))  # noqa: PTH123, SIM115 - the log closes it
        away.setattr(os, "open", lambda *_: (_ for _ in ()).throw(OSError(errno.ESTALE, "stale")))
        log.write(["second"])
        assert "No space left on device" in (log.problem or "")
        log.write(["third"])
        assert "stale" in (log.problem or "")
    log.write(["fourth"])
    log.close()
    log.write(["fifth"])

    assert log.problem is None
    assert log.path.read_text().splitlines() == ["attempt 1", "first", "fourth"]


@pytest.mark.parametrize(("number", "tries"), [(errno.ESTALE, 3), (errno.EIO, 3), (errno.EACCES, 1)])
def test_a_folder_that_cannot_be_written_for_a_moment_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, tries: int
) -> None:
    left, made, mkdir = [tries - 1], [], Path.mkdir

    def fail(path: Path, **how: Any) -> None:
        made.append(path)
        if len(made) <= left[0] or number == errno.EACCES:
            raise OSError(number, os.strerror(number))
        mkdir(path, **how)

    monkeypatch.setattr(Path, "mkdir", fail)
    if number == errno.EACCES:
        with pytest.raises(CannotRunHere, match="Permission denied"):
            check_writable(tmp_path / "output")
    else:
        check_writable(tmp_path / "output")
    assert len(made) == tries


@pytest.mark.parametrize(
    ("call", "number", "code", "words"),
    [
        ("tempfile.NamedTemporaryFile", errno.ESTALE, ExitCode.STORAGE_UNAVAILABLE, "can't write into"),
        ("tempfile.NamedTemporaryFile", errno.EACCES, ExitCode.OUTPUT_UNWRITABLE, "can't write into"),
        ("pathlib.Path.touch", errno.EIO, ExitCode.STORAGE_UNAVAILABLE, "can't start a process"),
        ("pathlib.Path.touch", errno.EMFILE, 128, "can't start a process"),
        ("pathlib.Path.exists", errno.ESTALE, ExitCode.STORAGE_UNAVAILABLE, "can't create the folder"),
        ("pathlib.Path.exists", errno.EACCES, 128, "can't create the folder"),
    ],
)
async def test_a_replica_whose_storage_is_away_at_its_start_says_so_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, code: int, words: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    async with local_cluster(tmp_path) as (cluster, _):
        cluster.prepare([build_pod()])
        with monkeypatch.context() as away:
            away.setattr(call, fail)
            await cluster.create(build_pod())
            state = await ended(cluster)
    assert state["exitCode"] == code
    assert words in state["message"]


def test_a_lock_is_released_where_its_file_cannot_be_written_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, close = OutputLock(tmp_path), os.close

    def fail(fd: int) -> None:
        close(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as away:
        away.setattr(os, "close", fail)
        lock.close()
        lock.close()
    OutputLock(tmp_path).close()


def test_a_full_disk_under_the_log_is_its_problem() -> None:
    assert "No space left on device" in (ReplicaLog(Path("/dev/full"), "attempt 1").problem or "")


async def test_a_log_that_cannot_be_written_does_not_stop_the_training(tmp_path: Path) -> None:
    log = replica_log_path(tmp_path / "runs/training/digits", "worker-0")
    log.parent.mkdir(parents=True)
    log.symlink_to(tmp_path / "elsewhere")
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_pod(python("for n in range(100): print(n)")))
        assert (await ended(cluster))["exitCode"] == 0
        told = [line for _, line in lines.seen if line.startswith("trainjob:")]
        assert told == [
            f"trainjob: the log file {log} can't be written (Too many levels of symbolic links): "
            "its lines are only shown here"
        ]
        assert len(lines.seen) == 101


async def test_a_full_disk_under_the_output_is_in_the_message(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod(python("with open('/dev/full', 'w') as file: file.write('x')")))
        state = await ended(cluster)
        assert state["exitCode"] == 1
        assert "No space left on device" in state["message"]


async def test_addresses_are_ports_of_this_machine(tmp_path: Path) -> None:
    addresses = [f"digits-worker-{n}.digits.default.svc:2222" for n in (0, 1)]
    config = json.dumps({"cluster": {"worker": addresses}})
    env = [{"name": "TF_CONFIG", "value": config}]
    code = "import os; print(os.environ['TF_CONFIG'])"
    async with local_cluster(tmp_path, base_port=29500) as (cluster, lines):
        cluster.prepare([build_pod(env=env)])
        await cluster.create(build_pod(python(code), env=env))
        assert (await ended(cluster))["exitCode"] == 0
        assert json.loads(lines.seen[0][1]) == {"cluster": {"worker": ["127.0.0.1:29500", "127.0.0.1:29501"]}}


async def test_gpus_are_shared_among_the_pods(tmp_path: Path) -> None:
    gpu = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    pods = [
        build_pod(python(code), container=gpu),
        build_pod(python(code), container=gpu, name="digits-worker-1-aaaaaaaa", index=1),
        build_pod(python(code), name="digits-evaluator-0-aaaaaaaa", role="evaluator"),
    ]
    async with local_cluster(tmp_path, gpus=("4", "7")) as (cluster, lines):
        cluster.prepare(pods)
        for pod in pods:
            await cluster.create(pod)
            await ended(cluster, pod["metadata"]["name"])
        assert lines.seen == [("worker-0", "4"), ("worker-1", "7"), ("evaluator-0", "-1")]


def names(folder: Path) -> dict[str, str]:
    """The folders of runs, each with what its file `mark` holds."""
    return {path.name: (path / "mark").read_text() for path in folder.iterdir() if (path / "mark").exists()}


def put(folder: Path, mark: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "mark").write_text(mark)
    return folder


def test_the_folder_of_an_earlier_run_gets_the_next_number(tmp_path: Path) -> None:
    digits = tmp_path / "digits"
    assert set_aside(digits) is None
    for mark in ("a", "b"):
        set_aside(put(digits, mark))
    put(tmp_path / "digits.9", "i")
    put(tmp_path / "digits.x", "x")
    assert set_aside(put(digits, "c")) == tmp_path / "digits.10"
    digits.mkdir()
    (digits / ".trainjob.lock").touch()
    assert set_aside(digits) is None  # nothing to keep
    expected = {"digits.1": "a", "digits.2": "b", "digits.9": "i", "digits.10": "c", "digits.x": "x"}
    assert names(tmp_path) == expected


def test_another_request_has_a_folder_of_its_own(tmp_path: Path) -> None:
    digits = tmp_path / "training" / "digits"
    assert [add_folder(digits).name for _ in range(3)] == ["digits", "digits.2", "digits.3"]
    put(tmp_path / "training" / "digits.9", "i")
    assert add_folder(digits).name == "digits.10"
    assert [each.name for each in folders_of(digits)] == [
        "digits", "digits.2", "digits.3", "digits.9", "digits.10"
    ]  # fmt: skip
    (tmp_path / "file").touch()
    with pytest.raises(CannotRunHere, match="is a file, not a folder"):
        add_folder(tmp_path / "file" / "digits")


@pytest.mark.parametrize(
    ("path", "saved"),
    [
        ("logs/replicas/worker-0.log", False),
        ("evaluator/evaluations.jsonl", False),
        ("checkpoints/.claim-1.1-ab/x", False),
        (".trainjob.json", False),
        ("checkpoints/step-00000005/x", True),
        ("checkpoints/final.json", True),
        ("result.json", True),
        ("fold-1.txt", True),  # the script's own
    ],
)
def test_what_a_later_start_would_continue_from(path: str, saved: bool, tmp_path: Path) -> None:
    assert not has_saved(tmp_path / "digits")
    (tmp_path / "digits" / path).parent.mkdir(parents=True)
    (tmp_path / "digits" / path).touch()
    assert has_saved(tmp_path / "digits") == saved


def test_an_earlier_run_becomes_the_jobs_folder_again(tmp_path: Path) -> None:
    digits, earlier = put(tmp_path / "digits", "now"), put(tmp_path / "digits.1", "earlier")
    assert bring_back(digits, digits) is None
    assert bring_back(earlier, digits) == tmp_path / "digits.2"
    assert names(tmp_path) == {"digits": "earlier", "digits.2": "now"}
    with pytest.raises(CannotRunHere, match=r"there is no folder .*digits.1: `trainjob list`"):
        bring_back(earlier, digits)
    with pytest.raises(CannotRunHere, match="isn't beside the job's folder"):
        bring_back(put(tmp_path / "other/digits", "other"), digits)
    remove_folder(digits)
    assert bring_back(tmp_path / "digits.2", digits) is None
    assert names(tmp_path) == {"digits": "now"}


def test_no_folder_is_renamed_or_removed_while_a_run_holds_it(tmp_path: Path) -> None:
    digits, earlier = put(tmp_path / "digits", "now"), put(tmp_path / "digits.1", "earlier")
    lock = OutputLock(digits)
    for change in (
        lambda: set_aside(digits),
        lambda: bring_back(earlier, digits),
        lambda: remove_folder(digits),
    ):
        with pytest.raises(CannotRunHere, match=rf"another `trainjob run` \(process {os.getpid()}\) trains"):
            change()
    lock.close()
    lock = OutputLock(earlier)
    with pytest.raises(CannotRunHere, match="another `trainjob run`"):
        bring_back(earlier, digits)
    lock.close()
    assert names(tmp_path) == {"digits": "now", "digits.1": "earlier"}


def test_a_folder_that_is_renamed_before_it_is_locked_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits, flock = put(tmp_path / "digits", "now"), fcntl.flock

    def rename_first(fd: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        set_aside(digits)
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", rename_first)
    with pytest.raises(CannotRunHere, match=r"has just renamed .*digits: start again"):
        OutputLock(digits)
