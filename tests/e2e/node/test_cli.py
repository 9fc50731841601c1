"""What people run on their own machine, against pods of a real kubelet; and kubectl beside it."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from testbed import images
from testbed.claims import NodeCluster
from testbed.waiting import until

from support.cli.program import command, trainjob
from support.kube.real_pods import MINUTES, describe, script_job, touch, wait_for

SCORING = 'print("hello from", role, index)\nif role == "evaluator":\n    print("scored")\n'
# The second worker fails in every attempt, when it is told to.
CRASHING = """
print("attempt", attempt, "of", role, index)
until("go-" + attempt)
if index == 1:
    raise RuntimeError("boom in attempt " + attempt)
until("never")
"""

HELLO = """
import pathlib, sys
import greetings
print(greetings.WORD, pathlib.Path().resolve(), *sys.argv[1:])
"""


@dataclass(frozen=True)
class Shell:
    """Where commands are run."""

    cluster: NodeCluster
    namespace: str
    folder: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs the program to its end."""
        name, *rest = words
        return trainjob(name, "-n", self.namespace, *rest, cwd=self.folder, env=self.cluster.env)

    def file(self, job: dict[str, object]) -> str:
        """Writes a job to a file."""
        (self.folder / "job.json").write_text(json.dumps(job))
        return "job.json"


