from __future__ import annotations

import subprocess
import sys

import pytest

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

QUICK = """
from trainjob.controller.operator import leave_within
from trainjob.controller.process_settings import ExitCode
leave_within(600, ExitCode.LEASE_LOST)
"""


@pytest.mark.parametrize(("code", "expected"), [(HANGING, ExitCode.LEASE_LOST), (QUICK, 0)])
def test_what_hangs_is_left_and_what_does_not_is_not_held_up(code: str, expected: int) -> None:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == expected
    assert ("leaving with exit code 3" in result.stderr) == (expected != 0)


def test_a_timer_that_is_not_needed() -> None:
    timer = leave_within(600, ExitCode.STOPPED)
    assert timer.daemon
    timer.cancel()
