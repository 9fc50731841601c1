"""A real job that is killed at seeded random moments; also on a disk, or with a bucket, that fails.

The long versions: `python benchmarks/chaos.py --kills 200` with `--disk-faults 0.01` or `--bucket 0.01`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from support.trainer.processes import REPOSITORY

COMMAND = ["--kills", "3", "--steps", "400", "--kinds", "worker0,worker1,both", "--seed", "8"]
"""Each kind once, one within a start; all of them come before the last step, however fast steps are."""
FAULTS = ["--disk-faults", "0.01"] if shutil.which("cc") else []
"""One in a hundred system calls on files of the run fails; a C compiler makes what lets them fail."""
BUCKET = ["--bucket", "0.02"]
"""Two in a hundred requests to a bucket fail, and some of those that repeat them."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([], id="sound"),
        pytest.param(FAULTS, id="faulty"),
        pytest.param(BUCKET, id="bucket"),
    ],
)
def test_a_job_that_is_killed_again_and_again_ends_with_the_same_weights(
    faults: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "testbed"), prepend=os.pathsep)
    ended = subprocess.run(
        [sys.executable, str(REPOSITORY / "benchmarks" / "chaos.py"), *COMMAND, *faults],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(ended.stdout)
    assert told["largest_difference"] < 1e-6
    assert told["differing_files"] == []
    assert told["steps"] == 400
    assert set(told["kills"]) == {"worker0", "worker1", "both"}
    assert not faults or sum(told["faults"].values()) > 5