@pytest.fixture(scope="module")
def shell(installed: NodeCluster, restricted_module: str, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(installed, restricted_module, tmp_path_factory.mktemp("shell"))


@pytest.fixture(scope="module")
def good(shell: Shell) -> subprocess.CompletedProcess[str]:
    """What `submit --wait --logs` said of a job that ended well."""
    job = shell.file(script_job("good", SCORING, workers=2, evaluator=True))
    return shell.run("submit", job, "--wait", "--logs")


def test_submit_shows_every_replicas_lines_and_how_it_ended(
    good: subprocess.CompletedProcess[str], shell: Shell
) -> None:
    assert good.returncode == 0, good.stderr
    first, *lines, last = good.stdout.splitlines()
    assert first == f"good was created in namespace {shell.namespace}"
    hello = [
        "worker-0: hello from worker 0",
        "worker-1: hello from worker 1",
        "evaluator-0: hello from evaluator 0",
    ]
    assert set(hello) <= set(lines)
    assert "evaluator-0: scored" in lines
    assert any(line.startswith("good is complete") for line in [*lines, last])


@pytest.mark.parametrize(
    ("options", "replicas"),
    [
        ([], {"worker-0", "worker-1", "evaluator-0"}),
        (["--role", "worker"], {"worker-0", "worker-1"}),
        (["--role", "worker", "--index", "1"], {"worker-1"}),
        (["--role", "evaluator", "-f"], {"evaluator-0"}),
    ],
)
def test_logs_are_there_after_the_end(
    options: list[str], replicas: set[str], good: subprocess.CompletedProcess[str], shell: Shell
) -> None:
    shown = shell.run("logs", "good", *options)
    assert shown.returncode == 0, shown.stderr
    hello = [line.partition(":") for line in shown.stdout.splitlines() if "hello from" in line]
    assert {prefix for prefix, _, _ in hello} == replicas
    assert all(rest == f" hello from {prefix.replace('-', ' ')}" for prefix, _, rest in hello)


def test_wait_and_get_after_the_end(good: subprocess.CompletedProcess[str], shell: Shell) -> None:
    waited = shell.run("wait", "good")
    assert (waited.returncode, waited.stderr) == (0, "")
    assert waited.stdout.startswith("good is complete")
    one = shell.run("get", "good")
    assert one.returncode == 0, one.stderr
    assert one.stdout.startswith("good   Complete")
    for replica in ("worker-0", "worker-1", "evaluator-0"):
        assert any(line.split()[:2] == [replica, "finished"] for line in one.stdout.splitlines()), one.stdout
    table = shell.run("get").stdout.splitlines()
    assert table[0].split() == ["NAME", "STATE", "WORKERS", "STEP", "ETA", "RESTARTS", "AGE"]
    assert [row.split()[:2] for row in table[1:] if row.startswith("good")] == [["good", "Complete"]]


def test_doctor_finds_a_cluster_in_order_and_tries_an_image(shell: Shell) -> None:
    said = shell.run("doctor", "-o", "json", "--image", images.operator().name)
    checks = {each["subject"]: each for each in json.loads(said.stdout) if each["where"] == "cluster"}
    image = checks.pop("image")
    assert list(checks) == ["cluster", "CRD", "controller", "permissions", "storage"]
    storage = "ok" if shell.cluster.has_shared_storage() else "note"
    assert checks.pop("storage")["verdict"] == storage
    assert {each["verdict"] for each in checks.values()} == {"ok"}, checks
    assert (said.returncode, image["verdict"]) == (1, "problem")
    assert re.search(r"/operator:\S+ has Python 3\.\d+\.\d+ and no TensorFlow", image["found"]), image
    pods = shell.cluster.kubectl("get", "pods", "-n", shell.namespace, "-o", "name")
    assert "trainjob-doctor" not in pods


def test_doctor_has_two_workers_sum_and_deletes_them(shell: Shell) -> None:
    claim = shell.cluster.claim(shell.namespace, "doctor")
    options = ("--image", images.trainer().name, "--gpus", "0", "--job-output", "claim:doctor")
    said = shell.run("doctor", "-o", "json", *options)
    found = {each["subject"]: each for each in json.loads(said.stdout) if each["where"] == "cluster"}
    measured = found["all-reduce"]
    assert said.returncode == 0, measured
    assert re.fullmatch(r"RING on 2 devices, [^:]+: 16 MiB in [\d.]+ ms, [\d.]+ GB/s", measured["found"])
    jobs = shell.cluster.kubectl("get", "tj", "-n", shell.namespace, "-o", "name")
    assert "trainjob-doctor" not in jobs
    assert claim.folder is None or not list(claim.folder.rglob("*")), "nothing is left there"


def test_a_script_and_what_it_imports_travel(shell: Shell) -> None:
    (shell.folder / "hello.py").write_text(HELLO)
    (shell.folder / "greetings.py").write_text("WORD = 'grüß $5 `x`'\n")
    cluster = ("--image", images.operator().name, "--output", "claim:training", "--cpu", "20m")
    said = shell.run("submit", "hello.py", *cluster, "--workers", "2", "--logs", "--", "--epochs", "9")
    assert said.returncode == 0, said.stderr
    assert "the code travels: 2 files, 1 kB packed: greetings.py, hello.py\n" in said.stderr
    hello = "grüß $5 `x` /run/trainjob/code --epochs 9"
    assert {f"worker-0: {hello}", f"worker-1: {hello}", f"evaluator-0: {hello}"} <= set(
        said.stdout.splitlines()
    )

    job = shell.cluster.get("tj", "hello", namespace=shell.namespace)
    name = job["spec"]["code"]["configMap"]
    shell.cluster.kubectl("delete", "tj/hello", "-n", shell.namespace)
    gone = f"--timeout={MINUTES}m"
    shell.cluster.kubectl("wait", f"configmap/{name}", "-n", shell.namespace, "--for=delete", gone)


def test_a_job_of_that_name_is_not_replaced(good: subprocess.CompletedProcess[str], shell: Shell) -> None:
    again = shell.run("submit", shell.file(script_job("good", "print('other')")), "--wait")
    assert again.returncode == 1
    assert "exists" in again.stderr


@dataclass(frozen=True)
class Crash:
    """What the commands said while a job failed, was restarted, and failed again."""

    followed: subprocess.CompletedProcess[str]
    row: str
    previous: subprocess.CompletedProcess[str]
    timed_out: subprocess.CompletedProcess[str]
    meanwhile: subprocess.CompletedProcess[str]
    waited: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def crash(shell: Shell) -> Crash:
    # With an agent, a pod's log holds every attempt that it has lived through; this is about the one before.
    job = script_job("crash", CRASHING, workers=2, maxRestarts=1, restartStrategy="Recreate")
    shell.cluster.apply(job, namespace=shell.namespace)
    words = command(["logs", "crash", "-f", "-n", shell.namespace])
    out, err = shell.folder / "out", shell.folder / "err"
    with (
        out.open("w") as stdout,
        err.open("w") as stderr,
        subprocess.Popen(words, env=shell.cluster.env, stdout=stdout, stderr=stderr) as following,
    ):
        try:
            until(lambda: out.read_text().count("attempt 1 of") == 2, what="both workers' logs", seconds=120)
            touch(shell.cluster, shell.namespace, "crash", "go-1")
            wait_for(shell.cluster, shell.namespace, "crash", "jsonpath={.status.attempt}=2")
            wait_for(shell.cluster, shell.namespace, "crash", "condition=Running")
            wait_for(shell.cluster, shell.namespace, "crash", "jsonpath={.status.worker.summary}=2/2")
            row = shell.cluster.kubectl("get", "tj", "crash", "-n", shell.namespace, "--no-headers")
            previous = shell.run("logs", "crash", "--previous")
            timed_out = shell.run("wait", "crash", "--timeout", "1s")
            meanwhile = shell.run("get", "crash")
            touch(shell.cluster, shell.namespace, "crash", "go-2")
            waited = shell.run("wait", "crash")
            following.wait(timeout=120)
        finally:
            following.kill()
    followed = subprocess.CompletedProcess(words, following.returncode, out.read_text(), err.read_text())
    return Crash(followed, row, previous, timed_out, meanwhile, waited)


def test_following_continues_through_a_restart_and_ends_with_what_failed(crash: Crash) -> None:
    lines = crash.followed.stdout.splitlines()
    for attempt in ("1", "2"):
        for index in ("0", "1"):
            assert f"worker-{index}: attempt {attempt} of worker {index}" in lines
        assert f"worker-1: RuntimeError: boom in attempt {attempt}" in lines
    assert crash.followed.returncode == 1
    story, _, end = crash.followed.stderr.partition("\ncrash failed")
    assert "restart 1 of 1" in story
    assert "RuntimeError: boom in attempt 2" in end
    assert "first failure worker-1" in end
    assert "1 of 1 restarts used" in end


def test_previous_shows_what_is_left_of_the_attempt_before(crash: Crash) -> None:
    assert crash.previous.returncode == 0, crash.previous.stderr
    assert "worker-1: RuntimeError: boom in attempt 1" in crash.previous.stdout.splitlines()
    assert "attempt 2" not in crash.previous.stdout


def test_waiting_ends_when_the_time_is_over_or_the_job(crash: Crash) -> None:
    assert crash.timed_out.returncode == 124
    assert "not over after 1 s" in crash.timed_out.stderr
    assert crash.waited.returncode == 1
    assert "boom in attempt 2" in crash.waited.stderr
    assert "what to do" in crash.waited.stderr


def test_get_shows_a_running_second_attempt(crash: Crash) -> None:
    assert crash.meanwhile.returncode == 0
    text = crash.meanwhile.stdout
    assert text.startswith("crash   Running: training on 2 workers, attempt 2")
    assert "restarts      1 of 1, attempt 2" in text
    assert "boom in attempt 1" in text


def test_kubectl_shows_the_same(crash: Crash, shell: Shell) -> None:
    header, *rows = shell.cluster.kubectl("get", "tj", "crash", "-n", shell.namespace).splitlines()
    assert header.split() == ["NAME", "STATE", "WORKERS", "STEP", "ETA", "RESTARTS", "AGE"]
    assert crash.row.split()[:4] == ["crash", "Running", "2/2", "1"], "state, workers ready, restarts"
    cells = rows[0].split()
    assert [cells[0], cells[1], cells[2], cells[-2]] == ["crash", "Failed", "0/2", "1"]
    story = describe(shell.cluster, shell.namespace, "crash")
    events = story[story.index(" Events: ") :]
    told = ["Normal Created", "Normal Started", "Warning Restarting", "Warning Failed"]
    assert [event for event in told if event not in events] == [], events
    assert "boom in attempt 1); restarting (restart 1 of 1)" in events
    assert "boom in attempt 2); 1 of 1 restarts used" in events


def test_what_is_not_there(shell: Shell) -> None:
    for words in (("logs", "nothing"), ("wait", "nothing"), ("get", "nothing")):
        done = shell.run(*words)
        assert done.returncode == 3
        assert "nothing" in done.stderr
