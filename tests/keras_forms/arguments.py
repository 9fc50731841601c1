"""Arguments of `fit`, `evaluate`, `predict` and `compile`."""

import keras
import numpy as np
import tensorflow as tf

from support.trainer.form_values import classes, dense, numbers, seen
from support.trainer.forms import form


def fitted(scope, model=None, **words):
    x, y = numbers()
    model = model or dense(scope)
    return seen(
        model, model.fit(x, y, **{"batch_size": 24, "epochs": 2, "shuffle": False, "verbose": 0, **words})
    )


def classifier(scope):
    with scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
        model.compile(
            "sgd", "sparse_categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["accuracy"]
        )
    return model


@form(workers=3, killed=True)
def class_weight(scope):
    x, y = classes()
    model = classifier(scope)
    history = model.fit(
        x, y, batch_size=24, epochs=2, shuffle=False, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, verbose=0
    )
    return seen(model, history)


@form(workers=3)
def sample_weight(scope):
    return fitted(scope, sample_weight=np.linspace(0, 2, 96))


@form()
def sample_weight_in_evaluate(scope):
    x, y = numbers()
    model = dense(scope, weighted_metrics=["mae"])
    return seen(evaluated=model.evaluate(x, y, sample_weight=np.linspace(0, 2, 96), verbose=0))


@form(workers=3, killed=True)
def validation_split(scope):
    return fitted(scope, validation_split=0.25)


@form()
def validation_every_second_epoch(scope):
    x, y = numbers(40)
    return fitted(scope, validation_data=(x, y), validation_freq=2, epochs=4)


@form()
def validation_batch_size(scope):
    x, y = numbers(40)
    return fitted(scope, validation_data=(x, y), validation_batch_size=7)


@form()
def validation_steps(scope):
    x, y = numbers(40)
    return fitted(scope, validation_data=(x, y), validation_batch_size=8, validation_steps=2)


@form(often=True)
def validation_with_weights(scope):
    x, y = numbers(40)
    return fitted(scope, validation_data=(x, y, np.linspace(0, 2, 40)))


@form(killed=True)
def steps_per_epoch(scope):
    return fitted(scope, batch_size=12, steps_per_epoch=3, epochs=5, shuffle=True)


@form()
def steps_per_epoch_beyond_the_data(scope):
    return fitted(scope, steps_per_epoch=3, epochs=4)


@form()
def initial_epoch(scope):
    return fitted(scope, initial_epoch=2, epochs=4)


@form()
def no_epochs(scope):
    x, y = numbers()
    model = dense(scope)
    history = model.fit(x, y, epochs=0, verbose=0)
    return seen(model, history)


@form(often=True)
def batch_size_of_one_row(scope):
    x, y = numbers(6)
    model = dense(scope)
    return seen(model, model.fit(x, y, batch_size=1, epochs=1, shuffle=False, verbose=0))


@form()
def batch_size_that_nothing_divides(scope):
    return fitted(scope, batch_size=15)


@form()
def batch_size_larger_than_the_data(scope):
    return fitted(scope, batch_size=128)


@form(workers=3)
def default_batch_size(scope):
    return fitted(scope, batch_size=None)


@form()
def compiled_by_xla(scope):
    return fitted(scope, dense(scope, jit_compile=True))


class Words(keras.layers.Layer):
    """XLA knows no strings."""

    def call(self, x):
        return x + 0.1 * tf.strings.to_number(tf.strings.as_string(tf.stop_gradient(x)))


@form(workers=(1, 2))
def what_xla_can_not_compile(scope):
    x, y = numbers()
    with scope():
        layers = [keras.layers.Dense(4), Words(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=tf.distribute.has_strategy())
    before = model.predict(x, verbose=0)
    model.jit_compile = tf.distribute.has_strategy()  # each call finds out by itself
    history = model.fit(x, y, epochs=2, verbose=0)
    return seen(model, history, before=before, evaluated=model.evaluate(x, y, verbose=0))


@form()
def run_eagerly(scope):
    return fitted(scope, dense(scope, run_eagerly=True), epochs=1)


@form()
def compiled_outside_the_scope(scope):
    model = dense(scope)
    model.compile("adam", "mse", metrics=[keras.metrics.MeanAbsoluteError()])
    return {**fitted(scope, model), "evaluated": model.evaluate(*numbers(), verbose=0)}


@form(often=True)
def compiled_outside_the_scope_and_run_eagerly(scope):
    model = dense(scope)
    model.compile("sgd", "mse", metrics=["mae"], run_eagerly=True)
    return fitted(scope, model, epochs=1)


@form(often=True, killed=True)
def steps_per_execution(scope):
    return fitted(scope, dense(scope, steps_per_execution=3))


@form()
def loss_scaled_automatically(scope):
    return fitted(scope, dense(scope, auto_scale_loss=True))


@form()
def loss_not_scaled(scope):
    return fitted(scope, dense(scope, auto_scale_loss=False))


@form(workers=3)
def several_losses_weighted(scope):
    x, y = numbers()
    with scope():
        inputs = keras.Input((4,))
        model = keras.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)])
        model.compile("sgd", ["mse", "mae"], loss_weights=[1.0, 0.3])
    return seen(model, model.fit(x, [y, y], batch_size=24, epochs=2, shuffle=False, verbose=0))


@form()
def loss_summed_over_the_batch(scope):
    return fitted(
        scope,
        dense(
            scope, loss=keras.losses.MeanSquaredError(reduction="sum"), optimizer=keras.optimizers.SGD(0.001)
        ),
    )


@form(often=True)
def predictions_of_a_few_steps(scope):
    x, _ = numbers()
    return seen(predictions=dense(scope).predict(x, batch_size=16, steps=2, verbose=0))


@form()
def progress_bar(scope):
    return fitted(scope, verbose=2)
