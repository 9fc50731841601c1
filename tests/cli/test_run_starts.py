"""What `trainjob run` finds when it starts: streams that are closed, a file with more in it than a job."""

import shlex
import subprocess
from pathlib import Path

import pytest

from support.cli.program import GUARD_SECONDS, command, trainjob, write_job

STAY = "signal.pause()"


def test_a_file_read_from_a_cluster_starts_over(tmp_path: Path) -> None:
    file = write_job(tmp_path, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z", "labels": None})
    with file.open("a") as job:
        job.write('status: {state: Failed, conditions: [{type: Failed, status: "True"}]}\n')
    result = trainjob("run", str(file), cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "worker-0: hello from worker 0" in result.stdout


def test_the_output_has_no_reader_from_the_start(tmp_path: Path) -> None:
    file = write_job(tmp_path, STAY)
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(  # noqa: PLW1510 - the exit code is what is looked at
            command(["run", str(file)]), cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=GUARD_SECONDS,
        )  # fmt: skip
    assert result.returncode == 130
    assert "digits was interrupted" in result.stderr


@pytest.mark.parametrize("closed", [">&-", "<&- >&-"])
def test_closed_standard_streams(closed: str, tmp_path: Path) -> None:
    program = shlex.join(command(["run", str(write_job(tmp_path))]))
    result = subprocess.run(  # noqa: PLW1510, S602 - the exit code is what is looked at; our own words
        f"{program} {closed}", shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        timeout=GUARD_SECONDS,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
