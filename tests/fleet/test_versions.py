"""Agents of another version than the controller: training, a crash, and another number of workers.

`agents/f3f413d.pyz` is the bundle that the controller of that commit gave to its pods: agent and trainer
library. The bundle of the next version is today's, whose reports hold what no controller of today knows.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support.agents.agent_job import until
from support.cli.running import SCRIPTS, TRAINJOB, processes_of, started_run, write_job
from trainjob.cluster.agents.bundle import build_bundle
from trainjob_trainer import contract

BEFORE = Path(__file__).parent / "agents" / "f3f413d.pyz"
STEPS = 4000
UNKNOWN = "a report of the next version"
NEXT = f'''

_encode = encode


def encode(message):
    """Add what a later version may add."""
    if message.get("type") == "report":
        print("{UNKNOWN}", flush=True)
        message = _with_more(message)
    return _encode(message)


def _with_more(value):
    if not isinstance(value, dict):
        return value
    return {{**{{key: _with_more(each) for key, each in value.items()}}, "more": {{"of": ["the", "next"]}}}}
'''


def before(folder: Path) -> None:
    with zipfile.ZipFile(BEFORE) as bundle:
        bundle.extractall(folder)
    # The controller, which imports the contract from the same place, is today's.
    shutil.copytree(Path(contract.__file__).parent, folder / "trainjob_trainer" / "contract")


def following(folder: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(build_bundle())) as bundle:
        bundle.extractall(folder)
    with (folder / "trainjob_trainer" / "contract" / "wire.py").open("a") as file:
        file.write(NEXT)


@pytest.mark.parametrize("unpack", [before, following])
def test_a_job_trains_restarts_and_grows_with_agents_of_another_version(
    unpack: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack(tmp_path / "other")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'other'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    look = "from trainjob.cluster.agents.bundle import PACKAGE; print(PACKAGE)"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).is_relative_to(tmp_path), "these are today's agents"

    script, variables = SCRIPTS / "small_job.py", {"CRASH": "worker-1:30:1", "STEPS": str(STEPS)}
    file = write_job(tmp_path, script, variables, maxRestarts=1)
    with started_run(file, tmp_path / "runs", "--name", "digits") as run:
        until(lambda: "a hundred steps are done" in run.output, "a hundred steps")
        scale = [str(TRAINJOB), "scale", "digits", "--replicas", "3"]
        subprocess.run(scale, check=True, cwd=tmp_path, timeout=60)
        assert run.wait() == 0, run.output
    assert (UNKNOWN in run.output) == (unpack is following)
    assert "worker 1 crashed (exit code 1" in run.output
    assert "(restart 1 of 1)" in run.output
    assert "training on 3 workers" in run.output
    assert f"step {STEPS} of {STEPS}" in run.output
    assert processes_of(tmp_path) == {}
