"""What is multiplied by what; `tests/keras_forms/losses.py` shows that it all trains as one process does."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

from support.trainer.alone import prepare_fit
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.keras.shares import (
    Part,
    by_share,
    retried,
    weighed,
    without_share,
)

TRUE, PREDICTED = tf.zeros([2, 1]), tf.constant([[1.0], [3.0]])
MEAN, SUM = 2.0, 4.0
"""The absolute errors' mean and sum."""
SLICES = tf.IndexedSlices(tf.constant([[8.0]]), tf.constant([1]), tf.constant([3, 1]))


class MirroredExtended:
    """By whose name the strategy is known."""


class Plain(keras.Model):
    distribute_strategy = SimpleNamespace(num_replicas_in_sync=4, extended=MirroredExtended())


class Own(Plain):
    def train_step(self, data: Any) -> Any:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def _replaced() -> None:
    prepare_fit()


def share(step: Callable[[Any], Any], lines: list[str] | None = None, **env: str) -> Callable[[Any], Any]:
    return by_share(Own(), step, "train_step", env, [].append if lines is None else lines.append)


def gradient(value: float = 8.0) -> Any:
    """What an optimizer gets of a gradient."""
    got: list[Any] = []
    weighed(lambda grads, _: got.extend(grads))([tf.constant(value)])
    return got[0]


def absolute(reduction: str) -> Any:
    return keras.losses.MeanAbsoluteError(reduction=reduction)(TRUE, PREDICTED)


def replicas() -> int:
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


STEPS: dict[str, tuple[Callable[[], Any], float, bool]] = {
    # By name: the loss, what it is of one process's, and whether gradients are summed.
    "a mean of Keras's": (lambda: absolute("sum_over_batch_size"), MEAN, False),
    "a sum of Keras's": (lambda: absolute("sum"), SUM * 4, False),
    "the user's": (lambda: tf.reduce_mean(PREDICTED), MEAN, False),
    "the number is read": (lambda: (replicas(), tf.reduce_mean(PREDICTED))[1], MEAN, True),
    "Keras's after the number is read": (
        lambda: (replicas(), absolute("sum_over_batch_size"))[1],
        MEAN / 4,
        True,
    ),
    "Keras's before the number is read": (
        lambda: (absolute("sum_over_batch_size"), replicas())[0],
        MEAN / 4,
        True,
    ),
    "TensorFlow's average": (
        lambda: tf.nn.compute_average_loss(PREDICTED[:, 0], global_batch_size=8),
        SUM / 8,
        True,
    ),
    "TensorFlow's regularizer": (lambda: tf.nn.scale_regularization_loss(tf.constant(3.0)), 3.0, True),
}


@pytest.mark.parametrize("is_traced", [True, False])
@pytest.mark.parametrize("name", STEPS)
def test_a_loss_is_one_process_s_and_gradients_are_weighed(name: str, is_traced: bool) -> None:
    loss, expected, sums = STEPS[name]
    lines: list[str] = []
    step = share(lambda _: (loss(), gradient()), lines)
    found = retried(tf.function(step, autograph=False) if is_traced else step)(PREDICTED)
    assert [float(one) for one in found] == pytest.approx([expected, 8.0 if sums else 2.0])
    [line] = lines
    assert ("summed" if sums else "averaged") in line


def test_gradients_count_by_the_rows() -> None:
    step = share(lambda _: (gradient(), absolute("sum")))
    assert [float(one) for one in step(Part(PREDICTED, tf.constant(0.5)))] == [4.0, SUM * 2]


def test_some_gradients_are_none_or_rows_or_no_gradients() -> None:
    got: list[Any] = []
    scale = SimpleNamespace(overwrite_with_gradient=True)
    variables = [None, None, scale]

    def step(_: Any) -> None:
        weighed(lambda grads, _: got.extend(grads))([None, SLICES, tf.constant(8.0)], variables)

    share(step)(PREDICTED)
    assert got[0] is None
    assert got[1].values.numpy().tolist() == [[2.0]]
    assert float(got[2]) == 8.0


def test_within_an_optimizer_and_outside_a_step_nothing_is_weighed() -> None:
    assert float(gradient()) == 8.0
    within = weighed(lambda grads, _: within_again(grads))
    got: list[float] = []
    within_again = weighed(lambda grads, _: got.append(float(grads[0])))
    share(lambda _: within([tf.constant(8.0)]))(PREDICTED)
    assert got == [2.0]


def test_a_traced_step_of_the_users_reads_the_share_of_each_call() -> None:
    """It is traced once, and called from two other traces."""
    step = share(tf.function(lambda _: gradient()))
    seen = [tf.function(step)(Part(PREDICTED, tf.constant(one))) for one in (0.5, 0.25)]
    assert [float(one) for one in seen] == [4.0, 2.0]


@pytest.mark.parametrize(("first", "mean"), [(1.0, 3.0), (0.0, 0.0)])
def test_metrics_leave_out_rows_that_another_device_has(first: float, mean: float) -> None:
    class Tracking(Own):
        def __init__(self) -> None:
            super().__init__()
            self.tracker = keras.metrics.Mean()

    model = Tracking()
    step = by_share(model, lambda _: model.tracker.update_state(3.0), "train_step", {}, print)
    step(Part(PREDICTED, tf.constant(0.5), tf.constant([2.0, first])))
    assert float(model.tracker.result()) == mean


def test_a_metric_whose_state_is_no_sum_is_named() -> None:
    class Largest(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="largest")
            self.value = self.add_variable((), "zeros")

        def update_state(self, value: Any) -> None:
            self.value.assign(keras.ops.maximum(self.value, value))

    class Tracking(Own):
        def __init__(self) -> None:
            super().__init__()
            self.largest = Largest()

    model, lines = Tracking(), list[str]()
    by_share(model, lambda _: model.largest.update_state(3.0), "train_step", {}, lines.append)(PREDICTED)
    assert any(
        line.startswith("the metric largest: its variables are assigned, not added to") for line in lines
    )


def test_a_setting_decides() -> None:
    lines: list[str] = []
    step = share(lambda _: gradient(), lines, TRAIN_GRADIENTS="sum")
    assert float(step(PREDICTED)) == 8.0
    assert lines == [
        "TRAIN_GRADIENTS=sum: gradients are summed over the 4 replicas, as TensorFlow does; "
        "TRAIN_GRADIENTS=average averages them"
    ]
    assert float(share(lambda _: (replicas(), gradient())[1], TRAIN_GRADIENTS="average")(PREDICTED)) == 2.0
    with pytest.raises(InvalidConfiguration, match="TRAIN_GRADIENTS: must be average or sum, got 'mean'"):
        share(print, TRAIN_GRADIENTS="mean")


def test_a_line_is_for_the_users_code_only() -> None:
    lines: list[str] = []
    by_share(Plain(), lambda _: absolute("sum"), "train_step", {}, lines.append)(PREDICTED)
    assert lines == []


@pytest.mark.parametrize("data", [SimpleNamespace(), (1, 2)])
def test_the_rows_alone(data: Any) -> None:
    assert without_share(data) is data
    assert without_share(Part(data, 0.5)) is data
