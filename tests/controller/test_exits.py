from __future__ import annotations

import subprocess
import sys

from trainjob.controller.operator import leave_within
from trainjob.controller.process_settings import ExitCode

HANGING = """
import logging, time
from trainjob.controller.operator import leave_within
from trainjob.controller.process_settings import ExitCode
logging.basicConfig()
leave_within(0.01, ExitCode.LEASE_LOST)
time.sleep(600)
"""


def test_what_hangs_is_left() -> None:
    result = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, text=True, check=False, timeout=600
    )
    assert result.returncode == ExitCode.LEASE_LOST
    assert "leaving with exit code 3" in result.stderr


def test_a_timer_that_is_not_needed_holds_up_no_exit() -> None:
    timer = leave_within(600, ExitCode.STOPPED)
    assert timer.daemon
    timer.cancel()
