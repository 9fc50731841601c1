"""What workers find out about each other before they train; the others are mocked."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from trainjob_trainer import CheckpointMismatch, Task
from trainjob_trainer.distribution import collective
from trainjob_trainer.distribution.collective import check_same_weights, gather, weights_hash

TASK = Task("worker", 1, {"worker": ("a:1", "b:1")})


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
