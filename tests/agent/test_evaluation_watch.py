"""When an evaluation stands still, and what an evaluator's agent does then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.agents.agent_job import Job, until
from trainjob_trainer.agent.main import FIRST_SECONDS, EvaluationWatch

SCORING = {"state": "evaluating", "step": 5, "evaluatedBatches": 3, "time": 1.0}
RESULT = {"step": 4, "metrics": {}, "final": False}


def seen(*reports: dict[str, Any] | None) -> EvaluationWatch:
    """A watch with these reports, ten seconds apart from 10 on."""
    watch = EvaluationWatch()
    for number, report in enumerate(reports, 1):
        watch.observe(report, 10.0 * number)
    return watch


@pytest.mark.parametrize(("now", "stalled"), [(69.9, False), (70.0, True)])
def test_an_evaluation_in_which_nothing_moves_for_so_long(now: float, stalled: bool) -> None:
    assert seen(SCORING, {**SCORING, "time": 9.0}).stalled(now, 60.0) is stalled


@pytest.mark.parametrize("change", [{"evaluatedBatches": 4}, {"step": 6}, {"evaluation": RESULT}])
def test_any_sign_of_life_counts(change: dict[str, Any]) -> None:
    watch = seen(SCORING, {**SCORING, **change})
    assert not watch.stalled(79.9, 60.0)
    assert watch.stalled(80.0, 60.0)


@pytest.mark.parametrize(
    "after", [None, {"state": "waiting", "step": 5}, {"state": "finished"}, {"state": "failed"}]
)
def test_waiting_for_a_checkpoint_has_no_limit(after: dict[str, Any] | None) -> None:
    assert not seen(SCORING, after).stalled(1e9, 60.0)


def test_waiting_in_between_restarts_the_limit() -> None:
    watch = seen(SCORING, {"state": "waiting"}, SCORING)
    assert not watch.stalled(89.9, 60.0)


@pytest.mark.parametrize("limit", [60.0, 2 * FIRST_SECONDS])
def test_the_first_evaluation_of_a_process_may_take_longer_to_begin(limit: float) -> None:
    watch = seen({"state": "evaluating", "step": 5})
    longest = max(limit, FIRST_SECONDS)
    assert not watch.stalled(10 + longest - 0.1, limit)
    assert watch.stalled(10 + longest, limit)


def test_a_later_evaluation_has_the_usual_limit() -> None:
    assert seen({"state": "evaluating", "step": 5, "evaluation": RESULT}).stalled(70.0, 60.0)


@pytest.mark.parametrize("stops", [False, True], ids=["hangs", "stopped"])
def test_the_agent_ends_with_an_evaluation_that_stands_still(stops: bool, tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 1, "evaluator": 1}, stallTimeoutSeconds=1) as job:
        job.start("evaluator-0")
        process = until(job.events, "the evaluator's start")[0]["pid"]
        job.report("evaluator-0", state="evaluating", step=5, evaluatedBatches=3)
        if stops:
            job.send("evaluator-0", "stand-still")

        assert job.agents["evaluator-0"].wait() == 88
        assert "most recent call first" in job.agents["evaluator-0"].output
        failure = job.termination_message("evaluator-0")["failure"]
        assert (failure["reason"], failure["exitCode"], failure["step"]) == ("Stalled", 88, 5)
        assert failure["message"] == "no progress within an evaluation for 1 s"
        assert not Path(f"/proc/{process}").exists()
