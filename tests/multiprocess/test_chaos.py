"""A real job, killed at seeded random moments. The long version: `python benchmarks/chaos.py --kills 200`."""

from __future__ import annotations

import json
import subprocess
import sys

from support.trainer.processes import REPOSITORY

COMMAND = ["--kills", "3", "--steps", "400", "--kinds", "worker0,worker1,both", "--seed", "8"]
"""Each kind once, one within a start; all of them come before the last step, however fast steps are."""


def test_a_job_that_is_killed_again_and_again_ends_with_the_same_weights() -> None:
    ended = subprocess.run(
        [sys.executable, str(REPOSITORY / "benchmarks" / "chaos.py"), *COMMAND],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(ended.stdout)
    assert told["largest_difference"] < 1e-6
    assert told["steps"] == 400
    assert set(told["kills"]) == {"worker0", "worker1", "both"}
