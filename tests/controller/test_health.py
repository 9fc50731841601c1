from __future__ import annotations

import pytest

from trainjob.controller import Load
from trainjob.controller.health import STUCK_SECONDS, check_watch, check_work

LONG = STUCK_SECONDS + 1


@pytest.mark.parametrize(
    ("silent", "problem"), [(0, ""), (90, ""), (91, "nothing received or tried for 91 s")]
)
def test_a_watch(silent: float, problem: str) -> None:
    assert check_watch(silent, 90) == problem


@pytest.mark.parametrize(
    ("load", "problem"),
    [
        (None, ""),
        (Load(waiting=0, longest=0, unserved=0), ""),
        (Load(waiting=9999, longest=STUCK_SECONDS, unserved=STUCK_SECONDS), ""),
        (Load(waiting=0, longest=LONG, unserved=0), "one job has kept a worker busy for 301 s"),
        (Load(waiting=2, longest=0, unserved=LONG), "2 jobs wait, and none was started for 301 s"),
    ],
)
def test_the_work_loop(load: Load | None, problem: str) -> None:
    assert check_work(load) == problem
