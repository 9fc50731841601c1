"""The same unmodified script as two workers and an evaluator, as one worker, and as two that crash once."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from support.trainer.plain import SCRIPTS, Ended, run_job
from support.trainer.processes import jsonl
from trainjob.client.history import read_history

SCRIPT = SCRIPTS / "two_models.py"
STEPS = (3 + 1) * 7  # two fits with 203 examples in batches of 32
ALL_STEPS = STEPS + 3 * 6  # the second model's are counted on


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def two(root: Path) -> dict[str, Ended]:
    return run_job(SCRIPT, root, evaluator=True, env={"SEEN": str(root / "seen")})


def weights(root: Path, replica: str, model: str) -> np.ndarray:
    with np.load(root / "seen" / replica / "weights.npz") as arrays:
        return arrays[model]


def seen(root: Path, replica: str) -> dict:
    return json.loads((root / "seen" / replica / "seen.json").read_text())


def test_every_process_succeeds(two: dict[str, Ended]) -> None:
    assert {name: ended.code for name, ended in two.items()} == {
        "worker-0": 0,
        "worker-1": 0,
        "evaluator-0": 0,
    }, "\n".join(ended.log for ended in two.values())


def test_workers_hold_equal_weights_and_see_equal_logs(two: dict[str, Ended], root: Path) -> None:
    for model in ("first", "second"):
        np.testing.assert_array_equal(weights(root, "worker-0", model), weights(root, "worker-1", model))
    assert seen(root, "worker-0") == seen(root, "worker-1")


def test_training_learns(two: dict[str, Ended], root: Path) -> None:
    loss = seen(root, "worker-0")["first"]["loss"]
    assert len(loss) == 3
    assert loss[-1] < loss[0]


def test_each_worker_has_what_the_script_writes_in_a_folder_of_its_own(two: dict[str, Ended]) -> None:
    for replica in ("worker-0", "worker-1"):
        files = {path.name for path in two[replica].folder.rglob("*") if path.is_file()}
        assert {"best.keras", "first.keras", "latest.weights.h5", "log.csv"} <= files
        assert (two[replica].folder / "events" / "train").is_dir()
    assert list(two["evaluator-0"].folder.iterdir()) == []


def test_keras_own_callback_records_a_profile_of_worker_0_alone(two: dict[str, Ended]) -> None:
    found = {
        replica: [one.stat().st_size > 0 for one in two[replica].folder.glob("profile/**/*.xplane.pb")]
        for replica in ("worker-0", "worker-1")
    }
    assert found == {"worker-0": [True], "worker-1": []}, "TensorFlow crashes now and then in the others"


def test_a_worker_loads_what_it_saved(two: dict[str, Ended], root: Path) -> None:
    for replica in ("worker-0", "worker-1"):
        np.testing.assert_array_equal(weights(root, replica, "loaded"), weights(root, replica, "first"))


def test_the_evaluator_counts_every_example_as_the_workers_do(two: dict[str, Ended], root: Path) -> None:
    lines = (root / "evaluator" / "evaluations.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    history = seen(root, "worker-0")["tuned"]
    assert (last["step"], last["final"]) == (STEPS, True)
    assert last["metrics"]["accuracy"] == pytest.approx(history["val_accuracy"][-1], abs=1e-6)
    assert last["metrics"]["loss"] == pytest.approx(history["val_loss"][-1], abs=1e-5)


def test_the_evaluator_never_trains_nor_passes_fit(two: dict[str, Ended], root: Path) -> None:
    assert not (root / "seen" / "evaluator-0").exists()
    assert list((root / "evaluator" / "logs").glob("events.*"))


def test_the_end_is_marked_with_the_first_model(two: dict[str, Ended], root: Path) -> None:
    final = json.loads((root / "checkpoints" / "final.json").read_text())
    assert (final["step"], final["endedAt"], final["jobUid"]) == (STEPS, ALL_STEPS, "uid-1")
    assert (root / "checkpoints" / "model-2" / f"step-{ALL_STEPS:08d}").is_dir()


def test_progress_tells_step_and_metrics(two: dict[str, Ended]) -> None:
    report = two["worker-0"].progress
    assert report["state"] == "preparing", "its agent says that it has finished"
    assert (report["step"], report["epoch"], report["totalEpochs"]) == (ALL_STEPS, 3, 3)
    assert set(report["metrics"]) >= {"accuracy"}
    assert two["evaluator-0"].progress["evaluation"]["final"] is True


def test_a_client_reads_the_metrics_of_each_epoch(two: dict[str, Ended], root: Path) -> None:
    history = read_history(root)
    assert list(history["loss"]) == [7, 14, 21, STEPS, STEPS + 6, STEPS + 12, ALL_STEPS]
    assert list(history["loss"].values())[:3] == pytest.approx(seen(root, "worker-0")["first"]["loss"])
    assert STEPS in history["val_loss"]


@pytest.mark.nightly
def test_one_worker_trains_the_same(two: dict[str, Ended], root: Path, tmp_path: Path) -> None:
    one = run_job(SCRIPT, tmp_path, workers=1, env={"SEEN": str(tmp_path / "seen")})
    assert one["worker-0"].code == 0, one["worker-0"].log
    np.testing.assert_allclose(
        weights(tmp_path, "worker-0", "second"), weights(root, "worker-0", "second"), atol=1e-5
    )


@pytest.mark.nightly
def test_a_crash_costs_nothing_but_time(two: dict[str, Ended], root: Path, tmp_path: Path) -> None:
    env = {"SEEN": str(tmp_path / "seen")}
    crashed = run_job(SCRIPT, tmp_path, env={**env, "CRASH": "worker-1"})
    assert crashed["worker-1"].code == 1
    assert crashed["worker-1"].progress["error"] == {
        "reason": "ValueError",
        "message": "two_models.py:23: ValueError: the second epoch is unlucky",
    }
    assert crashed["worker-0"].code == 85, crashed["worker-0"].log
    assert crashed["worker-0"].progress["error"]["reason"] == "PeerLost"
    # By these numbers a restart is told from progress: it failed beyond the first model's checkpoint.
    assert crashed["worker-1"].progress["step"] == STEPS + 12
    assert crashed["worker-0"].progress["checkpointStep"] in (STEPS + 6, STEPS + 12)
    assert not (tmp_path / "checkpoints" / "final.json").exists()

    again = run_job(SCRIPT, tmp_path, env={**env, "TRAINJOB_ATTEMPT": "2", "RATE": "10.0"})
    assert [again[name].code for name in sorted(again)] == [0, 0], again["worker-0"].log
    assert "trainjob: resumed from step 21 (fit 1 had ended" in again["worker-0"].log
    assert f"trainjob: resumed from step {STEPS} (fit 2 had ended" in again["worker-0"].log
    assert again["worker-0"].log.count("learning rate is 10 in the script and was 0.01") == 1, "and is 0.01"
    assert again["worker-0"].progress["notices"][0].startswith("learning rate is 10 in the script and was")
    # Worker 0 may have saved the second epoch before it noticed.
    assert re.search(r"resumed from step (34 \(epoch 1|40 \(epoch 2) of 3", again["worker-0"].log)
    for model in ("first", "second"):
        np.testing.assert_allclose(
            weights(tmp_path, "worker-0", model), weights(root, "worker-0", model), atol=1e-6
        )
    assert seen(tmp_path, "worker-1") == seen(root, "worker-0")


@pytest.mark.nightly
def test_a_smoke_test_takes_one_step_of_each_fit_and_one_batch_of_each_evaluation(tmp_path: Path) -> None:
    env = {"SEEN": str(tmp_path / "seen"), "TRAIN_SMOKE": "true"}
    ended = run_job(SCRIPT, tmp_path, workers=1, evaluator=True, env=env)
    assert {each.code for each in ended.values()} == {0}, "\n".join(each.log for each in ended.values())
    shown = seen(tmp_path, "worker-0")
    assert [len(shown[fit]["loss"]) for fit in ("first", "tuned", "second")] == [1, 1, 1]
    assert {32 * value % 1 for value in shown["first"]["val_accuracy"]} == {0}  # of one batch
    assert ended["worker-0"].progress["step"] == 3
    *_, result = jsonl(tmp_path / "evaluator" / "evaluations.jsonl")
    assert (result["step"], result["final"]) == (2, True)  # the first model's
    assert 32 * result["metrics"]["accuracy"] % 1 == 0
