"""A process that waited with its imports done behaves as any other; TensorFlow is a mock."""

import asyncio
import json
import os
import re
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from support.agents.own_process import PYTHON, Trainee, in_own_process
from support.trainer.plain import BOOTSTRAP
from trainjob_trainer.agent import child as child_module
from trainjob_trainer.agent import standby as standby_module

FIRST = """
import json, os, time
def report():
    path = os.environ['TRAINJOB_PROGRESS_FILE']
    with open(path + '.new', 'w') as file:
        json.dump({'state': 'training', 'step': 1, 'stepSeconds': 0.1, 'time': 1}, file)
    os.replace(path + '.new', path)
if os.environ['RUN'] == 'first':
    report()
    time.sleep(1000)
"""
MOCK = """
import os, random, sys
print('importing', __name__, flush=True)
random.random()
if os.environ.get('DRAWS'):
    import numpy
    numpy.random.rand()
os.environ['SET_BY_' + __name__] = 'yes'
"""
CONFIG = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}


def trainee(folder: Path, command: Any, *, mock: str = MOCK, **env: str) -> Trainee:
    """A child with a mock of TensorFlow and Keras to import."""
    packages = mocked(folder, mock)
    env = {"TF_CONFIG": json.dumps(CONFIG), "TRAINJOB_NAME": "job", "PYTHONPATH": str(packages), **env}
    return Trainee(folder, command, env, standby=True)


def mocked(folder: Path, mock: str = "") -> Path:
    """A folder with a mock of TensorFlow and Keras."""
    packages = folder / "packages"
    for name in ("tensorflow", "keras"):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").write_text(mock, encoding="utf-8")
    return packages


async def get_ready(one: Trainee, **changes: str) -> None:
    """Start the program, and stop it once a standby waits."""
    one.child.start({"RUN": "first", **changes})
    await one.until(lambda: one.child._standby.ready)
    await one.child.stop(0)
    assert one.child._standby.ready


async def warm(one: Trainee, **changes: str) -> str:
    """Have the standby become the program; return what it printed until its end."""
    pids, launched = one.child._standby.pids, []
    launch = one.child._launch

    def spied(ended: Any) -> Any:
        launched.append(launch(ended))
        return launched[0]

    one.child._launch = spied
    printed = await cold(one, **changes)
    assert {launched[0][0]} == pids
    return printed


async def cold(one: Trainee, **changes: str) -> str:
    """Start the program; return what it printed until its end."""
    await one.until(lambda: one.child._sink.drain(0))  # what the one before has printed
    before = len(one.output)
    one.child.start({"RUN": "second", **changes})
    await one.ends()
    await one.until(lambda: one.child._sink.drain(0))
    return one.output[before:]


def without_imports(text: str) -> str:
    """What is printed on import is dropped in one case and not in the other; addresses differ."""
    return re.sub(r"importing \w+\n|0x\w+", "", text)


ENDS = {
    "the end": "",
    "a code": "sys.exit(7)",
    "a message": "sys.exit('no data')",
    "an error": "def fit(): raise ValueError('a bad batch')\nfit()",
    "an error with a cause": "try: 1 / 0\nexcept ZeroDivisionError as e: raise KeyError('x') from e",
    "a hook": "sys.excepthook = lambda *a: print('hook', a[0].__name__, a[1])\nraise ValueError('x')",
    "an interruption": "raise KeyboardInterrupt",
    "a signal": "sys.stdout.flush(); os.kill(os.getpid(), 15)",
    "no more words": "sys.stdout.flush(); os._exit(86)",
    "a thread": "import threading; threading.Thread(target=lambda: print('thread')).start()",
    "a forked process": "sys.stdout.flush()\nif os.fork() == 0: print('forked'); sys.exit(3)\nos.wait()",
    "a spawned process": (
        "import multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    p = multiprocessing.get_context('spawn').Process(target=print, args=('spawned',))\n"
        "    sys.stdout.flush(); p.start(); p.join(); print(p.exitcode)"
    ),
    "a syntax error": "this is no Python",
}


@pytest.mark.parametrize("ends_by", ENDS)
@in_own_process
async def test_it_ends_as_any_other_process(tmp_path: Path, ends_by: str) -> None:
    body = (
        "import atexit, os, sys\nimport tensorflow, keras\n"
        f"atexit.register(print, 'at exit')\nprint('ends')\n{ENDS[ends_by]}\n"
    )
    script = tmp_path / "train.py"
    script.write_text(body, encoding="utf-8")
    one = trainee(tmp_path, [PYTHON, str(script)])
    usual = await cold(one)
    code = one.child.exit.code
    script.write_text(FIRST, encoding="utf-8")
    await get_ready(one)
    script.write_text(body, encoding="utf-8")
    assert without_imports(await warm(one)) == without_imports(usual)
    assert one.child.exit.code == code
    await one.child.close()


