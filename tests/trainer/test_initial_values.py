"""What workers decide about the variables that they have created; other workers are numbers here."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tensorflow as tf

from trainjob_trainer import InvalidConfiguration, Task
from trainjob_trainer.distribution import initial_values
from trainjob_trainer.distribution.initial_values import InitialValues

CLUSTER = {"chief": ("a:1",), "worker": ("b:1", "c:1")}


@pytest.mark.parametrize("more", [0, 1])
def test_workers_with_other_variables_are_named(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def gathered(_: object, __: Task, mine: Sequence[int]) -> list[list[int]]:
        return [list(mine), list(mine), [mine[0] + more, mine[1]]]

    monkeypatch.setattr(initial_values, "gather_all", gathered)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    values = InitialValues(strategy, Task("worker", 0, CLUSTER))
    values.install()
    with strategy.scope():
        tf.Variable(1.0)
        variable = tf.Variable(2.0, name="kernel")
        if more:
            words = (
                r"worker-1 has created 3 variables where chief-0 has created 2 \(the newest here is kernel"
            )
            with pytest.raises(InvalidConfiguration, match=words):
                values.agree()
    assert variable.numpy() == 2.0
