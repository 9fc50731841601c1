"""The training process as its agent starts, watches and ends it; real processes, no TensorFlow."""

import asyncio
import json
import os
import signal
import socket
import tempfile
import time
from pathlib import Path

import pytest

from support.agents.own_process import PYTHON, Trainee, in_own_process
from trainjob_trainer.agent import child
from trainjob_trainer.agent.child import BOOTSTRAP
from trainjob_trainer.contract.processes import can_listen


def children() -> list[str]:
    """Process ids of what this process would have to wait for."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()


@in_own_process
async def test_its_end_is_reported_with_the_last_lines(tmp_path: Path) -> None:
    one = Trainee(tmp_path, "print('first'); print('last words'); raise SystemExit(7)")
    begun = time.time()
    one.child.start({})
    assert one.child.running
    ended = await one.ends()
    assert (ended.code, ended.signal, ended.out_of_memory) == (7, None, False)
    assert (ended.message, ended.log_tail) == ("last words", "first\nlast words\n")
    assert (ended.reason, ended.step) == ("", None)
    assert begun <= ended.time <= time.time()
    assert one.changes == 1
    await one.child.close()
    assert one.output == "first\nlast words\n"


@in_own_process
async def test_nccls_first_warning_is_in_the_message(tmp_path: Path) -> None:
    one = Trainee(tmp_path, r"print('NCCL WARN two\n' + 'x\n' * 2000 + 'failed'); raise SystemExit(93)")
    one.child.start({})
    assert (await one.ends()).message == "failed (NCCL WARN two)"
    await one.child.close()


@in_own_process
async def test_a_death_by_signal_is_reported(tmp_path: Path) -> None:
    one = Trainee(tmp_path, "import os; os.kill(os.getpid(), 11)")
    one.child.start({})
    ended = await one.ends()
    assert (ended.code, ended.signal) == (139, 11)
    await one.child.close()


@in_own_process
async def test_private_files_end_with_their_process(tmp_path: Path) -> None:
    """However it ends, and also those of the process that a launcher starts."""
    makes = (
        "import json, os, tempfile;"
        "tempfile.mkdtemp(prefix=f'trainjob-private-{os.uname().nodename}-{os.getpid()}-');"
        "f = open(os.environ['TRAINJOB_PROGRESS_FILE'], 'w');"
        "json.dump({'state': 'training', 'time': 1, 'pid': os.getpid()}, f); f.close();"
    )
    launches = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {makes!r}]);"
    os.mkdir(tmp_path / "trainjob-private-other-1-x")  # noqa: PTH102
    tempfile.tempdir = str(tmp_path)
    one = Trainee(tmp_path, f"{makes} {launches} os.kill(os.getpid(), 9)", {"TMPDIR": str(tmp_path)})
    one.child.start({})
    assert (await one.ends()).signal == 9
    left = [name for name in os.listdir(tmp_path) if name.startswith("trainjob-private-")]  # noqa: PTH208
    assert left == ["trainjob-private-other-1-x"]
    await one.child.close()


@pytest.mark.parametrize(
    ("program", "code", "message"),
    [
        ("no-such-program", 127, "trainjob: can't start 'no-such-program': no such program on PATH"),
        ("/no/such/program", 127, "trainjob: can't start '/no/such/program': no such program"),
        ("/etc/passwd", 126, "trainjob: can't start '/etc/passwd': Permission denied"),
    ],
)
@in_own_process
async def test_a_command_that_cannot_be_executed_is_explained(
    tmp_path: Path, program: str, code: int, message: str
) -> None:
    one = Trainee(tmp_path, [program])
    one.child.start({})
    ended = await one.ends()
    assert (ended.code, ended.message) == (code, message)
    await one.child.close()
    assert one.output == f"{message}\n"


@in_own_process
async def test_it_gets_its_variables_and_none_of_the_agents(tmp_path: Path) -> None:
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    one = Trainee(
        tmp_path, program, {"TRAINJOB_AGENT": "{}", "PYTHONPATH": "/user", "KEPT": "1", "OTHER": "old"}
    )
    one.child.start({"OTHER": "new", "TRAINJOB_ATTEMPT": "3"})
    await one.ends()
    env = json.loads(one.output)
    assert "TRAINJOB_AGENT" not in env
    assert env["TRAINJOB_PROGRESS_FILE"] == str(one.progress)
    assert env["PYTHONPATH"] == f"{BOOTSTRAP}:/user"
    assert (env["KEPT"], env["OTHER"], env["TRAINJOB_ATTEMPT"]) == ("1", "new", "3")
    assert env["PYTHONHASHSEED"] == "0"
    one.child.start({})
    await one.ends()
    assert json.loads(one.output.splitlines()[1])["OTHER"] == "old"
    await one.child.close()


@in_own_process
async def test_it_inherits_neither_descriptors_nor_signals(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "fds = sorted(int(f) for f in os.listdir('/proc/self/fd'))[:-1]\n"
        "status = dict(l.split(':', 1) for l in open('/proc/self/status'))\n"
        "blocked = status['SigBlk'].strip('0 \\t\\n')\n"
        "print(fds, repr(sys.stdin.read()), os.getsid(0) == os.getpid(), blocked)\n"
        "ignored = int(status['SigIgn'], 16) & ~(0b11 << 31)\n"  # 32 and 33 are the C library's own
        "print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, f'{ignored:016x}')\n"
    )
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    one = Trainee(tmp_path, [PYTHON, "-I", "-S", "-c", program])
    one.child.start({})
    await one.ends()
    # Python ignores SIGPIPE and SIGXFSZ again; SIGHUP stays as `nohup` has it.
    assert one.output == f"[0, 1, 2] '' True \nTrue {1 | 1 << 12 | 1 << 24:016x}\n"
    await one.child.close()


@in_own_process
async def test_one_runs_at_a_time(tmp_path: Path) -> None:
    one = Trainee(tmp_path, "import time; time.sleep(1000)")
    one.child.start({})
    with pytest.raises(RuntimeError):
        one.child.start({})
    await one.child.stop(0)
    assert (one.child.running, one.child.exit.code, one.child.exit.signal) == (False, 137, 9)
    await one.child.stop(0)
    one.child.start({})
    assert one.child.exit is None
    await one.child.close()


@in_own_process
async def test_asked_to_stop_it_may_save_first(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'saved\\n'), sys.exit(86)))\n"
        "print('runs', flush=True)\n"
        "time.sleep(1000)\n"
    )
    one = Trainee(tmp_path, program)
    one.child.start({})
    await one.prints("runs")
    await one.child.stop(50)
    assert (one.child.exit.code, one.child.exit.message) == (86, "saved")
    await one.child.close()


@in_own_process
async def test_patience_ends_and_can_be_shortened(tmp_path: Path) -> None:
    program = (
        "import os, signal, time\n"  # a handler's `print` raises in the middle of another one
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'not now\\n'))\n"
        "print('runs', flush=True)\n"
        "while True: time.sleep(1000)\n"
    )
    one = Trainee(tmp_path, program)
    one.child.start({})
    await one.prints("runs")
    patient = asyncio.create_task(one.child.stop(1000))
    await one.prints("not now")
    assert one.child.running
    await one.child.stop(0.2)
    await patient
    assert one.child.exit.signal == 9
    assert one.output.count("not now") == 1
    await one.child.close()


@in_own_process
async def test_the_whole_tree_goes_with_it(tmp_path: Path) -> None:
    """Sessions of their own and lost parents are no way out; the port is free at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = (
        "import os, signal, socket, time\n"
        "server = socket.create_server(('127.0.0.1', int(os.environ['PORT'])))\n"
        "def daemon(depth):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "        if depth: daemon(depth - 1)\n"
        "        if depth != 1: time.sleep(1000)\n"
        "        os._exit(0)\n"
        "for _ in range(5): daemon(3)\n"
        "print('runs', flush=True)\n"
        "time.sleep(0.5)\n"
        "os._exit(3)\n"
    )
    one = Trainee(tmp_path, program, {"PORT": str(port)}, tf_port=port)
    for _ in range(3):
        one.child.start({})
        assert (await one.ends()).code == 3
        assert children() == []
    assert one.output.count("runs") == 3
    await one.child.close()


