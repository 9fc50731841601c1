"""Which methods of a model are called, on how many models, and in which order."""

import keras
import numpy as np
import tensorflow as tf

from support.trainer.form_values import dense, numbers, seen
from support.trainer.forms import form

KEPT = {"batch_size": 24, "shuffle": False, "verbose": 0}


@form(workers=3, killed=True)
def two_fits(scope):
    x, y = numbers()
    model = dense(scope, keras.optimizers.Adam)
    first = model.fit(x, y, epochs=1, **KEPT)
    second = model.fit(x, y, epochs=2, **KEPT)
    return seen(model, second, first=first.history)


@form()
def trained_on_a_batch_before_fit(scope):
    x, y = numbers()
    model = dense(scope, lambda: keras.optimizers.SGD(0.1, clipnorm=0.05))
    model.train_on_batch(x[:24], y[:24])
    return seen(model, model.fit(x, y, epochs=2, **{**KEPT, "batch_size": 25}))


@form()
def second_fit_from_the_epoch_of_the_first(scope):
    x, y = numbers()
    model = dense(scope)
    first = model.fit(x, y, epochs=2, **KEPT)
    second = model.fit(x, y, epochs=3, initial_epoch=first.epoch[-1] + 1, **KEPT)
    return seen(model, second, first=first.history)


@form()
def compiled_anew_between_fits(scope):
    x, y = numbers()
    model = dense(scope)
    first = model.fit(x, y, epochs=1, **KEPT)
    with scope():
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    return seen(model, model.fit(x, y, epochs=1, **KEPT), first=first.history)


@form(workers=3)
def two_models(scope):
    x, y = numbers()
    first, second = dense(scope), dense(scope, keras.optimizers.Adam)
    one = first.fit(x, y, epochs=1, **KEPT)
    return seen(second, second.fit(x, y, epochs=1, **KEPT), one=one.history)


@form()
def folds(scope):
    x, y = numbers(72)
    losses = []
    for fold in range(3):
        held_out = np.arange(72) % 3 == fold
        model = dense(scope)
        model.fit(x[~held_out], y[~held_out], epochs=1, **KEPT)
        losses.append(model.evaluate(x[held_out], y[held_out], verbose=0))
    return seen(losses=losses)


@form()
def train_on_batch(scope):
    x, y = numbers()
    model = dense(scope)
    told = [model.train_on_batch(x[part::3], y[part::3], return_dict=True) for part in range(3)]
    return seen(model, told=told)


@form()
def test_on_batch(scope):
    x, y = numbers()
    return seen(told=dense(scope).test_on_batch(x, y, return_dict=True))


@form()
def predict_on_batch(scope):
    x, _ = numbers()
    return seen(predictions=dense(scope).predict_on_batch(x))


@form(workers=3)
def predict_before_and_after_fit(scope):
    x, y = numbers()
    model = dense(scope)
    before = model.predict(x, verbose=0)
    history = model.fit(x, y, epochs=1, **KEPT)
    return seen(model, history, before=before, after=model.predict(x, verbose=0))


@form(workers=3)
def evaluate_before_and_after_fit(scope):
    x, y = numbers()
    model = dense(scope)
    before = model.evaluate(x, y, verbose=0, return_dict=True)
    history = model.fit(x, y, epochs=1, **KEPT)
    return seen(model, history, before=before, after=model.evaluate(x, y, verbose=0, return_dict=True))


@form(workers=(1, 2))
def predict_rows_that_nothing_divides(scope):
    x, _ = numbers(101)
    return seen(predictions=dense(scope).predict(x, verbose=0))


@form()
def called_as_a_function(scope):
    x, y = numbers()
    model = dense(scope)
    history = model.fit(x, y, epochs=1, **KEPT)
    return seen(model, history, called=keras.ops.convert_to_numpy(model(x)))


@form()
def saved_and_loaded(scope):
    x, y = numbers()
    model = dense(scope)
    history = model.fit(x, y, epochs=1, **KEPT)
    model.save("model.keras")
    model.save_weights("model.weights.h5")
    loaded = keras.models.load_model("model.keras")
    return seen(model, history, loaded=loaded.get_weights(), predictions=loaded.predict(x, verbose=0))


@form()
def cloned(scope):
    x, y = numbers()
    model = dense(scope)
    model.fit(x, y, epochs=1, **KEPT)
    with scope():
        clone = keras.models.clone_model(model)
        clone.set_weights(model.get_weights())
        clone.compile("sgd", "mse")
    return seen(clone, clone.fit(x, y, epochs=1, **KEPT))


@form()
def model_outside_the_scope(scope):
    x, y = numbers()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, epochs=1, **KEPT))


@form(workers=(1, 2), devices=2)
def fit_on_several_devices(scope):
    x, y = numbers()
    model = dense(scope)
    history = model.fit(x, y, epochs=2, validation_split=0.25, **KEPT)
    return seen(model, history, evaluated=model.evaluate(x, y, verbose=0))


@form(often=True, devices=2)
def fit_on_several_devices_with_unequal_parts(scope):
    x, y = numbers(95)
    model = dense(scope)
    history = model.fit(x, y, batch_size=27, epochs=2, shuffle=False, verbose=0)
    return seen(model, history, predictions=model.predict(x, verbose=0))


@form(devices=2)
def own_train_step_on_several_devices(scope):
    class OwnStep(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                prediction = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=prediction)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            for metric in self.metrics:
                metric.update_state(*((loss,) if metric.name == "loss" else (y, prediction)))
            return {metric.name: metric.result() for metric in self.metrics}

    x, y = numbers()
    with scope():
        model = OwnStep([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    return seen(model, model.fit(x, y, epochs=2, validation_split=0.25, shuffle=False, verbose=0))


@form(devices=2)
def compiled_outside_the_scope_for_several_devices(scope):
    x, y = numbers()
    model = dense(scope)
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return seen(model, model.fit(x, y, batch_size=24, epochs=2, shuffle=False, verbose=0))


@form(workers=(1, 2), devices=2)
def predict_on_several_devices(scope):
    x, _ = numbers()
    return seen(predictions=dense(scope).predict(x, verbose=0))
