"""SIGTERM, in processes of their own: the handler belongs to a whole process."""

from __future__ import annotations

import subprocess
import sys

import pytest

LISTEN = """
import multiprocessing, os, signal, time
from trainjob_trainer.edge import StopRequest, is_listening
stop = StopRequest()
stop.install(lambda: os._exit(86))
"""
PATIENT = """
stop.patience_seconds = 600
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
while not stop.requested:
    time.sleep(0.01)
os._exit(5)
"""
FUTILE = """
stop.patience_seconds, stop.is_futile = 600, lambda: True
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""
WITHOUT_STORAGE = """
from trainjob_trainer.reporting.progress import report_storage
stop.patience_seconds = 600
report_storage("/output is full")
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""
SLOW_STORAGE = """
from trainjob_trainer.reporting.progress import report_storage
report_storage("a checkpoint takes over 30 s", is_away=False)
"""
NO_LONGER_PATIENT = """
stop.patience_seconds = 600
os.kill(os.getpid(), signal.SIGTERM)
while not stop.requested:
    time.sleep(0.01)
stop.patience_seconds = 0
time.sleep(60)
"""
ENDS_A_CHILD = """
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
child.start()
child.terminate()
child.join()
os._exit(7 if child.exitcode == -signal.SIGTERM and not stop.requested else 8)
"""


def exit_code(program: str) -> int:
    return subprocess.run([sys.executable, "-c", LISTEN + program], timeout=300, check=False).returncode


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", 86),
        (PATIENT, 5),
        (FUTILE, 86),
        (WITHOUT_STORAGE, 86),
        (SLOW_STORAGE + PATIENT, 5),
        (NO_LONGER_PATIENT, 86),
        (ENDS_A_CHILD, 7),
    ],
    ids=[
        "at once",
        "after some patience",
        "futile",
        "without storage",
        "slow storage",
        "no longer patient",
        "a forked child's is its own",
    ],
)
def test_who_ends_when(program: str, code: int) -> None:
    assert exit_code(program) == code


def test_a_handler_of_the_script_is_noticed() -> None:
    theirs = "signal.signal(signal.SIGTERM, lambda *_: None)"

    assert exit_code(f"before = is_listening(); {theirs}; os._exit(10 * before + is_listening())") == 10
