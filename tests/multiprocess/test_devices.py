"""One worker with several devices: a processor divided in two, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support_processes import REPOSITORY, jsonl

SCRIPT = Path(__file__).parent / "scripts" / "two_devices.py"


def test_two_devices_train_and_score_as_one(tmp_path: Path) -> None:
    quiet = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    support = {"PYTHONPATH": str(REPOSITORY / "tests" / "support")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        env={**os.environ, **quiet, **support},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    two, one = seen["two"], seen["one"]
    assert (two["strategy"], two["devices"], one["devices"]) == ("MirroredStrategy", 2, 1)
    assert two["weights"] == pytest.approx(one["weights"], abs=1e-6)
    assert two["metrics"] == pytest.approx(one["metrics"], abs=1e-6)
    for name in ("two", "one"):
        (last,) = list(jsonl(tmp_path / name / "evaluator" / "evaluations.jsonl"))[-1:]
        assert last["metrics"] == pytest.approx(seen[name]["scores"], abs=1e-5)
