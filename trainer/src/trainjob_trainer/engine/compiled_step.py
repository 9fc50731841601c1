"""XLA for the forward and the backward pass of Keras's own training step, under any number of workers.

XLA can't compile what meets other workers: TensorFlow refuses it on CPUs and ends the process on GPUs. So the
two passes are one compiled function, and gradients are summed and applied outside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as losses

from trainjob_trainer.reporting.lines import announce


def build_step(model: Any, *, compiled: bool, is_writer: bool = True) -> Callable[[Any], Any]:
    """The training step of a replica.

    Args:
        model: compiled in Keras's sense.
        compiled: whether XLA is asked for; where it can't be had, a line says why.
        is_writer: whether that line is this replica's to print.
    """
    reason = reason_against(model) if compiled else None
    if reason and is_writer:
        announce(f"jit_compile=True is left out: {reason}")
    if reason or not compiled:
        step: Callable[[Any], Any] = model.train_step
        return step
    return lambda data: _train_step(model, data)


def reason_against(model: Any) -> str | None:
    """Why XLA can't compile this model's forward and backward pass; None if it can."""
    if not type(model).train_step.__module__.startswith("keras."):
        return f"{type(model).__name__} has a train_step of its own"
    for layer in model._flatten_layers():
        if getattr(layer, "synchronized", False):
            return f"the layer {layer.name} meets the other workers in the forward pass"
    return None


def _train_step(model: Any, data: Any) -> Any:
    """What Keras's own does, in two parts."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)

    # A function of its own for each replica: it holds that replica's variables.
    @tf.function(jit_compile=True, autograph=False)  # type: ignore[untyped-decorator,unused-ignore]
    def passes(x: Any, y: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True) if model._call_has_training_arg else model(x)
            loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weights, training=True)
            scaled = model.optimizer.scale_loss(loss)
        return y_pred, loss, tape.gradient(scaled, model.trainable_weights)

    y_pred, loss, gradients = passes(x, y, weights)
    model.optimizer.scale_loss(loss)  # for who watches the loss: the call within can't be seen outside
    examples = tf.shape(next(one for one in tf.nest.flatten(x) if one is not None))[0]
    model._loss_tracker.update_state(losses.unscale_loss_for_distribution(loss), sample_weight=examples)
    if gradients:
        model.optimizer.apply(gradients, model.trainable_weights)
    return model.compute_metrics(x, y, y_pred, sample_weight=weights)
