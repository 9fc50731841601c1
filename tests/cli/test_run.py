"""The whole of `trainjob run`, with small scripts instead of TensorFlow.

What isn't about the process itself is called in the test's own one. A replica with an agent takes five times
as long as one without.
"""

import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from support.cli.program import (
    BARE,
    GUARD_SECONDS,
    LONE,
    SUCCEED,
    command,
    running,
    terminal,
    trainjob,
    write_job,
)
from support.cli.stored_jobs import call
from support.golden import Golden
from support.local.local_cluster import is_alive, wait_gone
from trainjob.api import FirstFailure
from trainjob.client.run_record import read_run_folder

OUTPUT = Path("runs/training/digits")

# Two generations that resist SIGTERM, the second in a session of its own, below every replica.
RESIST = """
def stay(word):
    print(word, os.getpid(), flush=True)
    while True: signal.pause()
if role == "worker":
    report(state="training", step=5, totalSteps=10, checkpointStep=5)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    stay("grandchild" if os.fork() == 0 else "child")
stay("parent")
"""
STAY = """
if role == "worker":
    report(state="training", step=5, totalSteps=10, checkpointStep=5)
print("pid", os.getpid(), flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def first_failure() -> FirstFailure:
    """What failed first, as the record has it."""
    run = read_run_folder(OUTPUT)
    assert run is not None
    found = run.record.view.status.first_failure
    assert found is not None
    return found


def test_a_job_that_succeeds(tmp_path: Path) -> None:
    odd = "sys.stdout.buffer.write('grün \U0001f600 \\xff\\n'.encode()); sys.stdout.flush()\n"
    file = write_job(tmp_path, odd + SUCCEED)
    result = trainjob("run", str(file), cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    assert re.search(r"^\d\d:\d\d:\d\d worker-0: hello from worker 0$", result.stdout, re.MULTILINE)
    assert "worker-1: hello from worker 1" in result.stdout
    assert "evaluator-0: hello from evaluator 0" in result.stdout
    assert "trainjob: claim training is the folder" in result.stdout
    assert ": gr\\xfcn \\U0001f600" in result.stdout
    assert "step 440: accuracy 97.5 %, loss 0.08125, final checkpoint" in result.stdout
    assert "hello from worker 1" in (OUTPUT / "logs/replicas/worker-1.log").read_text()


def test_an_output_without_a_record_is_continued_where_that_is_asked_for(
    tmp_path: Path, golden: Golden
) -> None:
    (OUTPUT / "checkpoints/step-00000440").mkdir(parents=True)
    (OUTPUT / "logs/train").mkdir(parents=True)
    (OUTPUT / "logs/train/events.out.tfevents.1").touch()
    write_job(tmp_path, **BARE)
    refused = call("run", "job.yaml")
    assert (refused.exit_code, refused.stdout) == (1, "")
    result = call("run", "job.yaml", "--resume", "digits")
    assert (result.exit_code, result.stderr) == (0, "")
    _, end, places = result.stdout.partition("  steps")
    golden(refused.stderr, end + places)


def test_quiet_prints_the_end_alone(tmp_path: Path) -> None:
    result = call("run", str(write_job(tmp_path, **BARE)), "--quiet")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("digits is complete after ")


def test_a_script_that_only_ends_is_complete_and_reports_no_step(tmp_path: Path) -> None:
    result = call("run", str(write_job(tmp_path, "print('hello')", **BARE)))
    assert result.exit_code == 0, result.output
    assert "digits: Complete: training has finished, but no step was reported; " in result.stdout
    last = result.stdout.splitlines()[-1]
    assert last.startswith("digits is complete after ")
    assert "no step was reported; " in last


def test_commands_start_in_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("inner", "outer"):
        (tmp_path / name).mkdir()
    write_job(tmp_path / "inner", SUCCEED + "\nprint('cwd', os.getcwd())", **BARE)
    monkeypatch.chdir(tmp_path / "outer")
    result = call("run", "../inner/job.yaml", "--folder", "elsewhere")
    assert result.exit_code == 0, result.output
    assert f": cwd {tmp_path}/inner" in result.stdout
    assert (tmp_path / "outer/elsewhere/training/digits").is_dir()


def test_the_environment_and_folders_stand_in_for_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    container = {
        "env": [secret, {"name": "FILE", "value": "/settings/file"}],
        "volumeMounts": [{"name": "settings", "mountPath": "/settings"}],
    }
    pod = {"volumes": [{"name": "settings", "configMap": {"name": "settings"}}]}
    (tmp_path / "here").mkdir()
    (tmp_path / "here/file").write_text("from the file")
    script = "print(os.environ['TOKEN'], open(os.environ['FILE']).read())\n" + SUCCEED
    file = write_job(tmp_path, script, container=container, pod=pod, **BARE)
    result = call("run", str(file), "--volume", "settings=here")
    assert result.exit_code == 0, result.output
    assert "worker-0: secret from the file" in result.stdout


def test_a_file_read_from_a_cluster_starts_over(tmp_path: Path) -> None:
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z", "labels": None}
    file = write_job(tmp_path, metadata=metadata, **BARE)
    with file.open("a") as job:
        job.write('status: {state: Failed, conditions: [{type: Failed, status: "True"}]}\n')
    result = call("run", str(file))
    assert result.exit_code == 0, result.output
    assert "worker-0: hello from worker 0" in result.stdout


# Failures.


def test_a_script_that_crashes(tmp_path: Path) -> None:
    script = "if role == 'worker' and index == 1: raise ValueError('boom')\nsignal.pause()"
    result = call("run", str(write_job(tmp_path, script, maxRestarts=0, evaluator=False)))
    assert result.exit_code == 1
    failure = first_failure()
    assert (failure.rank, failure.exit_code, failure.reason) == ("worker-1", 1, "Crashed")
    assert "digits failed after " in result.stderr
    assert "first failure worker-1, exit code 1 (Crashed)" in result.stderr
    assert "    | ValueError: boom" in result.stderr
    assert "whole log     runs/training/digits/logs/replicas/worker-1.log" in result.stderr
    assert "what to do    " in result.stderr


CRASH_ONCE = """
def wait_for(name):
    while not os.path.exists(name): time.sleep(0.01)
