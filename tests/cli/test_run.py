"""The whole of `trainjob run`, with small scripts instead of TensorFlow."""

import re
import signal
import socket
from pathlib import Path

import pytest

from support.cli.program import GUARD_SECONDS, SUCCEED, running, terminal, trainjob, write_job
from support.local.local_cluster import is_alive, wait_gone

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
FILL_DISK = """
try:
    with open("/dev/full", "w") as file: file.write("x")
except OSError as error:
    raise SystemExit(str(error))  # the script decides itself; without that it would be waited for
"""
STAY = """
if role == "worker":
    report(state="training", step=5, totalSteps=10, checkpointStep=5)
print("pid", os.getpid(), flush=True)
signal.pause()
"""


def test_a_job_that_succeeds(tmp_path: Path) -> None:
    (tmp_path / "runs/training/digits/checkpoints/step-00000440").mkdir(parents=True)
    (tmp_path / "runs/training/digits/logs/train").mkdir(parents=True)
    (tmp_path / "runs/training/digits/logs/train/events.out.tfevents.1").touch()
    refused = trainjob("run", str(write_job(tmp_path)), cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "holds the output of a run without a record of its request; nothing was started" in refused.stderr
    result = trainjob("run", "job.yaml", "--resume", "digits", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^\d\d:\d\d:\d\d worker-0: hello from worker 0$", result.stdout, re.MULTILINE)
    assert "worker-1: hello from worker 1" in result.stdout
    assert "evaluator-0: hello from evaluator 0" in result.stdout
    assert "trainjob: claim training is the folder" in result.stdout
    assert "step 440: accuracy 97.5 %, loss 0.08125, final checkpoint" in result.stdout
    assert "checkpoints   runs/training/digits/checkpoints" in result.stdout
    assert "tensorboard --logdir runs/training/digits" in result.stdout
    assert result.stderr == ""
    assert "hello from worker 1" in (tmp_path / "runs/training/digits/logs/replicas/worker-1.log").read_text()


def test_quiet_prints_the_end_alone(tmp_path: Path) -> None:
    file = write_job(tmp_path, workers=1, evaluator=False)
    result = trainjob("run", str(file), "--quiet", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("digits is complete after ")


def test_a_script_that_only_ends_is_complete_and_reports_no_step(tmp_path: Path) -> None:
    file = write_job(tmp_path, "print('hello')", evaluator=False)
    result = trainjob("run", str(file), cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "digits: Complete: training has finished, but no step was reported; " in result.stdout
    last = result.stdout.splitlines()[-1]
    assert last.startswith("digits is complete after ")
    assert "no step was reported; a Keras model's fit, " in last


def test_commands_start_in_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "outer").mkdir()
    file = write_job(tmp_path / "inner", SUCCEED + "\nprint('cwd', os.getcwd())")
    result = trainjob("run", str(file), "--folder", "elsewhere", cwd=tmp_path / "outer")
    assert result.returncode == 0, result.stdout + result.stderr
    assert f": cwd {tmp_path}/inner" in result.stdout
    assert (tmp_path / "outer/elsewhere/training/digits").is_dir()


def test_a_script_that_crashes(tmp_path: Path) -> None:
    script = "if role == 'worker' and index == 1: raise ValueError('boom')\nsignal.pause()"
    result = trainjob("run", str(write_job(tmp_path, script, maxRestarts=0)), cwd=tmp_path)
    assert result.returncode == 1
    assert "digits failed after " in result.stderr
    assert "first failure worker-1, exit code 1 (Crashed)" in result.stderr
    assert "    | ValueError: boom" in result.stderr
    assert "whole log     runs/training/digits/logs/replicas/worker-1.log" in result.stderr
    assert "what to do    " in result.stderr


CRASH_ONCE = """
import time
def wait_for(name):
    while not os.path.exists(name): time.sleep(0.01)
if role == "worker" and os.environ["TRAINJOB_ATTEMPT"] == "1":
    report(state="training", step=30, checkpointStep=20)
    if index == 1:
        report(state="training", step=30, notices=["said before the crash"])
        signal.pause()
    wait_for("crash")
    sys.exit(1)
if role == "worker":
    report(state="training", step=20, resumedFrom=20)
    wait_for("finish")
"""


@pytest.mark.parametrize("strategy", ["InPlace", "Recreate"])
def test_a_crash_is_survived(strategy: str, tmp_path: Path) -> None:
    file = write_job(tmp_path, CRASH_ONCE + SUCCEED, restartStrategy=strategy)
    with running("run", str(file), cwd=tmp_path) as run:
        run.read_until("digits: Running: training on 2 workers", "worker-0: training, step 30")
        (tmp_path / "crash").touch()
        run.read_until(
            "Restarting: worker 0 crashed (exit code 1) at step 30",
            "digits: Running: training on 2 workers, attempt 2",
            "digits: resumed from step 20",
        )
        (tmp_path / "finish").touch()
        assert run.finish() == 0, "\n".join(run.lines)
    assert run.lines[-1] == "  notice        said before the crash"
    assert run.lines[-1] in trainjob("get", "digits", cwd=tmp_path).stdout.splitlines()
    log = (tmp_path / "runs/training/digits/logs/replicas/worker-0.log").read_text()
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
    resources = {"limits": {"memory": "80Mi"}}
    worker = {"replicas": 2, "maxAllowed": {"memory": "1Gi"}}
    file = write_job(
        tmp_path, HOARD + SUCCEED, container={"resources": resources}, worker=worker, restartStrategy=strategy
    )
    result = trainjob("run", str(file), cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    raised = "the memory of all workers is raised from 80Mi to 120Mi"
    assert f"worker 1 ran out of memory (OOMKilled, 137) at step 30; {raised}" in result.stdout
    # A process that starts before its pod is resized is killed once more.
    assert "training on 2 workers with 120Mi of memory each, attempt " in result.stdout


@pytest.mark.parametrize(
    ("script", "ending", "advice"),
    [
        ("import no_such_module", "exit code 1 (Crashed)", "install the package of 'no_such_module'"),
        ("sys.exit(81)", "exit code 81 (OutputFinished)", "--fresh"),
        (FILL_DISK, "exit code 1 (Crashed)", "free some disk space"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL (Killed)", "memory ran out"),
    ],
)  # fmt: skip
def test_failures_are_explained(script: str, ending: str, advice: str, tmp_path: Path) -> None:
    file = write_job(tmp_path, script, maxRestarts=0, workers=1, evaluator=False)
    result = trainjob("run", str(file), cwd=tmp_path)
    assert result.returncode == 1
    assert f"first failure worker-0, {ending}" in result.stderr
    assert advice in result.stderr


@pytest.mark.parametrize("strategy", ["InPlace", "Recreate"])
@pytest.mark.parametrize("script", ["x = = 1", "import no_such_module", "open('no-such-file')", "len(1)"])
def test_a_mistake_in_the_script_ends_the_job_at_once(script: str, strategy: str, tmp_path: Path) -> None:
    file = write_job(tmp_path, script, evaluator=False, restartStrategy=strategy)
    result = trainjob("run", str(file), cwd=tmp_path)
    assert result.returncode == 1
    assert "; a restart can't fix that" in result.stderr
    assert "Restarting: " not in result.stdout


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    file = write_job(tmp_path, maxRestarts=0, workers=1, evaluator=False, container={"command": ["no-such"]})
    result = trainjob("run", str(file), cwd=tmp_path)
    assert result.returncode == 1
    assert "first failure worker-0, exit code 127" in result.stderr
    assert "can't start 'no-such': no such program on PATH" in result.stderr


def test_a_port_in_use(tmp_path: Path) -> None:
    file = write_job(tmp_path, maxRestarts=0, workers=1, evaluator=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = trainjob("run", str(file), "--base-port", str(port), cwd=tmp_path)
    assert result.returncode == 1
    assert "first failure worker-0, exit code 84 (PortInUse)" in result.stderr
    assert f"port {port} of this machine is in use" in result.stderr


def test_an_evaluator_that_fails_fails_no_training(tmp_path: Path) -> None:
    script = "if role == 'evaluator': raise KeyError('x')\n" + SUCCEED
    result = trainjob("run", str(write_job(tmp_path, script, maxRestarts=0)), cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "digits is complete" in result.stdout
    assert "The training is complete, but its evaluation is not" in result.stdout
    assert "    | KeyError: 'x'" in result.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_ends_every_process(number: signal.Signals, tmp_path: Path) -> None:
    file = write_job(tmp_path, STAY)
    with running("run", str(file), cwd=tmp_path) as run:
        run.read_until("worker-0: pid", "worker-1: pid", "evaluator-0: pid", "worker-0: training")
        run.process.send_signal(number)
        assert run.finish() == 130
    text = "\n".join(run.lines)
    assert "stopping: replicas have" in text
    assert "The checkpoint of step 5 is kept in runs/training/digits/checkpoints." in text
    assert f"continue from there with the same command: trainjob run {file}" in text
    pids = run.numbers_after("pid")
    assert len(pids) == 3
    assert not [pid for pid in pids if is_alive(pid)]


def test_processes_that_resist_are_killed(tmp_path: Path) -> None:
    with running("run", str(write_job(tmp_path, RESIST)), cwd=tmp_path) as run:
        run.read_until(*(f"{r}: {w}" for r in ("worker-0", "worker-1", "evaluator-0") for w in WORDS))
        run.process.send_signal(signal.SIGINT)
        run.read_until("stopping: replicas have")
        run.process.send_signal(signal.SIGINT)  # a second time: at once
        assert run.finish() == 130
    pids = [pid for word in WORDS for pid in run.numbers_after(word)]
    assert len(pids) == 9
    assert not [pid for pid in pids if is_alive(pid)]


WORDS = ("parent", "child", "grandchild")


def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    with running("run", str(write_job(tmp_path, RESIST)), cwd=tmp_path) as run:
        run.read_until(*(f"{r}: {w}" for r in ("worker-0", "worker-1", "evaluator-0") for w in WORDS))
        pids = [pid for word in WORDS for pid in run.numbers_after(word)]
        run.process.kill()
    assert len(pids) == 9
    for pid in pids:
        wait_gone(pid)


def test_the_reader_of_the_output_is_gone(tmp_path: Path) -> None:
    script = STAY.replace("signal.pause()", "while not time.sleep(0.01): print('more', flush=True)")
    with running("run", str(write_job(tmp_path, script)), cwd=tmp_path) as run:
        run.read_until("worker-0: pid", "worker-1: pid", "evaluator-0: pid")
        assert run.process.stdout is not None
        run.process.stdout.close()
        assert run.process.wait(timeout=60) == 130
    for pid in run.numbers_after("pid"):
        wait_gone(pid)


def test_two_runs_of_one_output(tmp_path: Path) -> None:
    file = write_job(tmp_path, STAY)
    with running("run", str(file), cwd=tmp_path) as run:
        run.read_until("worker-0: pid")
        second = trainjob("run", str(file), cwd=tmp_path)
        assert second.returncode == 1
        assert f"another `trainjob run` (process {run.process.pid}) trains into" in second.stderr
        assert second.stdout.count("running") == 0
        run.process.send_signal(signal.SIGINT)
        assert run.finish() == 130


def test_fresh_starts_over_and_keeps_what_was_there_under_a_number(tmp_path: Path) -> None:
    script = "print('output', os.environ['TRAINJOB_OUTPUT_DIR'], flush=True)\n" + SUCCEED
    file = write_job(tmp_path, script, workers=1, evaluator=False)
    (tmp_path / "elsewhere").mkdir()
    output = tmp_path / "runs/training/digits"
    for number, arguments in enumerate(((), ("--fresh",), ("--fresh",))):
        result = trainjob("run", str(file), *arguments, cwd=tmp_path / "elsewhere")
        assert result.returncode == 0, result.stdout + result.stderr
        assert f"worker-0: output {output}" in result.stdout
        assert (f"the previous output is kept in {output}.{number}" in result.stdout) == (number > 0)
        (output / f"mark-{number}").touch()
    assert sorted(path.name for path in output.parent.iterdir()) == ["digits", "digits.1", "digits.2"]
    assert not (output / "mark-1").exists()
    assert (tmp_path / "runs/training/digits.1/mark-0").exists()

    result = trainjob("run", str(file), "--resume", "digits.1", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (output / "mark-0").exists()
    kept = [path.name for path in output.parent.iterdir() if (path / "mark-2").exists()]
    assert kept == ["digits.3"]


@pytest.mark.parametrize(
    ("job", "line"),
    [
        ({"container": {"command": []}}, "needs a command, which the agent starts"),
        ({"container": {"command": []}, "restartStrategy": "Recreate"}, "has no command"),
        ({"pod": {"initContainers": [{"name": "fetch", "image": "x"}]}}, "init container 'fetch' can't run"),
        ({"container": {"env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}},
         "worker-0, worker-1, evaluator-0: env T comes from Secret s (key k), which this machine doesn't "
         "have: export T="),
        ({"suspend": True}, "spec.suspend: is true, so nothing would start"),
        ({"workers": 0}, "spec.worker.replicas: must be at least 1, got 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_here_is_refused(job: dict[str, object], line: str, tmp_path: Path) -> None:
    result = trainjob("run", str(write_job(tmp_path, **job)), cwd=tmp_path)
    assert result.returncode == 1
    assert line in result.stderr
    assert "Traceback" not in result.stderr


def test_the_environment_and_folders_stand_in_for_a_cluster(tmp_path: Path) -> None:
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    container = {
        "env": [secret, {"name": "FILE", "value": "/settings/file"}],
        "volumeMounts": [{"name": "settings", "mountPath": "/settings"}],
    }
    pod = {"volumes": [{"name": "settings", "configMap": {"name": "settings"}}]}
    (tmp_path / "here").mkdir()
    (tmp_path / "here/file").write_text("from the file")
    script = "print(os.environ['TOKEN'], open(os.environ['FILE']).read())\n" + SUCCEED
    file = write_job(tmp_path, script, container=container, pod=pod)
    result = trainjob("run", str(file), "--volume", "settings=here", cwd=tmp_path, env={"TOKEN": "secret"})
    assert result.returncode == 0, result.stdout + result.stderr
    assert ": secret from the file" in result.stdout


@pytest.mark.parametrize("option", ["--fresh", "--new", "--smoke", "--resume=digits.1"])
def test_what_renames_folders_is_refused_for_a_bucket(option: str, tmp_path: Path) -> None:
    job = write_job(tmp_path, output={"uri": "s3://results"})
    result = trainjob("run", str(job), option, cwd=tmp_path)
    assert result.returncode == 1
    assert f"{option.partition('=')[0]} can't be used for an output in s3://results: another" in result.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--volume", "settings"], "is not NAME=FOLDER"),
        (["--volume", "=x"], "is not NAME=FOLDER"),
        (["--volume", "settings=nowhere"], "there is no nowhere"),
        (["--base-port", "1023"], "--base-port"),
        (["--folder", "job.yaml"], "is a file"),
        (["--name", "other"], "holds no TrainJob 'other', but digits"),
    ],
)
def test_usage(arguments: list[str], line: str, tmp_path: Path) -> None:
    result = trainjob("run", str(write_job(tmp_path)), *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert line in result.stderr


def test_a_folder_for_a_volume_that_no_pod_has(tmp_path: Path) -> None:
    pod = {"volumes": [{"name": "data", "emptyDir": {}}]}
    result = trainjob("run", str(write_job(tmp_path, pod=pod)), "--volume", "dta=.", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert (
        result.stderr == "--volume dta: no pod of the job has that volume; there are data, trainjob-output\n"
    )


def test_a_run_refuses_what_validate_refuses_but_for_the_image(tmp_path: Path) -> None:
    container = {"image": "", "evn": [], "env": [{"name": "TRAIN_EPOCH", "value": "3"}]}
    result = trainjob("run", str(write_job(tmp_path, container=container)), cwd=tmp_path)
    assert result.returncode == 1
    assert [line.split(": ")[0].rsplit(".", 1)[1] for line in result.stderr.splitlines()] == ["name", "evn"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = trainjob("run", "nothing.yaml", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "nothing.yaml: can't be read: No such file or directory\n"


def test_odd_characters_in_any_encoding(tmp_path: Path) -> None:
    script = "sys.stdout.buffer.write('grün \U0001f600 \\xff\\n'.encode()); sys.stdout.flush()\n" + SUCCEED
    env = {"PYTHONIOENCODING": "ascii"}
    result = trainjob("run", str(write_job(tmp_path, script)), cwd=tmp_path, env=env)
    assert result.returncode == 0, result.stdout + result.stderr
    assert ": gr\\xfcn \\U0001f600" in result.stdout


def test_the_live_display_of_a_terminal(tmp_path: Path) -> None:
    with terminal("run", str(write_job(tmp_path, STAY)), cwd=tmp_path) as (process, screen):
        screen.read_until("5/10")
        screen.type(b"\x03")
        screen.read_until("was interrupted", "\x1b[?25h")  # the cursor is back
        assert process.wait(timeout=GUARD_SECONDS) == 130
    for pid in screen.numbers_after("pid"):
        wait_gone(pid)
    assert "trainjob.cli" not in screen.text


def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    with terminal("run", str(write_job(tmp_path, STAY)), cwd=tmp_path) as (process, screen):
        screen.read_until("5/10", "evaluator-0 | pid", "worker-0 | pid", "worker-1 | pid")
        screen.close()
        assert process.wait(timeout=GUARD_SECONDS) == 130
    pids = screen.numbers_after("pid")
    assert len(pids) >= 3
    for pid in pids:
        wait_gone(pid)
