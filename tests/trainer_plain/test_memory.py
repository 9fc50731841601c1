from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainjob_trainer.keras import writers
from trainjob_trainer.keras.callback_state import put_back, remembered, remembered_weights


def callbacks() -> list[Any]:
    return [
        keras.callbacks.EarlyStopping(monitor="val_loss", restore_best_weights=True),
        keras.callbacks.ModelCheckpoint("x.keras", save_best_only=True),
        SimpleNamespace(best=1.0),
    ]


def test_deciding_callbacks_go_on_where_they_were() -> None:
    before, after = callbacks(), callbacks()
    before[0].wait, before[0].best, before[0].best_weights = 3, np.float32(0.25), [np.arange(3.0)]
    before[1].best = 0.75
    put_back(after, remembered(before), remembered_weights(before))
    assert (after[0].wait, after[0].best, after[1].best) == (3, 0.25, 0.75)
    np.testing.assert_array_equal(after[0].best_weights[0], np.arange(3.0))


def test_a_script_with_other_callbacks_starts_them_anew() -> None:
    before, after = callbacks(), callbacks()[::-1]
    before[0].wait = 3
    put_back(after, remembered(before), {})
    assert after[2].wait == 0


class Own(keras.callbacks.Callback):
    """A user's own; `value` is what it counts, averages or looks at."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value, self.name = value, "mine"


class Patient(keras.callbacks.EarlyStopping):
    """One of Keras's, whose state is kept."""


@pytest.mark.parametrize(
    ("before", "after", "is_lost"),
    [
        *((one, one, False) for one in (0, 2.5, "a", None, [1], {"a": (1, 2)})),
        (0, 3, True),
        (0.0, 0.5, True),
        (None, "best", True),
        (True, False, True),
        ([], [0.5], True),
        ({}, {"epochs": 2}, True),
        (list(range(50)), [*range(49), 0], True),
        ([np.zeros((2, 2))], [np.full((2, 2), 0.5)], True),
        ([np.zeros((2, 2))], [np.zeros((2, 2))], False),
        (tf.Variable([0.0]), tf.Variable([1.0]), True),
        (keras.Variable([0.0]), keras.Variable([1.0]), True),
        (keras.Variable([1.0]), keras.Variable([1.0]), False),
        (lambda: 1, lambda: 2, False),
        (keras.layers.Dense(1), keras.layers.Dense(2), False),
        (SimpleNamespace(a=1), SimpleNamespace(a=2), False),
    ],
)
def test_what_a_callback_of_the_users_own_loses_is_named(before: Any, after: Any, is_lost: bool) -> None:
    logs = keras.callbacks.LambdaCallback(on_epoch_end=print)
    lost = put_back([Patient(), Own(before), logs], remembered([Patient(), Own(after), logs]), {})
    assert lost == ["Own.value"] * is_lost
    assert put_back([logs, Own(before)], remembered([Own(after), Own(after)]), {}) == ["Own.value"] * is_lost


def test_only_the_writer_writes_with_orbax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "current_session", lambda: SimpleNamespace(is_writer=False))
    written: list[int] = []
    kind = type("OrbaxCheckpoint", (), {"__module__": "keras.src.callbacks.orbax_checkpoint"})
    callback: Any = kind()
    callback.checkpointer = SimpleNamespace(save_checkpointables_async=lambda step, _: written.append(step))
    writers.isolate([callback])
    callback.checkpointer.save_checkpointables_async(3, {}).result()
    callback.checkpointer.close()
    assert not written