if role == "worker" and os.environ["TRAINJOB_ATTEMPT"] == "1":
    report(state="training", step=30, checkpointStep=20, notices=["said before the crash"] if index else [])
    if index == 1: signal.pause()
    wait_for("crash")
    sys.exit(1)
if role == "worker":
    report(state="training", step=20, resumedFrom=20)
    wait_for("finish")
"""


@pytest.mark.parametrize("strategy", ["InPlace", "Recreate"])
def test_a_crash_is_survived(strategy: str, tmp_path: Path) -> None:
    file = write_job(tmp_path, CRASH_ONCE + SUCCEED, restartStrategy=strategy, evaluator=False)
    with running("run", str(file), cwd=tmp_path) as run:
        run.read_until("digits: Running: training on 2 workers", "worker-1: training, step 30")
        (tmp_path / "crash").touch()
        run.read_until(
            "Restarting: worker 0 crashed (exit code 1) at step 30",
            "digits: Running: training on 2 workers, attempt 2",
            "digits: resumed from step 20",
        )
        (tmp_path / "finish").touch()
        assert run.finish() == 0, "\n".join(run.lines)
    assert run.lines[-1] == "  notice        said before the crash"
    assert run.lines[-1] in call("get", "digits").stdout.splitlines()
    log = (OUTPUT / "logs/replicas/worker-0.log").read_text()
    assert log.count("--- ") == (1 if strategy == "InPlace" else 2)
    assert all(f"attempt {attempt}" in log for attempt in (1, 2))


HOARD = """
if role == "worker":
    report(state="training", step=30, checkpointStep=20)
    hoard = bytes([1]) * 2**20 * 80 if index == 1 else b""
    if os.environ["TRAINJOB_ATTEMPT"] == "1": signal.pause()
    if index == 1: open("trained", "w").close()
    while not os.path.exists("trained"): time.sleep(0.01)
"""
"""Worker 0 waits for the other one: once it has finished, so has training, whatever is left of worker 1."""


@pytest.mark.parametrize("strategy", ["InPlace", "Recreate"])
def test_a_worker_that_is_killed_for_memory_gets_more(strategy: str, tmp_path: Path) -> None:
    container = {"resources": {"limits": {"memory": "80Mi"}}}
    worker = {"replicas": 2, "maxAllowed": {"memory": "1Gi"}}
    file = write_job(
        tmp_path,
        HOARD + SUCCEED,
        container=container,
        worker=worker,
        evaluator=False,
        restartStrategy=strategy,
    )
    result = call("run", str(file))
    assert result.exit_code == 0, result.output
    raised = "the memory of all workers is raised from 80Mi to 120Mi"
    assert f"worker 1 ran out of memory (OOMKilled, 137) at step 30; {raised}" in result.stdout
    # A process that starts before its pod is resized is killed once more.
    assert "training on 2 workers with 120Mi of memory each, attempt " in result.stdout


FILL_DISK = """
try:
    with open("/dev/full", "w") as file: file.write("x")
except OSError as error:
    raise SystemExit(str(error))  # the script decides itself; without that it would be waited for
