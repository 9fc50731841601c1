"""Which processes show their stacks when they are asked to."""

import signal
import subprocess
import sys

import pytest
from support_plain import BOOTSTRAP

from trainjob_trainer.agent.stacks import STACK_SIGNAL, answers_stack_requests, request_stacks

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
def test_a_process_of_a_job_shows_them_and_goes_on(env: dict[str, str]) -> None:
    with start(env) as process:
        assert answers_stack_requests(process.pid)
        assert request_stacks(process.pid) == [process.pid]
        out, err = process.communicate("go on\n", timeout=30)
    assert (process.returncode, out) == (0, "")
    assert 'File "<string>", line 1 in waiting' in err


@pytest.mark.parametrize("env", [{}, {"TF_CONFIG": " ", "TRAINJOB_PROGRESS_FILE": ""}])
def test_any_other_process_is_not_asked(env: dict[str, str]) -> None:
    with start(env) as process:
        assert request_stacks(process.pid) == []
        process.communicate("go on\n", timeout=30)
    assert process.returncode == 0


def test_it_is_no_signal_that_programs_use() -> None:
    assert signal.SIGRTMIN < STACK_SIGNAL < signal.SIGRTMAX


def test_nobody_asks_a_process_that_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert request_stacks(process.pid) == []
