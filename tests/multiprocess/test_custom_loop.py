"""The example with a loop of its own, as real processes."""

from __future__ import annotations

from pathlib import Path

from support.trainer.processes import REPOSITORY, WorkerGroup, jsonl
from trainjob_trainer.checkpoint.store import CheckpointStore

SCRIPT = REPOSITORY / "examples" / "custom_loop.py"


def test_two_workers_and_an_evaluator(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with WorkerGroup(SCRIPT, output, workers=2, evaluator=True) as group:
        assert set(group.wait().values()) == {0}, group.report
        assert group.progress("worker-0")["loss"] < 1

    last = list(jsonl(output / "evaluator" / "evaluations.jsonl"))[-1]
    assert (last["step"], last["final"]) == (200, True)
    assert last["metrics"]["accuracy"] > 0.9
    assert CheckpointStore(output / "checkpoints").steps() == [100, 150, 200]
