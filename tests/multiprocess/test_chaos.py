"""A real job on a disk that fails, killed at seeded random moments.

The long version: `python benchmarks/chaos.py --kills 200 --disk-faults 0.01`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

from support.trainer.processes import REPOSITORY

COMMAND = ["--kills", "3", "--steps", "400", "--kinds", "worker0,worker1,both", "--seed", "8"]
"""Each kind once, one within a start; all of them come before the last step, however fast steps are."""
FAULTS = ["--disk-faults", "0.01"] if shutil.which("cc") else []
"""One in a hundred system calls on files of the run fails; a C compiler makes what lets them fail."""


def test_a_job_that_is_killed_again_and_again_ends_with_the_same_weights() -> None:
    ended = subprocess.run(
        [sys.executable, str(REPOSITORY / "benchmarks" / "chaos.py"), *COMMAND, *FAULTS],
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
    assert not FAULTS or sum(told["faults"].values()) > 5
