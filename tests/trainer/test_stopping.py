"""Which value is the best, and when training ends: decided from the values alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob_trainer import InvalidConfiguration
from trainjob_trainer.early_stopping import (
    Decision,
    History,
    Rule,
    Value,
    check_known,
    decide,
    explain,
    is_larger_better,
    ranked,
)

NAN, INF = math.nan, math.inf


def seen(values: Sequence[float], since: int = 0) -> History:
    return History("loss", tuple(Value(10 * n, one) for n, one in enumerate(values, 1)), since)


@pytest.mark.parametrize(
    ("values", "rule", "best", "waited", "stop"),
    [
        ([], Rule("loss", patience=1), None, 0, False),
        ([3.0, 2.0, 1.0], Rule("loss", patience=1), 30, 0, False),
        ([3.0, 2.0, 2.5], Rule("loss", patience=1), 20, 1, True),
        ([3.0, 2.0, 2.5, 1.0], Rule("loss", patience=2), 40, 0, False),
        ([3.0, 2.0, 2.0, 2.0], Rule("loss", patience=2), 20, 2, True),
        ([3.0, 2.0, 2.5, 2.5, 2.5], Rule("loss"), 20, 3, False),
        ([1.0, 2.0, 1.5], Rule("accuracy", larger_is_better=True, patience=1), 20, 1, True),
        ([3.0, 2.9, 2.8, 2.4], Rule("loss", min_delta=0.5, patience=3), 40, 0, False),
        ([3.0, 2.5], Rule("loss", min_delta=0.5, patience=1), 10, 1, True),
        ([NAN, 2.0, NAN], Rule("loss", patience=2), 20, 1, False),
        ([NAN, NAN], Rule("loss", patience=2), None, 2, True),
        ([-INF, INF, 5.0], Rule("loss", patience=3), 30, 0, False),
        ([INF, 5.0], Rule("loss", larger_is_better=True), 20, 0, False),
    ],
)
def test_what_follows_from_the_values(
    values: list[float], rule: Rule, best: int | None, waited: int, stop: bool
) -> None:
    decision = decide(seen(values), rule)
    assert decision == Decision(decision.best, waited, stop)
    assert (decision.best and decision.best.step) == best


def test_with_more_steps_asked_for_patience_begins_anew_and_the_best_stays() -> None:
    stopped = dataclasses.replace(seen([1.0, 2.0, 2.0]), total_steps=100)
    rule = Rule("loss", patience=2)
    assert decide(stopped.asked_for(100, 30), rule).stop
    on = stopped.asked_for(200, 30)
    assert decide(on, rule) == Decision(Value(10, 1.0), 0, False)
    assert decide(on.with_value(40, 2.0), rule).waited == 1
    assert on.asked_for(200, 40) == on  # cut off and started again


def test_a_step_has_one_value_and_none_comes_late() -> None:
    history = seen([1.0, 2.0])
    assert history.with_value(20, 0.5) == history.with_value(10, 0.5) == history
    assert history.with_value(21, 0.5).values[-1] == Value(21, 0.5)


rules = st.builds(
    Rule,
    st.just("loss"),
    st.booleans(),
    st.integers(1, 4) | st.none(),
    st.sampled_from([0.0, 0.25, 1.0]),
)
numbers = st.lists(st.sampled_from([0.0, 0.2, 0.25, 0.5, 1.0, 2.0, NAN, INF, -INF]), max_size=12)


@given(values=numbers, cuts=st.sets(st.integers(0, 12)), rule=rules)
def test_a_run_that_is_cut_off_anywhere_decides_as_one_that_is_not(
    values: list[float], cuts: set[int], rule: Rule
) -> None:
    whole = cut = History("loss", total_steps=500)
    for number, value in enumerate(values):
        whole = whole.with_value(number + 1, value)
        cut = cut.with_value(number + 1, value)
        if number in cuts:
            saved = History.from_arrays(cut.to_arrays(), "loss")
            assert saved is not None
            cut = saved.asked_for(500, number + 1)
        assert decide(cut, rule) == decide(whole, rule)


@given(values=numbers, rule=rules)
def test_the_best_one_is_a_number_that_nothing_beats_by_enough(values: list[float], rule: Rule) -> None:
    history = seen(values)
    decision = decide(history, rule)
    finite = [one for one in history.values if math.isfinite(one.value)]
    assert (decision.best is None) == (not finite)
    order = ranked(history, rule)
    assert sorted(order) == sorted(finite)
    if decision.best is not None:
        assert order[0] == decision.best
        later = [one for one in finite if one.step > decision.best.step]
        assert not any(rule.improves(one.value, decision.best.value) for one in later)
        worth = [-one.value if rule.larger_is_better else one.value for one in order[1:]]
        assert worth == sorted(worth)


@given(values=numbers, rule=rules)
def test_training_ends_at_the_first_value_that_exhausts_its_patience(values: list[float], rule: Rule) -> None:
    stops = [decide(seen(values[:n]), rule).stop for n in range(len(values) + 1)]
    if rule.patience is None:
        assert not any(stops)
    elif True in stops:
        first = stops.index(True)
        assert decide(seen(values[:first]), rule).waited == rule.patience


def test_another_metrics_values_are_forgotten() -> None:
    arrays = seen([1.0]).to_arrays()
    assert History.from_arrays(arrays, "val_loss") is None
    assert History.from_arrays((), "loss") is None


@pytest.mark.parametrize(
    ("values", "monitor", "words"),
    [
        ([0.5, 0.12345, 1, 1, 1], "val_loss", "has not improved for 3 checkpoints; best 0.1235 at step 20"),
        ([0.5, 1], "loss", "has not improved for 1 epoch; best 0.5 at step 10"),
        ([NAN, NAN], "loss", "has not improved for 2 epochs; none of its values was a number"),
    ],
)
def test_why_training_ends_early(values: list[float], monitor: str, words: str) -> None:
    rule = Rule(monitor, patience=1)
    assert explain(decide(seen(values), rule), rule) == f"{monitor} {words}"


DIRECTIONS = {"accuracy": "up", "mean_absolute_error": "down", "error": "down"}


@pytest.mark.parametrize(
    ("mode", "monitor", "larger"),
    [
        ("auto", "loss", False),
        ("auto", "val_loss", False),
        ("auto", "val_digit_loss", False),
        ("auto", "accuracy", True),
        ("auto", "val_accuracy", True),
        ("auto", "digit_accuracy", True),
        ("auto", "mean_absolute_error", False),
        ("max", "loss", True),
        ("min", "f1", False),
        ("max", "val_f1", True),
    ],
)
def test_the_direction(mode: str, monitor: str, larger: bool) -> None:
    assert is_larger_better(mode, monitor, DIRECTIONS) is larger


def test_an_unknown_direction_is_asked_for() -> None:
    with pytest.raises(
        InvalidConfiguration, match=r"a larger val_f1 is a better one .* set mode to 'min' or"
    ):
        is_larger_better("auto", "val_f1", DIRECTIONS)


def test_a_metric_that_does_not_exist_is_refused_with_those_that_do() -> None:
    check_known("val_mae", ["mae", "loss"])
    with pytest.raises(
        InvalidConfiguration, match=r"no metric 'val_acc', only loss, mae, val_loss, val_mae$"
    ):
        check_known("val_acc", ["mae", "loss"])
