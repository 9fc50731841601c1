"""An unmodified script that is asked to stop: TensorFlow takes SIGTERM for itself and does nothing."""

import json
import re
import signal
from collections.abc import Collection
from pathlib import Path

import pytest

from support.trainer.plain import BOOTSTRAP, SCRIPTS
from support.trainer.processes import WorkerGroup
from trainjob_trainer.contract.exits import ExitCode

ENV = {"PYTHONPATH": str(BOOTSTRAP)}


def test_sigterm_ends_every_worker_as_preempted(tmp_path: Path) -> None:
    with WorkerGroup(SCRIPTS / "endless.py", tmp_path / "output", env=ENV) as group:
        group["worker-1"].wait_for_line("epoch 2")
        for process in group.processes.values():
            process.kill(signal.SIGTERM)
        assert set(group.wait().values()) == {ExitCode.PREEMPTED}, group.report
        assert group.progress("worker-0")["error"]["reason"] == "Preempted"


@pytest.mark.parametrize(
    ("workers", "kind", "slow", "steps"),
    [
        pytest.param(2, "strategy", "10", range(11, 150), id="two"),
        pytest.param(
            1, "none", "149", [150], id="before-validation-without-a-strategy", marks=pytest.mark.nightly
        ),
    ],
)
def test_what_is_asked_to_stop_within_an_epoch_saves_it_and_goes_on_there(
    workers: int, kind: str, slow: str, steps: Collection[int], tmp_path: Path
) -> None:
    """Of 150 batches each. Once more, it has nothing to do."""
    script, env = SCRIPTS / "long_epoch.py", {**ENV, "SCOPE": kind}
    expected = ended(WorkerGroup(script, tmp_path / "undisturbed", workers=workers, env=env))
    patient = {"TRAINJOB_STATE_DIR": str(tmp_path)}  # as agents have it: they know how long there is
    output = tmp_path / "output"
    with WorkerGroup(script, output, workers=workers, env={**env, **patient, "SLOW": slow}) as group:
        group["worker-0"].wait_for_line("now")
        for process in group.processes.values():
            process.kill(signal.SIGTERM)
        assert set(group.wait().values()) == {ExitCode.PREEMPTED}, group.report
        told = re.search(r"worker-0 was asked to stop; saved step (\d+)", group.report)
        assert told, group.report
        step = int(told[1])
        assert step in steps
        assert group.progress("worker-0")["checkpointStep"] == step
    group = WorkerGroup(script, output, workers=workers, env=env, attempt=2)
    assert ended(group) == {name: pytest.approx(values, rel=1e-5) for name, values in expected.items()}
    assert f"resumed from step {step} (epoch 0 of 2 and {step} batches" in group.report
    with WorkerGroup(script, output, workers=workers, env=env, attempt=3) as group:
        assert set(group.wait().values()) == {0}, group.report
    assert "this job has finished before" in group.report


@pytest.mark.nightly
@pytest.mark.parametrize(("steps_a_call", "killed_at"), [(1, (5, 8)), (3, (9,))], ids=["one", "three"])
def test_within_an_epoch_of_unknown_length_one_worker_goes_on_too(
    steps_a_call: int, killed_at: tuple[int, ...], tmp_path: Path
) -> None:
    """Of 8 steps; three calls of 3 count as 9, by Keras's own rule."""
    script = SCRIPTS / "unknown_length.py"
    env = {**ENV, "TRAIN_CHECKPOINT_EVERY": "1", "STEPS_PER_EXECUTION": str(steps_a_call)}
    expected = ended(WorkerGroup(script, tmp_path / "undisturbed", workers=1, env=env))
    for step in killed_at:
        output = tmp_path / f"killed-at-{step}"
        with WorkerGroup(script, output, workers=1, env={**env, "DIE": str(step)}) as group:
            assert group.wait() == {"worker-0": -signal.SIGKILL}, group.report
        group = WorkerGroup(script, output, workers=1, env=env, attempt=2)
        assert ended(group) == {name: pytest.approx(values, rel=1e-5) for name, values in expected.items()}
        assert f"resumed from step {step} (epoch 0 of 2 and {step} batches" in group.report


def ended(group: WorkerGroup) -> dict[str, list[float]]:
    """History and sums of weights that the first worker ends with."""
    with group:
        assert set(group.wait().values()) == {0}, group.report
    return json.loads(group.report.partition("ended ")[2].partition("\n")[0])
