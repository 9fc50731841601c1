"""Kinds of use that Keras's own tests have and scripts seldom show, each in a few lines."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from support.trainer.form_values import dense, numbers, seen
from support.trainer.forms import form

KEPT = {"batch_size": 16, "shuffle": False, "verbose": 0}


class Batches(keras.callbacks.Callback):
    """Notes the number of each batch that it is told of."""

    def __init__(self):
        super().__init__()
        self.numbers = []

    def on_train_batch_end(self, batch, logs=None):
        self.numbers.append(batch)

    on_test_batch_end = on_predict_batch_end = on_train_batch_end


class OwnNumbers(keras.Model):
    """Its steps return numbers of Python."""

    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(1, kernel_initializer="ones")

    def call(self, inputs):
        return self.inner(inputs)

    def train_step(self, data):
        return {**super().train_step(data), "rate": 0.5}

    def test_step(self, data):
        return {**super().test_step(data), "rate": 0.25, "count": 3}


def many_steps(scope, model, rows=100, **words):
    """Seven batches, which `steps_per_execution` doesn't divide, in all that takes many in a call."""
    x, y = numbers(rows)
    batches = Batches()
    history = model.fit(x, y, epochs=2, callbacks=[batches], **{**KEPT, **words})
    evaluated = model.evaluate(x, y, batch_size=16, verbose=0, callbacks=[batches])
    predicted = model.predict(x, batch_size=16, verbose=0, callbacks=[batches])
    return seen(model, history, evaluated=evaluated, predicted=predicted, batches=batches.numbers)


@form(workers=3)
def three_steps_a_call(scope):
    return many_steps(scope, dense(scope, steps_per_execution=3))


@form()
def more_steps_a_call_than_batches(scope):
    return many_steps(scope, dense(scope, steps_per_execution=50))


@form()
def three_eager_steps_a_call(scope):
    return many_steps(scope, dense(scope, steps_per_execution=3, run_eagerly=True))


@form()
def three_steps_a_call_in_epochs_of_four(scope):
    return many_steps(scope, dense(scope, steps_per_execution=3), 160, steps_per_epoch=4)


@form()
def three_steps_a_call_unseen(scope):
    x, y = numbers(100)
    model = dense(scope, steps_per_execution=3)
    return seen(model, model.fit(x, y, epochs=2, validation_data=(x, y), **KEPT))


def own_numbers(scope, **words):
    with scope():
        model = OwnNumbers()
        model.compile("sgd", "mse", **words)
    x, y = numbers(100)
    history = model.fit(x, y, epochs=2, validation_data=(x, y), **KEPT)
    return seen(model, history, told=model.evaluate(x, y, batch_size=16, verbose=0, return_dict=True))


@form()
def numbers_of_python_in_the_logs(scope):
    return own_numbers(scope)


@form()
def numbers_of_python_from_three_steps_a_call(scope):
    return own_numbers(scope, steps_per_execution=3)


class SinceTheFirstEpoch(keras.metrics.MeanSquaredError):
    """Its own `reset_state` resets nothing."""

    def reset_state(self):
        pass


@form()
def metric_with_a_reset_of_its_own(scope):
    with scope():
        metric = SinceTheFirstEpoch()
    x, y = numbers()
    model = dense(scope, metrics=[metric])
    history = model.fit(x, y, epochs=3, validation_data=(x, y), callbacks=[Batches()], **KEPT)
    return seen(model, history)


@form()
def compiled_by_xla_in_all_methods(scope):
    x, y = numbers(100)
    model = dense(scope, jit_compile=True)
    before = model.evaluate(x, y, batch_size=16, verbose=0)
    on_batch = [model.train_on_batch(x[:20], y[:20]), model.test_on_batch(x[:20], y[:20])]
    history = model.fit(x, y, epochs=2, validation_data=(x, y), **KEPT)
    predicted = model.predict(x, batch_size=16, verbose=0)
    return seen(model, history, before=before, on_batch=on_batch, predicted=predicted)


@form(workers=3)
def built_by_an_odd_batch(scope):
    x, y = numbers(50)
    with scope():
        model = keras.Sequential([layers.Dense(3, kernel_initializer="ones"), layers.Dense(1)])
        model.compile("sgd", "mse")
    history = model.fit(x, y, epochs=2, validation_data=(x, y), **{**KEPT, "batch_size": 5})
    return seen(model, history, predicted=model.predict(x, batch_size=7, verbose=0))


@form(workers=3)
def called_on_a_row_outside_the_scope(scope):
    x, y = numbers(54)
    with scope():
        model = keras.Sequential([layers.Dense(3), layers.Dense(1)])
        model.compile("adam", "mse")
    model(x[:1])
    return seen(model, model.fit(x, y, epochs=2, **KEPT))


@form(workers=3)
def input_of_a_whole_batch(scope):
    x, y = numbers(32)
    with scope():
        model = keras.Sequential([keras.Input((4,), batch_size=4), layers.Dense(1)])
        model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, epochs=2, **{**KEPT, "batch_size": 4}))


@form(workers=3)
def ragged_words(scope):
    rows = [[1, 2], [3], [4, 5, 6], [2], [1, 1], [5], [6, 2], [3, 3, 3]]
    x, y = tf.ragged.constant(rows, dtype="int64"), np.arange(8, dtype="float32")[:, None]
    with scope():
        inputs = keras.Input((None,), dtype="int64", ragged=True)
        hidden = layers.GlobalAveragePooling1D()(layers.Embedding(10, 3)(inputs))
        model = keras.Model(inputs, layers.Dense(1)(hidden))
        model.compile("sgd", "mse")
    kept = {**KEPT, "batch_size": 5}
    history = model.fit(x, y, epochs=2, **kept)
    evaluated = model.evaluate(x, y, batch_size=5, verbose=0)
    return seen(model, history, evaluated=evaluated, predicted=model.predict(x, batch_size=5, verbose=0))


def pieces(rows=100, size=16, repeats=1):
    x, y = numbers(rows)
    for _ in range(repeats):
        for begin in range(0, rows, size):
            yield x[begin : begin + size], y[begin : begin + size]


def of_unknown_length(scope, **compiled):
    model, batches = dense(scope, **compiled), Batches()
    history = model.fit(pieces(), validation_data=pieces(64), callbacks=[batches], verbose=0)
    evaluated = model.evaluate(pieces(), verbose=0)
    predicted = model.predict(pieces(), verbose=0)
    return seen(model, history, evaluated=evaluated, predicted=predicted, batches=batches.numbers)


@form(workers=(1, 3))
def generators_that_end(scope):
    return of_unknown_length(scope)


@form()
def generators_that_end_with_three_steps_a_call(scope):
    return of_unknown_length(scope, steps_per_execution=3)


@form()
def generator_that_a_callback_ends(scope):
    class AtThree(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 2

    model = dense(scope)
    return seen(model, model.fit(pieces(repeats=100), callbacks=[AtThree()], verbose=0))


@form(workers=(1, 2), refused="the data ended within an epoch of steps_per_epoch batches")
def generator_that_ends_within_an_epoch(scope):
    return seen(history=dense(scope).fit(pieces(64), steps_per_epoch=6, verbose=0))