"""


@pytest.mark.parametrize(
    ("script", "code", "reason", "advice"),
    [
        ("import no_such_module", 1, "Crashed", "install the package of 'no_such_module'"),
        ("sys.exit(81)", 81, "OutputFinished", "--fresh"),
        (FILL_DISK, 1, "Crashed", "free some disk space"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "Killed", "memory ran out"),
    ],
)
def test_failures_are_explained(script: str, code: int, reason: str, advice: str, tmp_path: Path) -> None:
    result = call("run", str(write_job(tmp_path, script, maxRestarts=0, **BARE)))
    failure = first_failure()
    assert (result.exit_code, failure.rank) == (1, "worker-0")
    assert (failure.exit_code, failure.reason) == (code, reason)
    assert advice in result.stderr


@pytest.mark.parametrize("strategy", ["InPlace", "Recreate"])
def test_a_mistake_in_the_script_ends_the_job_at_once(strategy: str, tmp_path: Path) -> None:
    result = call("run", str(write_job(tmp_path, "x = = 1", **LONE, restartStrategy=strategy)))
    assert result.exit_code == 1
    assert "; a restart can't fix that" in result.stderr
    assert "Restarting: " not in result.stdout


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    file = write_job(tmp_path, maxRestarts=0, container={"command": ["no-such"]}, **BARE)
    result = call("run", str(file))
    assert (result.exit_code, first_failure().exit_code) == (1, 127)
    assert "can't start 'no-such': no such program on PATH" in result.stderr


def test_a_port_in_use(tmp_path: Path) -> None:
    file = write_job(tmp_path, maxRestarts=0, **LONE)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = call("run", str(file), "--base-port", str(port))
    failure = first_failure()
    assert (result.exit_code, failure.exit_code, failure.reason) == (1, 84, "PortInUse")
    assert f"port {port} of this machine is in use" in result.stderr


def test_an_evaluator_that_fails_fails_no_training(tmp_path: Path) -> None:
    script = "if role == 'evaluator': raise KeyError('x')\n" + SUCCEED
    result = call("run", str(write_job(tmp_path, script, maxRestarts=0, workers=1)))
    assert result.exit_code == 0, result.output
    assert "digits is complete" in result.stdout
    assert "The training is complete, but its evaluation is not" in result.stdout
    assert "    | KeyError: 'x'" in result.stdout


# Ends from outside; that every signal is heard is in test_interruption.py.


def test_an_interruption_ends_every_process(tmp_path: Path) -> None:
    file = write_job(tmp_path, STAY)
    with running("run", str(file), cwd=tmp_path) as run:
        run.read_until("worker-0: pid", "worker-1: pid", "evaluator-0: pid", "worker-0: training")
        run.process.send_signal(signal.SIGTERM)
        assert run.finish() == 130
    text = "\n".join(run.lines)
    assert "stopping: replicas have" in text
    assert "The checkpoint of step 5 is kept in runs/training/digits/checkpoints." in text
    assert f"continue from there with the same command: trainjob run {file}" in text
    pids = run.numbers_after("pid")
    assert len(pids) == 3
    assert not [pid for pid in pids if is_alive(pid)]


WORDS = ("parent", "child", "grandchild")


def test_processes_that_resist_are_killed(tmp_path: Path) -> None:
    with running("run", str(write_job(tmp_path, RESIST, workers=1)), cwd=tmp_path) as run:
        run.read_until(*(f"{replica}: {word}" for replica in ("worker-0", "evaluator-0") for word in WORDS))
        run.process.send_signal(signal.SIGINT)
        run.read_until("stopping: replicas have")
        run.process.send_signal(signal.SIGINT)  # a second time: at once
        assert run.finish() == 130
    pids = [pid for word in WORDS for pid in run.numbers_after(word)]
    assert len(pids) == 6
    assert not [pid for pid in pids if is_alive(pid)]


def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    with running("run", str(write_job(tmp_path, RESIST, workers=1)), cwd=tmp_path) as run:
        run.read_until(*(f"{replica}: {word}" for replica in ("worker-0", "evaluator-0") for word in WORDS))
        pids = [pid for word in WORDS for pid in run.numbers_after(word)]
        run.process.kill()
    assert len(pids) == 6
    for pid in pids:
        wait_gone(pid)


def test_the_reader_of_the_output_is_gone(tmp_path: Path) -> None:
    script = STAY.replace("signal.pause()", "while not time.sleep(0.01): print('more', flush=True)")
    with running("run", str(write_job(tmp_path, script, **BARE)), cwd=tmp_path) as run:
        run.read_until("worker-0: pid")
        assert run.process.stdout is not None
        run.process.stdout.close()
        assert run.process.wait(GUARD_SECONDS) == 130
    (pid,) = run.numbers_after("pid")
    wait_gone(pid)


def test_the_output_has_no_reader_from_the_start(tmp_path: Path) -> None:
    file = write_job(tmp_path, "signal.pause()", **BARE)
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(  # noqa: PLW1510 - the exit code is what is looked at
            command(["run", str(file)]), cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=GUARD_SECONDS,
        )  # fmt: skip
    assert result.returncode == 130
    assert "digits was interrupted" in result.stderr


def test_closed_standard_streams(tmp_path: Path) -> None:
    program = shlex.join(command(["run", str(write_job(tmp_path, **BARE))]))
    result = subprocess.run(  # noqa: PLW1510, S602 - the exit code is what is looked at; our own words
        f"{program} <&- >&-", shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        timeout=GUARD_SECONDS,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")


def test_the_live_display_of_a_terminal(tmp_path: Path) -> None:
    with terminal("run", str(write_job(tmp_path, STAY, **BARE)), cwd=tmp_path) as (process, screen):
        screen.read_until("5/10", "worker-0 | pid")
        screen.type(b"\x03")
        screen.read_until("was interrupted", "\x1b[?25h")  # the cursor is back
        assert process.wait(timeout=GUARD_SECONDS) == 130
    (pid,) = screen.numbers_after("pid")
    wait_gone(pid)
    assert "trainjob.cli" not in screen.text


def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    with terminal("run", str(write_job(tmp_path, STAY, workers=1)), cwd=tmp_path) as (process, screen):
        screen.read_until("5/10", "evaluator-0 | pid", "worker-0 | pid")
        screen.close()
        assert process.wait(timeout=GUARD_SECONDS) == 130
    pids = screen.numbers_after("pid")
    assert len(pids) == 2
    for pid in pids:
        wait_gone(pid)


# Folders.


def test_fresh_starts_over_and_keeps_what_was_there_under_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "print('output', os.environ['TRAINJOB_OUTPUT_DIR'], flush=True)\n" + SUCCEED
    file = write_job(tmp_path, script, **BARE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    output = tmp_path / OUTPUT
    for number, arguments in enumerate(((), ("--fresh",), ("--fresh",))):
        result = call("run", str(file), *arguments)
        assert result.exit_code == 0, result.output
        assert f"worker-0: output {output}" in result.stdout
        assert (f"the previous output is kept in {output}.{number}" in result.stdout) == (number > 0)
        (output / f"mark-{number}").touch()
    assert sorted(path.name for path in output.parent.iterdir()) == ["digits", "digits.1", "digits.2"]
    assert not (output / "mark-1").exists()
    assert (tmp_path / "runs/training/digits.1/mark-0").exists()

    result = call("run", str(file), "--resume", "digits.1")
    assert result.exit_code == 0, result.output
    assert (output / "mark-0").exists()
    kept = [path.name for path in output.parent.iterdir() if (path / "mark-2").exists()]
    assert kept == ["digits.3"]


# What is refused before anything starts.

FROM_SECRET = {"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
TYPOS = {"image": "", "evn": [], "env": [{"name": "TRAIN_EPOCH", "value": "3"}]}  # no image is needed here
BUCKET = {"output": {"uri": "s3://results"}}


@pytest.mark.parametrize(
    ("job", "arguments", "code"),
    [
        ({"container": {"command": []}}, [], 1),
        ({"container": {"command": []}, "restartStrategy": "Recreate"}, [], 1),
        ({"pod": {"initContainers": [{"name": "fetch", "image": "x"}]}}, [], 1),
        ({"container": {"env": [FROM_SECRET]}}, [], 1),
        ({"suspend": True}, [], 1),
        ({"workers": 0}, [], 1),
        ({"container": TYPOS}, [], 1),
        ({"pod": {"volumes": [{"name": "data", "emptyDir": {}}]}}, ["--volume", "dta=."], 1),
        # What renames folders, for a bucket.
        (BUCKET, ["--fresh", "--new"], 1),
        (BUCKET, ["--smoke"], 1),
        (BUCKET, ["--resume=digits.1"], 1),
        ({}, ["--volume", "settings"], 2),
        ({}, ["--volume", "=x"], 2),
        ({}, ["--volume", "settings=nowhere"], 2),
        ({}, ["--base-port", "1023"], 2),
        ({}, ["--folder", "job.yaml"], 2),
        ({}, ["--name", "other"], 2),
        ({}, ["-f", "nothing.yaml"], 2),
    ],
)  # fmt: skip
def test_what_is_refused(
    job: dict[str, object], arguments: list[str], code: int, tmp_path: Path, golden: Golden
) -> None:
    file = write_job(tmp_path, **job)
    result = call("run", *([] if "-f" in arguments else [str(file)]), *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    golden(result.stderr.rpartition("\n\n")[2])
    assert not (tmp_path / "runs").exists()
