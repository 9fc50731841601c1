"""The short way in, as real processes: same weights however it is run, and a clear end whatever happens."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import numpy as np
import pytest
from testbed.waiting import until

from support.trainer.checkpoints import final_variables, largest_difference
from support.trainer.processes import DEADLINE_SECONDS, WorkerGroup, jsonl
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.contract.exits import ExitCode

SCRIPT = Path(__file__).parent / "scripts" / "library_run.py"


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of two workers and an evaluator that nothing disturbed."""
    output = tmp_path_factory.mktemp("two") / "output"
    with WorkerGroup(SCRIPT, output, workers=2, evaluator=True) as group:
        assert set(group.wait().values()) == {0}, group.report
        assert group.progress("worker-1")["state"] == "finished"
        assert group.progress("evaluator-0")["evaluation"]["final"] is True
    return output


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of one worker."""
    output = tmp_path_factory.mktemp("one") / "output"
    with WorkerGroup(SCRIPT, output, workers=1) as group:
        assert group.wait() == {"worker-0": 0}, group.report
    return output


def is_waiting_for_worker_1(group: WorkerGroup) -> bool:
    """By both reports; those of a moment in which the machine itself was slow say something else."""
    try:
        waiting, busy = (group.progress(f"worker-{index}") for index in (0, 1))
        return (
            busy["stepSeconds"] < 2 * busy["workSeconds"]
            and waiting["stepSeconds"] > 2 * waiting["workSeconds"] > 0
            and busy["workSeconds"] > 2 * waiting["workSeconds"]
        )
    except (FileNotFoundError, KeyError):
        return False


def test_two_workers_equal_one(two_workers: Path, one_worker: Path) -> None:
    assert largest_difference(two_workers, one_worker, ("model", "optimizer")) < 1e-5


def test_the_output_folder_holds_what_it_should(two_workers: Path) -> None:
    assert CheckpointStore(two_workers / "checkpoints").steps() == [28, 35, 42]
    assert len(list(jsonl(two_workers / "logs" / "history.jsonl"))) == 6
    assert list((two_workers / "logs" / "train").glob("events.out.tfevents.*"))
    assert list((two_workers / "evaluator" / "logs").glob("events.out.tfevents.*"))
    assert not list(two_workers.rglob(".tmp-*"))


def test_the_evaluator_counts_every_held_out_example_once(two_workers: Path) -> None:
    last = list(jsonl(two_workers / "evaluator" / "evaluations.jsonl"))[-1]

    assert (last["step"], last["final"]) == (42, True)
    assert last["metrics"]["accuracy"] == pytest.approx(_true_accuracy(two_workers), abs=1e-6)


def _true_accuracy(output: Path) -> float:
    """The script's model, by hand."""
    values = {
        name.partition("/")[2].rpartition("sequential/")[2]: v for name, v in final_variables(output).items()
    }
    inputs = np.random.default_rng(1).normal(size=(103, 8)).astype("float32")
    hidden = np.maximum(inputs @ values["hidden/kernel"] + values["hidden/bias"], 0)
    spread = np.sqrt(values["norm/moving_variance"] + 1e-3)
    normal = (hidden - values["norm/moving_mean"]) / spread * values["norm/gamma"] + values["norm/beta"]
    logits = normal @ values["logits/kernel"] + values["logits/bias"]
    return float(np.mean(logits.argmax(axis=1) == (inputs.sum(axis=1) > 0)))


@pytest.mark.nightly
def test_a_killed_worker_ends_the_other_and_a_restart_changes_no_weight(tmp_path: Path) -> None:
    dropout = ("--dropout", "0.3", "--epochs", "40")
    with WorkerGroup(SCRIPT, tmp_path / "whole", arguments=dropout) as group:
        assert set(group.wait().values()) == {0}, group.report
    with WorkerGroup(SCRIPT, tmp_path / "cut", arguments=(*dropout, "--kill-worker-1-after", "14")) as group:
        codes = group.wait()
        assert codes == {"worker-0": ExitCode.PEER_LOST, "worker-1": -signal.SIGKILL}, group.report
        error = group.progress("worker-0")["error"]
        assert error["reason"] == "PeerLost"
        assert error["message"].startswith("worker-0 lost worker-1")
    with WorkerGroup(SCRIPT, tmp_path / "cut", attempt=2, arguments=dropout) as group:
        assert set(group.wait().values()) == {0}, group.report
        assert "trainjob: resumed from step" in group["worker-0"].output
        assert group.progress("worker-0")["resumedFrom"] >= 14

    assert largest_difference(tmp_path / "whole", tmp_path / "cut", ("model", "optimizer")) < 1e-6


