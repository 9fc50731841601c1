"""Processes as /proc shows them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from trainjob_trainer.agent.process_tree import STACK_SIGNAL, catches, is_stopped
from trainjob_trainer.contract.processes import descendants, exit_code, kill_tree, send

TREE = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
        time.sleep(1000)
print('grown', flush=True)
time.sleep(1000)
"""


@pytest.fixture
def tree() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while len(descendants(process.pid)) < 4:
            pass
        yield process
        kill_tree(process.pid)
        process.kill()


def test_everything_below_is_found_and_can_be_spared(tree: subprocess.Popen[str]) -> None:
    below = descendants(tree.pid)
    assert len(below) == 4
    assert descendants(os.getpid()) >= below | {tree.pid}
    branch = next(pid for pid in below if descendants(pid))
    assert descendants(tree.pid, without=[branch]) == below - {branch} - descendants(branch)
    assert descendants(os.getpid(), without=[tree.pid]).isdisjoint(below)
    assert kill_tree(tree.pid, without=[branch]) == below - {branch} - descendants(branch)


def test_a_stopped_process_differs_from_a_sleeping_one(tree: subprocess.Popen[str]) -> None:
    assert not is_stopped(tree.pid)
    send(tree.pid, signal.SIGSTOP)
    os.waitpid(tree.pid, os.WUNTRACED)
    assert is_stopped(tree.pid)
    send(tree.pid, signal.SIGCONT)
    os.waitpid(tree.pid, os.WCONTINUED)
    assert not is_stopped(tree.pid)


def test_a_process_without_a_handler_would_die_of_the_signal(tree: subprocess.Popen[str]) -> None:
    assert catches(tree.pid, signal.SIGINT)
    assert not catches(tree.pid, STACK_SIGNAL)


def test_a_process_that_is_gone_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not send(process.pid, signal.SIGTERM)
    assert not is_stopped(process.pid)
    assert not catches(process.pid, signal.SIGTERM)
    assert descendants(process.pid) == set()


@pytest.mark.parametrize(
    ("status", "code"), [(0, (0, None)), (3 << 8, (3, None)), (9, (137, 9)), (11 | 128, (139, 11))]
)
def test_exit_codes(status: int, code: tuple[int, int | None]) -> None:
    assert exit_code(status) == code
