"""The Docker engine of the testbed, for machines that have none."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from testbed import cgroups, docker, programs
from testbed.commands import run
from testbed.places import state

pytestmark = [pytest.mark.testbed, pytest.mark.nightly]


def test_an_engine_runs_privileged_containers_and_leaves_nothing(tmp_path: Path) -> None:
    archive = tmp_path / "root.tar"
    with tarfile.open(archive, "w") as content:
        content.add(programs.program("pause"), "pause")
    with docker.running() as engine:
        engine.call("import", archive, "localhost/pause:1")
        container = ("--name=one", "--privileged", "--network=none", "localhost/pause:1", "/pause")
        engine.call("run", "--detach", *container)
        assert engine.call("inspect", "--format={{.State.Running}}", "one").strip() == "true"
        assert engine.enter(["sh", "-c", "test $(docker ps --quiet | wc -l) = 1"], {}) == 0
        assert engine.enter(["sh", "-c", "ip route show default | grep ."], {}) == 1, "no way out"
    assert not (state() / "docker").exists()
    assert cgroups.leftovers(cgroups.name_for_docker()) == []


def test_what_the_machine_has_not_to_give_is_not_asked_of_runc(tmp_path: Path) -> None:
    everything = ["CAP_CHOWN", "CAP_SYS_RESOURCE", "CAP_OF_A_LATER_KERNEL"]
    process = {"capabilities": {"bounding": everything, "effective": everything}, "oomScoreAdj": -999}
    (tmp_path / "config.json").write_text(json.dumps({"process": process, "size": 2**60 + 1}))
    (tmp_path / "process.json").write_text(json.dumps(process))
    asked = ("--log", "x", "create", "--bundle", str(tmp_path), "--process", f"{tmp_path}/process.json")
    assert _stand_in(tmp_path, *asked) == " ".join(asked)
    bundle = json.loads((tmp_path / "config.json").read_text())
    assert bundle["size"] == 2**60 + 1
    for left in (bundle["process"], json.loads((tmp_path / "process.json").read_text())):
        assert left == _possible(process)


def _stand_in(folder: Path, *words: str) -> str:
    """Runs the stand-in with a runc after it on PATH that says how it was called."""
    runc = folder / "runc"
    runc.write_text('#!/bin/sh\necho "$*"\n')
    runc.chmod(0o755)
    stand_in = programs.program("runc")
    path = os.pathsep.join([str(stand_in.parent), str(folder), os.environ["PATH"]])
    return run([stand_in, *words], env={"PATH": path}).strip()


def _possible(process: dict[str, Any]) -> dict[str, Any]:
    """The same, as util-linux knows this machine."""
    dropped = subprocess.run(
        ["setpriv", "--dump"], capture_output=True, text=True, check=True
    ).stdout  # names of the bounding set
    (line,) = [line for line in dropped.splitlines() if line.startswith("Capability bounding set:")]
    have = {f"CAP_{name.strip().upper()}" for name in line.partition(":")[2].split(",")}
    sets = {
        name: [each for each in wanted if each in have] for name, wanted in process["capabilities"].items()
    }
    own = int(Path("/proc/self/oom_score_adj").read_text())
    score = process["oomScoreAdj"] if "CAP_SYS_RESOURCE" in have else own
    return {"capabilities": sets, "oomScoreAdj": score}
