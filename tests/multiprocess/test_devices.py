"""One worker with several devices: a processor divided in two, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.trainer.processes import REPOSITORY

pytestmark = pytest.mark.nightly

SCRIPT = Path(__file__).parent / "scripts" / "two_devices.py"


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("output")
    quiet = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    support = {"PYTHONPATH": str(REPOSITORY / "tests")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        env={**os.environ, **quiet, **support},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("model", ["keras", "own"])
def test_two_devices_train_and_score_as_one(output: Path, model: str) -> None:
    seen = json.loads((output / "seen.json").read_text())[model]
    two, one = seen["two"], seen["one"]
    assert (two["strategy"], two["devices"], one["devices"]) == ("MirroredStrategy", 2, 1)
    assert two["weights"] == pytest.approx(one["weights"], abs=1e-6)
    assert two["metrics"] == pytest.approx(one["metrics"], abs=1e-6)
    for found in (two, one):
        scored = {name: value for name, value in found["metrics"].items() if name.startswith("val_")}
        assert scored == pytest.approx({name: found["scores"][name[4:]] for name in scored}, abs=1e-5)
        assert "val_loss" in scored


def test_a_metric_of_a_loop_is_saved_and_restored_over_all_devices(output: Path) -> None:
    assert json.loads((output / "seen.json").read_text())["loop"] == [0.0, 5.0, 2.5, 10.0]
