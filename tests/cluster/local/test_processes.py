"""What a pod's status says of a real process, and what the process finds."""

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from support.local.local_cluster import (
    build_pod,
    ended,
    local_cluster,
    python,
    ref_of,
    state_of,
    until,
)

WAIT = "import signal; print('up', flush=True); signal.pause()"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", {"exitCode": 0, "reason": "Completed"}),
        ("import sys; print('boom'); sys.exit(3)", {"exitCode": 3, "reason": "Error", "message": "boom"}),
        ("import os; os._exit(255)", {"exitCode": 255, "reason": "Error"}),
        ("import os; os.kill(os.getpid(), 9)", {"exitCode": 137, "signal": 9, "reason": "Error"}),
        ("import os; os.kill(os.getpid(), 11)", {"exitCode": 139, "signal": 11, "reason": "Error"}),
        ("print('fine')", {"exitCode": 0, "reason": "Completed"}),
    ],
)  # fmt: skip
async def test_how_a_process_ends(code: str, expected: dict[str, object], tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod(python(code)))
        state = await ended(cluster)
        times = [state.pop("startedAt"), state.pop("finishedAt")]
        assert state == expected
        assert times == sorted(times)


async def test_phases_and_conditions(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_pod(python(WAIT)))
        pod = cluster.snapshot().pods[0]
        assert pod["status"]["phase"] == "Pending"
        assert state_of(pod) == {"waiting": {"reason": "ContainerCreating"}}
        await lines.wait_for("up")
        pod = cluster.snapshot().pods[0]
        assert pod["status"]["phase"] == "Running"
        assert "startedAt" in state_of(pod)["running"]
        assert {c["type"]: c["status"] for c in pod["status"]["conditions"]}["Ready"] == "True"
        os.kill(_pid_of(cluster.snapshot().pods[0], tmp_path), signal.SIGTERM)
        await ended(cluster)
        pod = cluster.snapshot().pods[0]
        assert pod["status"]["phase"] == "Failed"
        assert {c["type"]: c["status"] for c in pod["status"]["conditions"]}["Ready"] == "False"


async def test_the_message_is_what_the_process_said_of_itself(tmp_path: Path) -> None:
    code = """
import json, os, sys
error = {"reason": "OutputFull", "message": "no space left"}
report = {"state": "failed", "time": 0, "step": 7, "error": error}
with open(os.environ["TRAINJOB_PROGRESS_FILE"], "w") as file:
    json.dump(report, file)
print("a traceback")
sys.exit(83)
"""
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod(python(code)))
        state = await ended(cluster)
        assert (state["exitCode"], state["message"]) == (83, "no space left")
        assert cluster.snapshot().progress["digits-worker-0-aaaaaaaa"]["step"] == 7


async def test_the_message_is_else_the_end_of_the_log(tmp_path: Path) -> None:
    code = "import sys\nfor n in range(2000): print('line', n)\nsys.exit(1)"
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_pod(python(code)))
        message = (await ended(cluster))["message"]
        assert message.endswith("line 1998\nline 1999")
        assert 2000 < len(message.encode()) <= 3072
        assert len(lines.seen) == 2000
        assert cluster.log_tail("digits-worker-0-aaaaaaaa")[-1] == "line 1999"


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["no-such-program", "x"], 127, "can't start 'no-such-program': no such program on PATH"),
        (["/no/such/program"], 127, "can't start '/no/such/program': no such program"),
        (["/etc"], 126, "can't start '/etc': Permission denied"),
        ([*python("import no_such_module")], 1, "No module named 'no_such_module'"),
        ([sys.executable, "no_such_file.py"], 2, "no_such_file.py"),
    ],
)
async def test_what_cannot_be_started(command: list[str], code: int, message: str, tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod(command))
        state = await ended(cluster)
        assert state["exitCode"] == code
        assert message in state["message"]


async def test_an_environment_that_is_too_large_is_explained(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_pod(["true", "x" * 200_000]))
        state = await ended(cluster)
        assert state["exitCode"] == 128
        assert "can't start a process" in state["message"]
        assert ("worker-0", f"trainjob: {state['message']}") in lines.seen