@in_own_process
async def test_it_starts_when_its_port_is_free(tmp_path: Path) -> None:
    looks: list[bool] = []

    def look(port: int) -> bool:
        looks.append(can_listen(port))
        return looks[-1]

    child.can_listen = look
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        one = Trainee(tmp_path, "print('runs')", tf_port=port)
        one.child.start({})
        await one.until(lambda: len(looks) == 3)
        assert one.child.running
        await one.child.stop(5)
        assert (one.child.exit.code, one.child.exit.signal) == (143, 15)
        one.child.start({})
        await one.until(lambda: len(looks) > 3)
        assert (looks, one.output) == ([False] * len(looks), "")
    assert (await one.ends()).code == 0
    assert one.output == "runs\n"
    await one.child.close()


@in_own_process
async def test_orphans_are_waited_for(tmp_path: Path) -> None:
    program = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0: os._exit(0)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print('runs', flush=True)\n"
        "time.sleep(1000)\n"
    )
    one = Trainee(tmp_path, program)
    one.child.start({})
    await one.prints("runs")
    await one.until(lambda: len(children()) == 1)
    await one.child.close()


@in_own_process
async def test_its_reports_are_read(tmp_path: Path) -> None:
    program = (
        "import json, os, sys\n"
        "path = os.environ['TRAINJOB_PROGRESS_FILE']\n"
        "def report(**fields):\n"
        "    with open(path + '.new', 'w') as file:\n"
        "        json.dump({'state': 'training', 'time': 1, **fields}, file)\n"
        "    os.replace(path + '.new', path)\n"
        "report(step=int(os.environ['STEP']))\n"
        "sys.stdin = open(os.environ['GO'])\n"
        "sys.stdin.read()\n"
        "error = {'reason': 'OutputFull', 'message': 'no space is left', 'replicas': ['worker-0', 7, 'x']}\n"
        "report(step=9, state='failed', error=error)\n"
        "print('Bye', flush=True)\n"
        "os._exit(83)\n"
    )
    go = tmp_path / "go"
    os.mkfifo(go)
    one = Trainee(tmp_path, program, {"GO": str(go)})
    one.progress.write_text('{"state": "training", "step": 77, "time": 1}', encoding="utf-8")
    assert (one.child.report, one.child.report_age) == (None, None)
    for step in (1, 2):
        one.child.start({"STEP": str(step)})
        assert (one.child.report, one.child.report_age) == (None, None)
        await one.until(lambda: one.child.report is not None)
        assert one.child.report["step"] == step
        assert 0 <= one.child.report_age < 30
        go.write_text("", encoding="utf-8")
        ended = await one.ends()
        assert (ended.code, ended.reason, ended.step) == (83, "OutputFull", 9)
        assert (ended.message, ended.replicas) == ("no space is left", ("worker-0",))
        assert one.child.report["state"] == "failed"
    assert one.changes >= 4
    await one.child.close()


