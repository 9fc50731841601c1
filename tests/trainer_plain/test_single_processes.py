"""What one process of a job does before it has met any other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from testbed.ports import free_ports

from support.trainer.plain import BOOTSTRAP, SCRIPTS, run_job

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_keras.py"


def run_replica(script: str, folder: Path, role: str) -> subprocess.CompletedProcess[str]:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    config = {
        "cluster": {"worker": addresses[:2], "evaluator": addresses[2:]},
        "task": {"type": role, "index": 0},
    }
    env = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONPATH": str(BOOTSTRAP),
        "TF_CONFIG": json.dumps(config),
        "TRAINJOB_OUTPUT_DIR": str(folder / "output"),
        "TRAINJOB_PROGRESS_FILE": str(folder / "progress.json"),
    }
    return subprocess.run(
        [sys.executable, str(SCRIPTS / script)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.nightly
def test_an_evaluator_with_nothing_to_score_says_so_and_writes_what_the_script_saves(tmp_path: Path) -> None:
    ended = run_replica("nothing_held_out.py", tmp_path, "evaluator")
    assert ended.returncode == 0, ended.stderr
    assert "replicas 1 evaluator" in ended.stdout
    assert "fit has ended" not in ended.stdout
    assert "neither validation_data nor validation_split" in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["progress.json", "untrained.keras"]


def test_an_evaluator_does_not_train_what_a_script_without_fit_trains(tmp_path: Path) -> None:
    ended = run_job(SCRIPTS / "own_loop.py", tmp_path, workers=1, evaluator=True)
    assert [replica.code for replica in ended.values()] == [0, 0], ended
    assert "evaluated\ntrained 3" in ended["worker-0"].log
    log = ended["evaluator-0"].log
    assert "evaluated" in log
    assert "trained" not in log
    told = [line for line in log.splitlines() if line.startswith("trainjob: the script trains in a loop")]
    assert len(told) == 1, log
    assert "evaluator: {replicas: 0}" in told[0]
    assert ended["evaluator-0"].progress["state"] == "finished"


@pytest.mark.nightly
def test_an_evaluator_says_that_it_holds_out_other_rows_and_draws_what_workers_draw(tmp_path: Path) -> None:
    ended = run_job(SCRIPTS / "splits.py", tmp_path, workers=1, evaluator=True, env={"PYTHONHASHSEED": "0"})
    assert [replica.code for replica in ended.values()] == [0, 0], ended
    draws = {line for one in ended.values() for line in one.log.splitlines() if line.startswith("drew")}
    assert len(draws) == 1, ended
    (told,) = ended["evaluator-0"].progress["notices"]
    assert "held-out rows differ from worker 0's" in told


@pytest.mark.nightly
def test_the_example_trains_as_one_worker(tmp_path: Path) -> None:
    ended = run_job(EXAMPLE, tmp_path, workers=1, env={"EPOCHS": "1"})["worker-0"]
    assert ended.code == 0, ended.log
    assert (tmp_path / "model.keras").is_file()
    assert (tmp_path / "best.keras").is_file()
    assert (tmp_path / "checkpoints" / "final.json").is_file()


def test_one_worker_trains_a_model_without_call_and_goes_on_with_it(tmp_path: Path) -> None:
    def losses(strategy: str, code: int, **env: str) -> list[str]:
        variables, script = {"STRATEGY": strategy, "TRAIN_CHECKPOINT_EVERY": "1", **env}, "without_call.py"
        ended = run_job(SCRIPTS / script, tmp_path / strategy, workers=1, env=variables)["worker-0"]
        assert ended.code == code, ended.log
        return [line for line in ended.log.splitlines() if line.startswith("losses ")]

    assert losses("none", 9, DIES="yes") == []
    (resumed,) = losses("none", 0)
    assert len(resumed.split()) == 1 + 4
    assert losses("collective", 0) == [resumed]


@pytest.mark.nightly
def test_a_script_ends_while_threads_read_on(tmp_path: Path) -> None:
    ended = run_job(SCRIPTS / "reads_on.py", tmp_path)
    assert [(replica.code, "trained" in replica.log) for replica in ended.values()] == [(0, True)] * 2, ended


@pytest.mark.nightly
def test_what_a_script_starts_is_its_own(tmp_path: Path) -> None:
    ended = run_job(SCRIPTS / "own_processes.py", tmp_path)
    assert [(replica.code, replica.progress["state"]) for replica in ended.values()] == [
        (0, "preparing"),
        (0, "preparing"),
    ], ended
    lines = [line.split() for line in ended["worker-1"].log.splitlines() if line.startswith("helper ")]
    assert [(words[1], words[2], words[-1]) for words in lines] == [("3", "['True',", "1")] * 2, ended
    assert sorted(path.name for path in (tmp_path / "cwd" / "worker-1").iterdir()) == ["helpers.keras"]
    assert "trained 2" in ended["worker-0"].log
