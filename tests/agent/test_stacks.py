"""Which processes show their stacks when they are asked to."""

import signal
import subprocess
import sys

import pytest

from support.trainer.plain import BOOTSTRAP
from trainjob_trainer.agent.process_tree import (
    STACK_SIGNAL,
    answers_stack_requests,
    main_thread,
    request_stacks,
)

WAITING = "def waiting(): print('runs', flush=True); input()\nwaiting()"


def start(env: dict[str, str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        env={"PYTHONPATH": str(BOOTSTRAP), **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    return process


@pytest.mark.parametrize("env", [{"TF_CONFIG": "{}"}, {"TRAINJOB_PROGRESS_FILE": "/nowhere"}])
def test_a_process_of_a_job_shows_them_and_continues(env: dict[str, str]) -> None:
    with start(env) as process:
        assert answers_stack_requests(process.pid)
        assert request_stacks(process.pid) == [process.pid]
        out, err = process.communicate("go on\n", timeout=300)
    assert (process.returncode, out) == (0, "")
    assert 'File "<string>", line 1 in waiting' in err


@pytest.mark.parametrize("env", [{}, {"TF_CONFIG": " ", "TRAINJOB_PROGRESS_FILE": ""}])
def test_any_other_process_is_not_asked(env: dict[str, str]) -> None:
    with start(env) as process:
        assert request_stacks(process.pid) == []
        process.communicate("go on\n", timeout=300)
    assert process.returncode == 0


def test_it_is_no_signal_that_programs_use() -> None:
    assert signal.SIGRTMIN < STACK_SIGNAL < signal.SIGRTMAX


def test_a_process_that_has_ended_is_not_asked() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert request_stacks(process.pid) == []


FRAMES = [f'  File "t.py", line {n} in f{n}' for n in range(3)]
OTHER = 'Thread 0x00007f01 (most recent call first):\n  File "threading.py", line 1 in wait\n'
MAIN = "\n".join(["Current thread 0x00007f02 (most recent call first):", *FRAMES])
SHOWN = "\n".join(["Main thread (most recent call last):", *reversed(FRAMES)])


@pytest.mark.parametrize(
    ("log", "stack"),
    [
        ("", ""),
        ("step 40\n", ""),
        (f"step 40\n{OTHER}\n{MAIN}\nstep 41\n  indented\n", SHOWN),
        (f"{MAIN}\n\n{OTHER}", SHOWN),
        (f"{MAIN.replace('f0', 'earlier')}\nsaved\n{MAIN}\n", SHOWN),
        (f"{OTHER}\n{MAIN.replace('Current thread', 'Thread')}", SHOWN),
        (MAIN.replace("0x00007f02", "0x00007f02 [python]"), SHOWN),
    ],
)
def test_the_main_threads_stack_is_found_in_the_log(log: str, stack: str) -> None:
    assert main_thread(log) == stack


def test_the_innermost_frames_of_a_deep_stack_are_kept_and_come_last() -> None:
    frames = [f'  File "t.py", line {n} in f{n}' for n in range(100)]
    kept = main_thread("\n".join([MAIN.splitlines()[0], *frames])).splitlines()
    assert kept[1:] == frames[15::-1]