@pytest.mark.parametrize(
    "pod",
    [build_pod(["echo", "a\0b"]), build_pod(["true"], env=[{"name": "A=B", "value": "c"}])],
    ids=["argument", "variable"],
)
async def test_what_no_program_can_be_given_is_explained(pod: dict[str, Any], tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(pod)
        state = await ended(cluster)
        assert state["exitCode"] == 128
        assert "can't start a process" in state["message"]


async def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with local_cluster(tmp_path, base_port=port) as (cluster, lines):
            await cluster.create(build_pod(python(WAIT)))
            state = await ended(cluster)
            assert state["exitCode"] == 84
            assert f"port {port} of this machine is in use" in state["message"]
            assert f"choose another --base-port than {port}" in state["message"]
            assert lines.seen == [("worker-0", f"trainjob: {state['message']}")]


async def test_a_pod_deleted_before_its_start_never_runs(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod(["touch", str(tmp_path / "ran")]))
        await cluster.delete(ref_of(cluster.snapshot().pods[0]))
        await until(cluster, lambda snapshot: not snapshot.pods)
        assert not (tmp_path / "ran").exists()


async def test_a_successor_waits_for_the_old_one_to_end(tmp_path: Path) -> None:
    code = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True: signal.pause()
"""
    second = build_pod(["true"], name="digits-worker-0-bbbbbbbb")
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_pod(python(code)))
        await lines.wait_for("up")
        first = cluster.snapshot().pods[0]
        await cluster.delete(ref_of(first), grace_seconds=1000)
        await cluster.create(second)
        pods = cluster.snapshot().pods
        assert [pod["status"]["phase"] for pod in pods] == ["Running", "Pending"]
        await cluster.delete(ref_of(first), grace_seconds=0)  # a shorter grace period replaces a longer one
        assert (await ended(cluster, "digits-worker-0-bbbbbbbb"))["exitCode"] == 0
        assert len(cluster.snapshot().pods) == 1


# Signals 32 and 33 are the C library's own: a program that was started with them ignored can't change that.
OF_THE_C_LIBRARY = 0b11 << 31


async def test_a_process_starts_out_as_in_a_container(tmp_path: Path) -> None:
    code = """
import os
print("descriptors", sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1])
print("session", os.getsid(0) == os.getpid())
print("input", repr(os.read(0, 10)), flush=True)
"""
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_pod(python(code)))
        await ended(cluster)
        # Python itself ignores SIGPIPE, so another program must report what it was started with.
        await cluster.create(
            build_pod(["sed", "-n", "/^Sig[BI]/p", "/proc/self/status"], name="digits-worker-0-bbbbbbbb")
        )
        await ended(cluster, "digits-worker-0-bbbbbbbb")
        *said, blocked, ignored = [line for _, line in lines.seen]
        assert said == ["descriptors [0, 1, 2]", "session True", "input b''"]
        assert blocked == "SigBlk:\t0000000000000000"
        assert int(ignored.removeprefix("SigIgn:"), 16) & ~OF_THE_C_LIBRARY == 0


async def test_a_progress_report_is_passed_on_while_the_process_runs(tmp_path: Path) -> None:
    code = """
import json, os, signal
path = os.environ["TRAINJOB_PROGRESS_FILE"]
for step in (1, 2):
    with open(path + ".tmp", "w") as file:
        json.dump({"state": "training", "step": step, "time": 0}, file)
    os.replace(path + ".tmp", path)
signal.pause()
"""
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod(python(code)))
        snapshot = await until(cluster, lambda s: any(r["step"] == 2 for r in s.progress.values()))
        assert snapshot.progress["digits-worker-0-aaaaaaaa"]["state"] == "training"


@pytest.mark.parametrize("content", ["", "{", "[1]", '"text"', "\xff", "{" + " " * 100_000 + "}"])
async def test_a_damaged_report_is_left_aside(content: str, tmp_path: Path) -> None:
    code = f"import os; open(os.environ['TRAINJOB_PROGRESS_FILE'], 'wb').write({content.encode('latin-1')!r})"
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod(python(code)))
        assert (await ended(cluster))["exitCode"] == 0
        assert cluster.snapshot().progress == {}


async def test_private_folders_are_removed_with_the_pod(tmp_path: Path) -> None:
    pod = build_pod(python("import os; print(os.path.isdir(os.environ['SCRATCH']), os.environ['SCRATCH'])"),
                    env=[{"name": "SCRATCH", "value": "/scratch"}])  # fmt: skip
    pod["spec"]["volumes"].append({"name": "scratch", "emptyDir": {}})
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "scratch", "mountPath": "/scratch"})
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(pod)
        await ended(cluster)
        there, folder = lines.seen[0][1].split()
        assert there == "True"
        assert _is_folder(folder)
        await cluster.delete(ref_of(cluster.snapshot().pods[0]))
        assert not _is_folder(folder)
        assert not cluster.snapshot().pods


def _is_folder(path: str) -> bool:
    return Path(path).is_dir()


def _pid_of(pod: dict[str, object], folder: Path) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"HOME={folder}".encode() in environ and b"shim.py" not in command:
                return int(entry.name)
    raise AssertionError(f"no process of {json.dumps(pod)}")
