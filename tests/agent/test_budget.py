"""Which failures end training at once, and which are the same again: the agents' rule, without any agent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.agents.tracebacks import MISTAKES, OTHERS, TYPE_ERROR, show
from trainjob_trainer.agent.budget import Budget
from trainjob_trainer.contract.exits import ExitCode, meaning_of
from trainjob_trainer.contract.reports import Failure
from trainjob_trainer.contract.restarts import RestartCounts


def crash(log: str, code: int = 1, *, replica: str = "worker-0", attempt: int = 1, **more: int) -> Failure:
    return Failure(replica, f"pod-{replica}", 1, attempt, "Crashed", code, log_tail=log, **more)


@pytest.mark.parametrize(("code", "log"), MISTAKES)
def test_a_mistake_ends_the_first_start_at_once(code: int, log: str) -> None:
    verdict = Budget(RestartCounts(), 3, 0.0).judge(crash(log, code), 0.0, 5.0)
    assert verdict.give_up
    assert verdict.failure.permanent


@pytest.mark.parametrize(("code", "log"), OTHERS)
def test_other_failures_are_tried_again(code: int, log: str) -> None:
    verdict = Budget(RestartCounts(), 3, 0.0).judge(crash(log, code), 0.0, 5.0)
    assert not verdict.give_up
    assert not verdict.failure.permanent


@pytest.mark.parametrize(
    ("counts", "failure"),
    [
        (RestartCounts(), crash(TYPE_ERROR, step=1)),
        (RestartCounts(attempt=1), crash(TYPE_ERROR, attempt=2)),
        (RestartCounts(attempt=1, furthest_step=40), crash(TYPE_ERROR)),
    ],
)
def test_a_mistake_after_a_step_or_on_a_later_start_is_tried_again(
    counts: RestartCounts, failure: Failure
) -> None:
    assert not Budget(counts, 3, 0.0).judge(failure, 0.0, 5.0).give_up


def test_a_mistake_before_the_first_step_was_done_counts_as_before_any() -> None:
    assert Budget(RestartCounts(), 3, 0.0).judge(crash(TYPE_ERROR, step=0), 0.0, 5.0).give_up


@pytest.mark.parametrize(
    ("raised", "places", "step", "gives_up"),
    [
        ("ValueError: boom", ["train.py:3"] * 2, None, True),
        ("KeyError: 'x'", ["train.py:3"] * 2, 0, True),
        ("ValueError: boom", ["train.py:3"] * 2, 7, False),
        ("ValueError: boom", ["train.py:3"] * 3, 7, True),
        ("RuntimeError: boom", ["train.py:3"] * 2, None, False),
        ("FileNotFoundError: x", ["train.py:3"] * 2, None, False),
        ("http.Error: boom", ["train.py:3"] * 2, None, False),
        ("RuntimeError: boom", ["train.py:3"] * 3, None, True),
        ("ValueError: boom", ["train.py:3", "train.py:4", "train.py:3"], None, False),
    ],
)
def test_the_same_exception_at_the_same_place_is_the_same_failure(
    raised: str, places: list[str], step: int | None, gives_up: bool
) -> None:
    """Before the first step two are enough, unless something outside the program may heal it."""
    budget = Budget(RestartCounts(attempt=1), 9, 0.0)
    for number, place in enumerate(places):
        failure = crash(show(raised, place), replica=f"worker-{number}", attempt=2 + number)
        verdict = budget.judge(replace(failure, step=step), 0.0, 5.0)
    assert verdict.give_up == gives_up
    assert verdict.failure.repeated == gives_up


def test_without_an_exception_it_is_the_same_replicas_alone() -> None:
    budget = Budget(RestartCounts(attempt=1), 9, 0.0)
    verdicts = [budget.judge(crash("", 3, replica=f"worker-{n}", attempt=2 + n), 0.0, 5.0) for n in range(3)]
    assert not any(verdict.give_up for verdict in verdicts)


@pytest.mark.parametrize(
    ("code", "waited_for"),
    [
        *((int(code), True) for code in (ExitCode.OUTPUT_FULL, ExitCode.STORAGE_UNAVAILABLE)),
        *((code, False) for code in (1, 137, int(ExitCode.OUTPUT_UNWRITABLE), int(ExitCode.STALLED))),
    ],
)
@pytest.mark.parametrize("step", [None, 8])
def test_storage_that_is_away_is_waited_for_without_an_end(
    code: int, waited_for: bool, step: int | None
) -> None:
    """Never the same failure, never counted; each wait is longer than the one before, up to a minute."""
    budget, now, waits = Budget(RestartCounts(attempt=1), 5, 0.0), 0.0, []
    for attempt in range(2, 14):
        failure = replace(crash("", code, attempt=attempt), step=step, counted=meaning_of(code).counted)
        verdict = budget.judge(failure, now, now + 5.0)
        waits.append(budget.not_before - now - 5.0)
        now = budget.not_before
        if verdict.give_up:
            break
    assert verdict.give_up is not waited_for
    if waited_for:
        assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, *[60.0] * 5]
        assert (budget.counts.counted, budget.counts.not_counted) == (0, 12)
    else:
        assert len(waits) == 3
