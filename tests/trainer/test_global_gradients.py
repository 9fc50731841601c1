"""Which optimizers need their gradients summed first, and what of Keras and TensorFlow that rests on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from trainjob_trainer.distribution.strategy import is_mirrored
from trainjob_trainer.keras.gradients import are_needed
from trainjob_trainer.keras.steps import reason_against

SGD = keras.optimizers.SGD
layers = keras.layers


@pytest.mark.parametrize(
    ("build", "needed"),
    [
        (lambda: None, False),
        (SGD, False),
        (lambda: keras.optimizers.AdamW(weight_decay=0.1, use_ema=True), False),
        (lambda: SGD(loss_scale_factor=8.0), False),
        (lambda: SGD(clipnorm=1.0), True),
        (lambda: SGD(clipvalue=1.0), True),
        (lambda: SGD(global_clipnorm=1.0), True),
        (lambda: SGD(gradient_accumulation_steps=2), True),
        (lambda: SGD(use_ema=True, ema_overwrite_frequency=2), True),
        (lambda: keras.optimizers.LossScaleOptimizer(SGD()), True),
        (lambda: keras.optimizers.LossScaleOptimizer(SGD(clipnorm=1.0)), True),
    ],
)
def test_only_settings_that_look_at_gradients_change_their_way(
    build: Callable[[], Any], needed: bool
) -> None:
    mirrored = tf.distribute.MirroredStrategy(["CPU:0"])
    assert are_needed(build(), mirrored) is needed
    assert not are_needed(build(), tf.distribute.get_strategy())
    assert not is_mirrored(tf.distribute.OneDeviceStrategy("CPU:0"))


def test_canary_keras_and_tensorflow_have_what_is_replaced() -> None:
    """When this fails, look at `apply_globally` with the new release at hand."""
    scaling = keras.optimizers.LossScaleOptimizer
    parameters = ["self", "grads", "trainable_variables"]
    for name in ("_tf_apply", "_common_apply", "apply"):
        assert list(inspect.signature(getattr(scaling, name)).parameters) == parameters
    assert list(inspect.signature(SGD.apply).parameters) == parameters
    assert list(inspect.signature(SGD.scale_loss).parameters) == ["self", "loss"]
    assert tf.distribute.MirroredStrategy(["CPU:0"]).extended._use_merge_call() is True
    # Outside replicas Keras sums nothing: its own words for it.
    optimizer = SGD()
    pair = [(tf.constant(1.0), tf.Variable(1.0))]
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        assert optimizer._all_reduce_sum_gradients(pair) == pair


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


@pytest.mark.parametrize(
    ("kind", "layer", "words"),
    [
        (keras.Model, layers.BatchNormalization(), None),
        (keras.Model, layers.BatchNormalization(synchronized=True, name="norm"), "layer norm meets"),
        (OwnStep, layers.Dropout(0.5), "OwnStep has a train_step of its own"),
    ],
)
def test_where_xla_can_not_be_had(kind: type[keras.Model], layer: Any, words: str | None) -> None:
    inputs = keras.Input((2,))
    reason = reason_against(kind(inputs, layer(inputs)))
    assert reason is None if words is None else words in str(reason)