SHOW = """
if os.environ['RUN'] == 'second':
    import sys
    def show(*what): print(*what, flush=True)
    import tensorflow, keras
    main = sys.modules['__main__']
    show(sys.argv, sys.path, os.getcwd())
    show(__name__, main.__dict__ is globals(), globals().get('__file__'), __package__, __doc__, __spec__)
    show(type(__loader__).__name__, main.__builtins__ is __builtins__, sorted(globals()))
    show(sys.stdin.read() == '', sys.flags, sys.warnoptions, sys._xoptions, getattr(sys, 'orig_argv', 0))
    show(sorted((k, v) for k, v in os.environ.items() if k not in ('RUN', 'LC_CTYPE', 'TRAINJOB_PID')))
    show(sorted(os.listdir('/proc/self/fd')), os.getsid(0) == os.getpid())
    show(open('/proc/self/oom_score_adj').read(), open('/proc/self/cmdline').read().split(chr(0)))
    import random, numpy as np
    show(random.random(), np.random.rand(), random.getstate()[2])
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["train.py"],
        ["-u", "-X", "dev", "-W", "ignore", "./sub/../train.py", "--lr", "0.1", "-m", "x"],
        ["-m", "package.train", "--lr", "0.1"],
        ["-m", "train"],
        ["-c", FIRST + SHOW, "one"],
        ["linked.py"],
        ["application"],
    ],
)
@in_own_process
async def test_the_script_sees_no_difference(tmp_path: Path, arguments: list[str]) -> None:
    work = tmp_path / "work"
    for folder in (work / "package", work / "application", work / "sub"):
        folder.mkdir(parents=True)
    for file in (work / "train.py", work / "package/train.py", work / "application/__main__.py"):
        file.write_text(FIRST + SHOW, encoding="utf-8")
    (work / "linked.py").symlink_to("package/train.py")
    os.chdir(work)
    changed = {"TF_CONFIG": json.dumps({**CONFIG, "task": {"type": "worker", "index": 1}}), "NEW": "ä\udcff"}
    one = trainee(tmp_path, [PYTHON, *arguments], SET_BY_keras="no", DRAWS="1")
    usual = await cold(one, **changed)
    assert one.child.exit.code == 0, usual
    await get_ready(one)
    seen = await warm(one, **changed)
    expected = without_imports(usual)
    assert without_imports(seen) == expected, f"{expected}\nbut\n{seen}"
    assert "importing" in usual
    assert "importing" not in seen
    await one.child.close()


@in_own_process
async def test_variables_that_are_gone_are_gone(tmp_path: Path) -> None:
    one = trainee(tmp_path, FIRST + "print(os.environ.get('ONLY_FIRST'), os.environ.get('TRAINJOB_STANDBY'))")
    await get_ready(one, ONLY_FIRST="1")
    assert await warm(one) == "None None\n"
    await one.child.close()


CHANGES = {
    "sets": "os.environ['X'] = 'the script'",
    "changes": "os.environ['GIVEN'] = 'the script'",
    "removes": "del os.environ['GIVEN']",
    "sets its path": "os.environ['PATH'] = os.environ['PYTHONPATH'] = '/nowhere'",
    "sets after the import": "import tensorflow; os.environ['X'] = 'the script'",
    "sets nothing": "",
}


@pytest.mark.parametrize("what", CHANGES)
@in_own_process
async def test_imports_see_what_the_script_has_set_before(tmp_path: Path, what: str) -> None:
    names = "('X', 'GIVEN', 'PATH')"
    program = (
        f"import os\nbefore = [os.environ.get(name) for name in {names}]\n{CHANGES[what]}\n"
        f"import tensorflow\n"
        f"{FIRST}print(before, tensorflow.SEEN, [os.environ.get(name) for name in {names}])"
    )
    mock = f"import os; SEEN = [os.environ.get(name) for name in {names}]"
    one = trainee(tmp_path, program, mock=mock, GIVEN="the job", TRAINJOB_STATE_DIR=str(tmp_path / "state"))
    usual = await cold(one)
    await get_ready(one)
    assert await warm(one) == usual
    await one.child.close()


@in_own_process
async def test_the_preparation_is_for_the_new_start(tmp_path: Path) -> None:
    program = (
        FIRST + "import sys, tensorflow.python.eager.context\n"
        "from trainjob_trainer.session import current_session\n"
        "session = current_session()\n"
        "print(session.task.replica, session.progress._path.name, sys.excepthook.__module__)\n"
        "raise RuntimeError('the reason')\n"
    )
    one = trainee(
        tmp_path, program, mock="import importlib; importlib.import_module('tensorflow.python.eager.context')"
    )
    package = tmp_path / "packages/tensorflow/python/eager"
    package.mkdir(parents=True)
    for file in (package / "__init__.py", package.parent / "__init__.py"):
        file.touch()
    (package / "context.py").write_text("class Context:\n    def ensure_initialized(self): pass")
    changed = {"TF_CONFIG": json.dumps({**CONFIG, "task": {"type": "worker", "index": 1}})}
    await get_ready(one)
    assert "worker-1 progress.json trainjob_trainer.edge\n" in await warm(one, **changed)
    ended = one.child.exit
    assert (ended.code, ended.reason) == (1, "RuntimeError")
    assert ended.message.endswith("RuntimeError: the reason")
    await one.child.close()


@in_own_process
async def test_it_is_used_on_its_way_already(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    mock = MOCK + f"\nif os.environ['RUN'] == 'first': open({str(tmp_path / 'go')!r}).read()\n"
    one = trainee(tmp_path, FIRST + "import tensorflow, keras; print('runs')", mock=mock)
    one.child.start({"RUN": "first"})
    await one.until(lambda: one.child._standby.pids)
    pids = one.child._standby.pids
    await one.child.stop(0)
    one.child.start({"RUN": "second", "LONG": "x" * 1_000_000})
    await one.until(lambda: one.child._run.pid)
    assert {one.child._run.pid} == pids
    await one.child.stop(0)  # it can be killed there
    assert one.child.exit.signal == 9
    printed = await cold(one)
    assert printed == "importing tensorflow\nimporting keras\nruns\n", printed
    await one.child.close()


@in_own_process
async def test_it_accepts_a_start_message_before_it_is_ready(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    waits = "__name__ == 'keras' and os.environ['RUN'] == 'first'"
    mock = MOCK + f"\nif {waits}: open({str(tmp_path / 'go')!r}).read()\n"
    one = trainee(tmp_path, FIRST + "import tensorflow, keras; print('runs')", mock=mock)
    one.child.start({"RUN": "first"})
    await one.until(lambda: one.child._standby.pids)
    await one.child.stop(0)
    one.child.start({"RUN": "second"})
    await one.until(lambda: one.child._run.pid)
    await asyncio.get_running_loop().run_in_executor(None, lambda: (tmp_path / "go").write_text(""))
    await one.until(lambda: one.child.exit)
    assert (one.child.exit.code, one.child.exit.log_tail.splitlines()[-1]) == (0, "runs")
    await one.child.close()


@pytest.mark.parametrize(
    ("mock", "said"),
    [
        ("raise ImportError('libcuda is missing')", "ImportError: libcuda is missing"),
        ("import os, sys; print('oh', flush=True); os._exit(9)", "ended with exit code 9: oh"),
        ("import os; os.kill(os.getpid(), 9)", "ended with exit code 137: no output"),
    ],
)
@in_own_process
async def test_one_that_dies_is_logged_and_does_no_harm(tmp_path: Path, mock: str, said: str) -> None:
    one = trainee(tmp_path, FIRST + "print('runs')", mock=mock)
    stderr = tmp_path / "stderr"
    with stderr.open("wb") as file:
        os.dup2(file.fileno(), 2)
    one.child.start({"RUN": "first"})
    await one.until(lambda: "no other one is started" in stderr.read_text(encoding="utf-8"))
    assert said in stderr.read_text(encoding="utf-8")
    assert one.child.running
    assert one.output == ""
    await one.child.stop(0)
    assert await cold(one) == "runs\n"
    await one.child.close()


@pytest.mark.parametrize(
    "command",
    [
        [PYTHON, "-I", "program.py"],
        [PYTHON, "-S", "program.py"],
        [PYTHON, "-E", "program.py"],
        ["sh", "-c", f"exec {PYTHON} program.py"],
        ["env", PYTHON, "program.py"],
    ],
)
@in_own_process
async def test_there_is_none_where_the_script_would_run_at_once(tmp_path: Path, command: list[str]) -> None:
    """Without the bootstrap nothing holds it back; and a wrapper may do anything before it."""
    os.chdir(tmp_path)
    (tmp_path / "program.py").write_text(FIRST, encoding="utf-8")
    one = trainee(tmp_path, command)
    asked = 0
    consider = one.child._standby.consider

    def ask(*arguments: Any) -> None:
        nonlocal asked
        asked += 1
        consider(*arguments)

    one.child._standby.consider = ask
    one.child.start({"RUN": "first"})
    await one.until(lambda: asked == 3)
    assert one.child._standby.pids == set()
    await one.child.close()


@in_own_process
async def test_it_waits_for_the_first_step_and_comes_without_one_later(tmp_path: Path) -> None:
    child_module._SECONDS_WITHOUT_STEP = 0.6
    one = trainee(tmp_path, "import tensorflow, time; time.sleep(1000)")
    one.child.start({})
    await one.until(lambda: one.child._standby.ready)
    assert one.child.report["state"] == "running"
    await one.child.close()


@in_own_process
async def test_a_launcher_has_none(tmp_path: Path) -> None:
    child_module._SECONDS_WITHOUT_STEP = 0.6
    child = "import tensorflow, time; time.sleep(1000)"
    one = trainee(tmp_path, f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])")
    looks = 0
    may_take = one.child._may_take_a_processor

    def look() -> bool:
        nonlocal looks
        looks += bool(one.child.report and one.child.report["state"] == "running")
        return may_take()

    one.child._may_take_a_processor = look
    one.child.start({})
    await one.until(lambda: looks == 5)
    assert one.child._standby.pids == set()
    await one.child.close()


@in_own_process
async def test_one_that_hangs_is_given_up(tmp_path: Path) -> None:
    standby_module._PATIENCE_SECONDS = 0.0
    mock = "import os, time\nif os.environ['RUN'] == 'first': time.sleep(1000)"
    one = trainee(tmp_path, FIRST + "print('runs')", mock=mock)
    one.child.start({"RUN": "first"})
    await one.until(lambda: one.child._standby.pids)
    await one.child.stop(0)
    assert await cold(one) == "runs\n"
    await one.child.close()


def oom_score(pid: object) -> str:
    """How willingly the kernel kills the process."""
    return Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii")


@in_own_process
async def test_it_goes_before_the_training_process_when_memory_ends(tmp_path: Path) -> None:
    one = trainee(tmp_path, FIRST + "print(open('/proc/self/oom_score_adj').read())")
    own = oom_score("self")
    one.child.start({"RUN": "first"})
    await one.until(lambda: one.child._standby.ready)
    (pid,) = one.child._standby.pids
    assert oom_score(pid) == "1000\n"
    await one.child.stop(0)
    assert await warm(one) == f"{own}\n"
    await one.child.close()


AGENT = """
import asyncio, sys
from pathlib import Path
from support.agents.own_process import Trainee
sys.path.insert(0, str(Path(sys.argv[1])))
from test_standby import FIRST, trainee
async def main():
    one = trainee(Path(sys.argv[2]), FIRST)
    one.child.start({"RUN": "first"})
    await one.until(lambda: one.child._standby.ready)
    print(one.child._run.pid, *one.child._standby.pids, file=sys.stderr, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


def test_it_ends_with_the_agent(tmp_path: Path) -> None:
    here = Path(__file__).parent
    path = os.pathsep.join(str(here.parents[1] / name) for name in ("tests", "testbed"))
    agent = subprocess.Popen(
        [PYTHON, "-c", AGENT, str(here), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    with agent:
        assert agent.stderr is not None
        pids = [int(pid) for pid in agent.stderr.readline().split()]
        assert len(pids) == 2
        agent.kill()
    until = time.monotonic() + 120
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < until


def is_running(pid: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("message", "code"), [(b"", 0), (b"{}\n", 1), (b"no JSON\n", 1), (b'{"env": 7}\n', 1), (b'{"env": {', 0)]
)
def test_without_a_valid_start_message_the_script_never_runs(
    tmp_path: Path, message: bytes, code: int
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(message)
        ours.shutdown(socket.SHUT_WR)
        ended = subprocess.run(
            [PYTHON, "-c", "print('the script')"],
            stdin=theirs,
            capture_output=True,
            env={"PYTHONPATH": f"{BOOTSTRAP}:{mocked(tmp_path)}", "TRAINJOB_STANDBY": "1"},
            check=False,
        )
        assert ours.recv(100) == b"ready\n"
    assert (ended.returncode, ended.stdout) == (code, b"")
