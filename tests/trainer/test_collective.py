"""What workers find out about each other before they train; the others are mocked."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import tensorflow as tf

from trainjob_trainer import CheckpointMismatch, InvalidConfiguration, Task
from trainjob_trainer.distribution import collective
from trainjob_trainer.distribution.collective import check_same_plan, check_same_weights, gather, weights_hash
from trainjob_trainer.recipe import TrainingPlan

PLAN = TrainingPlan(total_steps=30, epoch_steps=10, checkpoint_every=5, global_batch=8)
TASK = Task("worker", 1, {"worker": ("a:1", "b:1")})


def check(monkeypatch: pytest.MonkeyPatch, **writers: Any) -> None:
    numbers = dataclasses.replace(PLAN, **writers).numbers
    monkeypatch.setattr(collective, "broadcast", lambda *_: list(numbers.values()))
    check_same_plan(None, TASK, PLAN)


def test_workers_with_one_plan_train(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch)


def test_a_worker_with_other_data_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    words = (
        "worker-1 has another training before it than the first worker: 30 steps here, 36 there, 10 steps an "
        "epoch here, 12 there; all workers need the same data"
    )
    with pytest.raises(InvalidConfiguration, match=words):
        check(monkeypatch, total_steps=36, epoch_steps=12)


def test_endless_data_on_one_worker_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfiguration, match="10 steps an epoch here, 0 there;"):
        check(monkeypatch, epoch_steps=None)


def test_a_worker_that_would_not_ask_whether_to_stop_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfiguration, match="0 values without an improvement here, 3 there;"):
        check(monkeypatch, patience=3)


def test_what_each_worker_gives_comes_in_the_order_of_their_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [7, 0, 9]
    cluster = {"chief": ("a:1",), "worker": ("b:1", "c:1")}

    def added(_strategy: Any, _task: Task, offered: list[int]) -> list[int]:
        return [mine + theirs for mine, theirs in zip(offered, others, strict=True)]

    monkeypatch.setattr(collective, "_added", added)
    monkeypatch.setattr(collective, "is_collective", lambda _: True)
    assert gather(None, Task("worker", 0, cluster), 8) == [7, 8, 9]


def test_one_worker_agrees_with_itself() -> None:
    assert gather(None, Task("worker", 0, {}), 8) == [8]


def test_a_worker_that_restored_other_weights_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, writers = ({"model": [tf.Variable([1.0, value])]} for value in (2.0, 2.5))
    sent = [weights_hash(mine)]
    monkeypatch.setattr(collective, "broadcast", lambda *_: sent)
    check_same_weights(None, TASK, mine)
    sent = [weights_hash(writers)]
    with pytest.raises(CheckpointMismatch, match="worker-1: the weights restored here differ"):
        check_same_weights(None, TASK, mine)
