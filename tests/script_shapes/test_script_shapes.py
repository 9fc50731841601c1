"""Scripts as people write them end as one process ends them, with one worker and with two, killed or not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from script_shapes.shapes import SHAPES, Shape
from support.trainer.plain import Ended, run_alone, run_job
from trainjob_trainer.contract.exits import ExitCode

HERE = Path(__file__).parent
MOST_ATTEMPTS = 2


def said(seen: Path) -> dict[int, dict[str, Any]]:
    """What each replica has said, the last attempt's where several have."""
    return {
        int(file.stem): dict(json.loads(line) for line in file.read_text().splitlines())
        for file in seen.glob("*.jsonl")
    }


def run_attempts(script: Path, root: Path, workers: int) -> list[dict[str, Ended]]:
    """Start it as an agent does, until the writer has exited with 0, or for the last time."""
    attempts: list[dict[str, Ended]] = []
    while len(attempts) < MOST_ATTEMPTS and not (attempts and attempts[-1]["worker-0"].code == 0):
        number = str(len(attempts) + 1)
        env = {"SEEN": str(root / "seen"), "TRAINJOB_ATTEMPT": number, "TRAINJOB_GENERATION": f"1.{number}"}
        env["TRAINJOB_SUPERVISED"] = "yes"  # by `run_job`
        attempts.append(run_job(script, root, workers=workers, env=env))
    return attempts


@pytest.mark.parametrize(
    ("workers", "shape"),
    [
        pytest.param(
            workers,
            shape,
            id=f"{shape.name}-{workers}",
            marks=() if shape.often and workers == 2 else pytest.mark.nightly,
        )
        for shape in SHAPES
        for workers in (1, 2)
    ],
)
def test_a_script_says_what_one_process_says(workers: int, shape: Shape, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(shape.script)
    (tmp_path / "common.py").symlink_to(HERE / "common.py")
    alone = tmp_path / "alone"
    env = {"SEEN": str(alone / "seen")}
    if shape.is_library:
        code = run_job(script, alone, workers=1, env={**env, "TRAINJOB_GENERATION": "1.1"})["worker-0"].code
    else:
        code = run_alone(script, alone, env)
    assert code == shape.code
    expected = said(alone / "seen")[0]
    assert expected

    root = tmp_path / str(workers)
    attempts = run_attempts(script, root, workers)
    logs = "\n".join(f"{number}: {one.log}" for number, each in enumerate(attempts) for one in each.values())
    codes = {one.code for one in attempts[-1].values()}
    if shape.code and "os._exit(" in shape.script:
        codes.discard(ExitCode.PEER_LOST)  # one may be gone before another has read its last sum
    else:
        codes = {attempts[-1]["worker-0"].code}
    assert codes == {shape.code}, logs
    assert (root / "checkpoints" / "final.json").exists() == (shape.code == 0), logs
    seen = said(root / "seen")
    assert sorted(seen) == list(range(workers)), logs
    for replica, values in seen.items():
        assert values.keys() == expected.keys(), (replica, logs)
        for name, value in expected.items():
            assert_alike(values[name], value, f"{name} of worker {replica} of {workers}\n{logs}")


def assert_alike(value: Any, expected: Any, where: str) -> None:
    assert isinstance(value, type(expected)) or isinstance(expected, float), where
    if isinstance(expected, (dict, list)):
        assert len(value) == len(expected), where
        for name in expected if isinstance(expected, dict) else range(len(expected)):
            assert_alike(value[name], expected[name], f"{name}: {where}")
    elif isinstance(expected, (int, float)):
        np.testing.assert_allclose(value, expected, atol=1e-5, rtol=1e-4, err_msg=where)
    else:
        assert value == expected, where