@in_own_process
async def test_a_stopped_process_is_seen_and_shows_its_stacks(tmp_path: Path) -> None:
    program = (
        "import os, signal, threading, time\n"
        "def in_the_loader(): time.sleep(1000)\n"
        "threading.Thread(target=in_the_loader, daemon=True).start()\n"
        "def in_a_step(): os.kill(os.getpid(), signal.SIGSTOP); time.sleep(1000)\n"
        "print('runs', flush=True)\n"
        "in_a_step()\n"
    )
    one = Trainee(tmp_path, program)
    assert not one.child.is_stopped
    await one.child.dump_stacks()
    one.child.start({})
    await one.prints("runs")
    await one.until(lambda: one.child.is_stopped)
    await one.child.dump_stacks(20)
    assert not one.child.is_stopped
    assert "in in_a_step" in one.output
    assert "in in_the_loader" in one.output
    await one.child.stop(0)
    assert "in in_a_step" in one.child.exit.log_tail
    await one.child.close()


@in_own_process
async def test_a_crash_of_native_code_is_reported_with_the_line_of_the_script(tmp_path: Path) -> None:
    program = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "def in_a_step(): ctypes.string_at(0)\n"
        "in_a_step()\n"
    )
    one = Trainee(tmp_path, program)
    one.child.start({})
    ended = await one.ends()
    assert (ended.code, ended.signal) == (128 + signal.SIGSEGV, signal.SIGSEGV)
    error, title, *frames = ended.log_tail.splitlines()
    assert ended.message == error == "Fatal Python error: Segmentation fault"
    assert title == "Main thread (most recent call last):"
    assert frames[-2].endswith("line 3 in in_a_step")
    await one.child.close()


@in_own_process
async def test_a_program_that_shows_no_stacks_is_left_alone(tmp_path: Path) -> None:
    one = Trainee(tmp_path, ["sh", "-c", "echo runs; while :; do sleep 0.1; done"])
    one.child.start({})
    await one.prints("runs")
    await one.child.dump_stacks(0.2)
    assert one.child.running
    await one.child.close()
    assert one.child.exit.signal == 9


@in_own_process
async def test_stacks_come_from_below_a_shell_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "def fit(): print('runs', flush=True); input()\nfit()", encoding="utf-8"
    )
    os.mkfifo(tmp_path / "never")
    one = Trainee(tmp_path, ["sh", "-c", f"{PYTHON} {tmp_path}/train.py <> {tmp_path}/never; true"])
    one.child.start({})
    await one.prints("runs")
    await one.child.dump_stacks(20)
    assert "in fit" in one.output
    await one.child.close()


@pytest.mark.parametrize(
    ("ends_by", "kills", "reported"),
    [
        ("os.kill(os.getpid(), 9)", 1, True),
        ("os.kill(os.getpid(), 9)", 0, False),
        ("os._exit(137)", 1, True),  # a shell around it reports it
        ("os.kill(os.getpid(), 15)", 1, False),
    ],
)
@in_own_process
async def test_a_kill_for_want_of_memory_is_reported(
    tmp_path: Path, ends_by: str, kills: int, reported: bool
) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("oom 7\noom_kill 3\n", encoding="ascii")
    program = (
        "import os, pathlib\n"
        f"pathlib.Path({str(counter)!r}).write_text('oom 8\\noom_kill {3 + kills}\\n')\n{ends_by}"
    )
    one = Trainee(tmp_path, program)
    one.child._oom._file = counter
    (tmp_path / "memory.max").write_text("4096\n", encoding="ascii")
    one.child.start({})
    ended = await one.ends()
    assert (ended.out_of_memory, ended.memory) == (reported, 4096)
    await one.child.close()


@in_own_process
async def test_closing_leaves_nothing(tmp_path: Path) -> None:
    one = Trainee(tmp_path, "import time; print('runs', flush=True); time.sleep(1000)")
    one.child.start({})
    await one.prints("runs")
    await one.child.close()
    assert one.child.exit.signal == 9
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    assert children() == []
