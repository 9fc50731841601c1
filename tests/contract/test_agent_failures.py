"""The operator reads what agents report of restarts and failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trainjob.core.agent_reports import AgentReport, read_termination_message
from trainjob.core.pods import read_json
from trainjob.core.stragglers import SUSPECT_REASON, named_replicas
from trainjob_trainer import WeightsDiverged
from trainjob_trainer.agent.termination import write_termination
from trainjob_trainer.contract.reports import Failure
from trainjob_trainer.contract.restarts import RestartCounts
from trainjob_trainer.distribution.divergence import Apart, describe


@pytest.mark.parametrize(
    ("ranks", "is_certain"), [([1], True), ([0, 2], True), ([0, 1], False), ([0, 1, 2], False)]
)
def test_the_operator_reads_whose_weights_have_come_apart(ranks: list[int], is_certain: bool) -> None:
    workers = [f"worker-{rank}" for rank in range(3 if is_certain else len(ranks))]
    sentence = describe(Apart(ranks, is_certain=is_certain), workers, ["dense/kernel"], 12)
    assert [replica.name for replica in named_replicas(sentence)] == [workers[rank] for rank in ranks]
    assert WeightsDiverged.reason == SUSPECT_REASON


FAILURE = Failure(
    replica="worker-1",
    pod="digits-worker-1-abcd",
    incarnation=2,
    attempt=7,
    reason="OutOfMemory",
    exit_code=137,
    signal=9,
    message="killed",
    log_tail="one\ntwo",
    step=40,
    checkpoint_step=20,
    counted=False,
    permanent=True,
    repeated=True,
    alone=True,
    time=1e9,
)


def test_a_failure_is_read_as_it_was_written() -> None:
    ours = AgentReport.model_validate({"failure": FAILURE.to_json()}).failure
    assert ours is not None
    assert ours.replica == FAILURE.replica
    for name in (
        "pod",
        "reason",
        "exit_code",
        "message",
        "log_tail",
        "step",
        "checkpoint_step",
        "counted",
        "permanent",
        "repeated",
        "alone",
    ):
        assert getattr(ours, name) == getattr(FAILURE, name)


@pytest.mark.parametrize("log", ["short", "x" * 2048, "\U0001f600" * 2048])
def test_a_termination_message_is_read_as_it_was_written(log: str, tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    path.touch()
    counts = RestartCounts(attempt=7, counted=2)
    report = {"state": "failed", "step": 40, "checkpointStep": 20, "metrics": {"loss": 1.0}}
    failure = replace(FAILURE, log_tail=log)
    write_termination(path, failure, counts, report, gave_up=True)
    assert len(path.read_bytes()) <= 3072
    message = read_termination_message(read_json(path.read_text()))
    assert message is not None
    assert message.gave_up
    assert message.failure is not None
    assert (message.failure.replica, message.failure.exit_code, message.failure.step) == (
        "worker-1",
        137,
        40,
    )
    assert message.failure.message == "killed"
    assert log.endswith(message.failure.log_tail)
    assert message.restart_counts == counts
    assert message.report is not None
    assert (message.report.step, message.report.checkpoint_step) == (40, 20)
