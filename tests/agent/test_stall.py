"""When training has stalled, and who is to blame."""

from typing import Any

import pytest

from trainjob_trainer.agent.stall import LEAVING_SECONDS, LONG_WORK_SECONDS, Rank, StallWatch, blame

TRAINING = {"state": "training", "step": 5, "stepSeconds": 0.1, "epoch": 1, "time": 1.0}


def test_it_is_not_armed_before_the_first_step() -> None:
    watch = StallWatch()
    for now, report in enumerate([None, {"state": "starting"}, {"state": "waiting"}]):
        watch.observe(report, float(now))
    assert not watch.stalled(1e9, 1.0)


@pytest.mark.parametrize(("now", "limit", "stalled"), [(69.9, 60, False), (70, 60, True), (1e9, None, False)])
def test_without_a_change_for_so_long_it_has_stalled(now: float, limit: float | None, stalled: bool) -> None:
    watch = StallWatch()
    watch.observe(TRAINING, 10.0)
    watch.observe({**TRAINING, "loss": 0.5, "examplesPerSecond": 7.0, "time": 60.0}, 60.0)
    assert watch.stalled(now, limit) is stalled


@pytest.mark.parametrize(
    "change",
    [
        {"step": 6},
        {"evaluatedBatches": 32},
        {"rereadBatches": 32},
        {"epoch": 2},
        {"checkpointStep": 5},
        {"evaluation": {"step": 5, "metrics": {}, "final": False}},
        {"step": None, "state": "failed"},
    ],
)
def test_any_sign_of_life_counts(change: dict[str, Any]) -> None:
    watch = StallWatch()
    watch.observe(TRAINING, 10.0)
    watch.observe({**TRAINING, **change}, 60.0)
    assert not watch.stalled(119.0, 60.0)
    assert watch.stalled(120.0, 60.0)


@pytest.mark.parametrize("limit", [5.0, 2 * LONG_WORK_SECONDS])
def test_the_first_step_of_its_own_may_take_longer(limit: float) -> None:
    watch = StallWatch()
    begin = {"state": "training", "step": 40}
    watch.observe(begin, 10.0)
    longest = max(limit, LONG_WORK_SECONDS)
    assert not watch.stalled(10 + longest - 0.1, limit)
    assert watch.stalled(10 + longest, limit)
    watch.observe({**begin, "step": 41}, 100.0)
    assert watch.stalled(100 + limit, limit)


@pytest.mark.parametrize(
    ("state", "least"),
    [
        ("starting", LONG_WORK_SECONDS),
        ("preparing", LONG_WORK_SECONDS),
        ("rereading", LONG_WORK_SECONDS),
        ("evaluating", LONG_WORK_SECONDS),
        ("saving", LONG_WORK_SECONDS),
        ("finished", LEAVING_SECONDS),
    ],
)
@pytest.mark.parametrize("limit", [5.0, 2 * LONG_WORK_SECONDS])
def test_long_work_has_a_longer_limit(state: str, least: float, limit: float) -> None:
    watch = StallWatch()
    watch.observe(TRAINING, 10.0)
    watch.observe({**TRAINING, "state": state}, 20.0)
    longest = max(limit, least)
    assert (watch.stalled(20 + longest - 0.1, limit), watch.is_at_long_work(20 + longest - 0.1, limit)) == (
        False,
        True,
    )
    assert (watch.stalled(20 + longest, limit), watch.is_at_long_work(20 + longest, limit)) == (True, False)
    watch.observe({**TRAINING, "step": 6}, 2000.0)
    assert not watch.is_at_long_work(2000.0, limit)
    assert watch.stalled(2000 + limit, limit)


def test_a_new_start_disarms_it() -> None:
    watch = StallWatch()
    watch.observe(TRAINING, 10.0)
    watch.observe(None, 20.0)
    watch.observe({"state": "starting"}, 30.0)
    assert not watch.stalled(1e9, 60.0)


@pytest.mark.parametrize(
    ("ranks", "replica"),
    [
        ([Rank("worker-0", reported=True), Rank("worker-1", stopped=True, step=9)], "worker-1"),
        (
            [Rank("worker-0", report_age=1, step=1, reported=True), Rank("worker-1", report_age=70, step=1)],
            "worker-1",
        ),
        (
            [Rank("worker-0", report_age=60, step=3), Rank("worker-1", report_age=61, step=4)],
            "worker-0",  # both are silent: it is a step behind
        ),
        ([Rank("worker-0", step=3), Rank("worker-1", step=3, reported=True)], "worker-1"),
        ([Rank("worker-0", step=3), Rank("worker-1", reported=True)], "worker-1"),
        (
            [Rank("worker-0", step=3), Rank("worker-1", step=3), Rank("worker-2", step=4, reported=True)],
            "worker-2",  # two are behind: neither stands out
        ),
        ([Rank("worker-0")], "worker-0"),
        ([Rank("worker-1"), Rank("worker-0")], "worker-0"),
        (
            [Rank("worker-0", report_age=1, stopped=True, step=9), Rank("worker-1", report_age=99, step=1)],
            "worker-0",
        ),
    ],
)
def test_blame_goes_by_the_surest_sign(ranks: list[Rank], replica: str) -> None:
    assert blame(ranks) == replica
    assert blame(reversed(ranks)) == replica


def test_one_that_waits_for_the_evaluator_knows_for_how_long() -> None:
    watch = StallWatch()
    watch.observe(TRAINING, 10.0)
    watch.observe({**TRAINING, "state": "waiting"}, 20.0)
    assert not watch.stalled(1e6, 60.0)


@pytest.mark.parametrize(
    ("state", "stalls"),
    [("saving", False), ("preparing", False), ("evaluating", False), ("starting", False), ("training", True)],
)
def test_one_that_waits_for_storage_has_not_stalled_unless_it_trains_meanwhile(
    state: str, stalls: bool
) -> None:
    """A save in the background is no reason for a step that doesn't end."""
    watch = StallWatch()
    watch.observe(TRAINING, 0.0)
    watch.observe({**TRAINING, "state": state, "waitingForStorage": "/output is away"}, 10.0)
    watch.observe({**TRAINING, "state": state, "waitingForStorage": "/output is full"}, 60.0)
    assert watch.stalled(1e6, 60.0) is stalls
    assert watch.stalled(75.0, 60.0) is stalls
    watch.observe({**TRAINING, "state": "training", "step": 6}, 2e6)
    assert watch.stalled(2e6 + 60.0, 60.0)