@pytest.mark.nightly
def test_a_finished_output_is_not_trained_again_but_for_more_epochs(one_worker: Path) -> None:
    with WorkerGroup(SCRIPT, one_worker, workers=1, uid="another") as group:
        assert group.wait() == {"worker-0": ExitCode.OUTPUT_FINISHED}, group.report
        assert "finished at step 42" in group.progress("worker-0")["error"]["message"]
    with WorkerGroup(SCRIPT.with_name("join.py"), one_worker, workers=1) as group:
        assert group.wait() == {"worker-0": 0}, group.report
        assert "has finished before" in group["worker-0"].output
    with WorkerGroup(SCRIPT, one_worker, workers=1, uid="third", arguments=("--epochs", "8")) as group:
        assert group.wait() == {"worker-0": 0}, group.report
        assert "resumed from step 42" in group["worker-0"].output
    final = CheckpointStore(one_worker / "checkpoints").final()
    assert final is not None
    assert (final.step, final.job_uid) == (56, "third")


@pytest.mark.nightly
def test_sigterm_saves_where_it_stands_and_a_slow_worker_is_known_till_then(tmp_path: Path) -> None:
    output = tmp_path / "output"
    slow = ("--epochs", "100000", "--examples", "3200", "--slow-worker-1", "0.001")
    # As under an agent, which waits while there is grace: without one a slow machine runs out of patience.
    with WorkerGroup(SCRIPT, output, arguments=slow, env={"TRAINJOB_STATE_DIR": str(tmp_path)}) as group:
        until(lambda: is_waiting_for_worker_1(group), what="a slow worker", seconds=DEADLINE_SECONDS)
        for process in group.processes.values():
            process.kill(signal.SIGTERM)
        assert set(group.wait().values()) == {ExitCode.PREEMPTED}, group.report
        saved = CheckpointStore(output / "checkpoints").steps()[-1]
        assert f"saved step {saved}" in group["worker-0"].output


@pytest.mark.nightly
def test_nan_ends_all_workers_with_the_step_and_the_worker_and_no_checkpoint_has_it(tmp_path: Path) -> None:
    # Example 120 is in the second half of the fourth batch of 32.
    with WorkerGroup(SCRIPT, tmp_path / "output", arguments=("--nan-example", "120")) as group:
        assert set(group.wait().values()) == {ExitCode.NOT_FINITE}, group.report
        for worker in ("worker-0", "worker-1"):
            error = group.progress(worker)["error"]
            assert error["reason"] == "NotFinite"
            assert error["message"].startswith("step 4: the loss or a gradient of worker-1 is NaN")
    assert CheckpointStore(tmp_path / "output" / "checkpoints").steps() == []


@pytest.mark.nightly
def test_a_batch_with_nan_is_skipped_by_all_workers_where_that_is_asked_for(tmp_path: Path) -> None:
    options = ("--nan-example", "75", "--on-nan", "skip", "--epochs", "2")
    with WorkerGroup(SCRIPT, tmp_path / "two", arguments=options) as group:
        assert set(group.wait().values()) == {0}, group.report
        metrics = [group.progress(worker)["metrics"] for worker in ("worker-0", "worker-1")]
        printed = group["worker-0"].output
    with WorkerGroup(SCRIPT, tmp_path / "one", workers=1, arguments=options) as group:
        assert group.wait() == {"worker-0": 0}, group.report
    assert [one["skipped_steps"] for one in metrics] == [2, 2]
    assert "step 3: the loss or a gradient of worker-0 is NaN or infinite" in printed
    assert largest_difference(tmp_path / "two", tmp_path / "one", ("model", "optimizer")) < 1e-5


@pytest.mark.nightly
def test_an_early_operation_is_explained(tmp_path: Path) -> None:
    with WorkerGroup(SCRIPT, tmp_path / "output", arguments=("--operation-first",)) as group:
        assert set(group.wait().values()) == {ExitCode.INVALID_CONFIGURATION}, group.report
        assert "ran before the distribution strategy" in group.progress("worker-0")["error"]["message"]


@pytest.mark.nightly
def test_workers_with_other_examples_are_refused(tmp_path: Path) -> None:
    with WorkerGroup(SCRIPT, tmp_path / "output", arguments=("--other-order",)) as group:
        assert set(group.wait().values()) == {ExitCode.INVALID_CONFIGURATION}, group.report
        for worker in ("worker-0", "worker-1"):
            message = group.progress(worker)["error"]["message"]
            assert message.startswith("worker-1 read other rows than worker-0")


@pytest.mark.nightly
def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with WorkerGroup(SCRIPT, tmp_path / "output", workers=1, ports=(port,)) as group:
            assert group.wait() == {"worker-0": ExitCode.PORT_IN_USE}, group.report
            assert f"127.0.0.1:{port}" in group.progress("worker-0")["error"]["message"]
