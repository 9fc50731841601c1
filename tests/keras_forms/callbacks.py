"""Keras's callbacks, and the users' own."""

import contextlib
import csv
import json
import os
import tempfile
from pathlib import Path

import keras

from support.trainer.form_values import dense, numbers, seen
from support.trainer.forms import form


def fitted(scope, *callbacks, model=None, **words):
    x, y = numbers()
    model = model or dense(scope)
    history = model.fit(
        x[:72],
        y[:72],
        **{
            "batch_size": 24,
            "epochs": 3,
            "shuffle": False,
            "verbose": 0,
            "validation_data": (x[72:], y[72:]),
            "callbacks": list(callbacks),
            **words,
        },
    )
    return model, history


@form(workers=3, killed=True, ends_with_epoch=0)
def early_stopping(scope):
    stopper = keras.callbacks.EarlyStopping(
        monitor="val_loss", min_delta=10.0, patience=1, restore_best_weights=True
    )
    model, history = fitted(scope, stopper, epochs=6)
    return seen(model, history, stopped=stopper.stopped_epoch, best=stopper.best)


@form(killed=True)
def reduce_rate_on_plateau(scope):
    callback = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", min_delta=10.0, patience=1, factor=0.5)
    return seen(*fitted(scope, callback, epochs=4))


@form()
def rate_by_schedule(scope):
    return seen(*fitted(scope, keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)))


@form(workers=3, killed=True)
def model_checkpoint(scope):
    callback = keras.callbacks.ModelCheckpoint("best-{epoch}.keras", save_best_only=True, monitor="val_loss")
    return seen(*fitted(scope, callback))


@form(often=True, killed=True)
def model_checkpoint_every_few_batches(scope):
    callback = keras.callbacks.ModelCheckpoint(
        "at-{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=4
    )
    return seen(*fitted(scope, callback))


@form(workers=3, killed=True, apart=("rows",))
def csv_logger(scope):
    """The first worker's file has a row for each epoch, once."""
    model, history = fitted(scope, keras.callbacks.CSVLogger("log.csv"))
    file = Path("log.csv")  # the others have written elsewhere
    rows = list(csv.reader(file.read_text().splitlines())) if file.exists() else [[]]
    told = [[float(one) for one in row] for row in rows[1:]]
    return seen(model, history, rows=[rows[0], told])


@form()
def backup_and_restore(scope):
    return seen(*fitted(scope, keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False)))


class Interrupted(Exception):
    pass


def interrupt(epoch, logs):
    if epoch == 1:
        raise Interrupted


@form(workers=3)
def backup_in_a_folder_of_ones_own(scope):
    """Each worker's temporary folder is another one; a `fit` that was interrupted goes on."""
    folder = Path(tempfile.mkdtemp())
    backup, model = keras.callbacks.BackupAndRestore(folder / "backup", save_freq=2), dense(scope)
    with contextlib.suppress(Interrupted):
        fitted(scope, keras.callbacks.LambdaCallback(on_epoch_end=interrupt), backup, model=model)
    kept = sorted(file.name for file in (folder / "backup").iterdir())
    model, history = fitted(scope, backup, model=model)
    return seen(model, history, kept=kept, left=[file.name for file in folder.iterdir()])


@form()
def tensorboard(scope):
    return seen(*fitted(scope, keras.callbacks.TensorBoard("events", update_freq=1)))


@form(often=True)
def terminate_on_nan(scope):
    x, y = numbers()
    y[30] = float("inf")
    model = dense(scope)
    history = model.fit(
        x, y, batch_size=24, epochs=3, shuffle=False, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN()]
    )
    return seen(epochs=history.epoch)


@form(workers=3)
def lambda_callback(scope):
    told = []
    callback = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: told.append([epoch, dict(logs)]),
        on_train_end=lambda logs: told.append(dict(logs)),
    )
    model, history = fitted(scope, callback)
    return seen(model, history, told=told)


@form(killed=True)
def swapped_averages(scope):
    model = dense(scope, lambda: keras.optimizers.Adam(0.01, use_ema=True))
    return seen(*fitted(scope, keras.callbacks.SwapEMAWeights(swap_on_epoch=True), model=model))


class Recorder(keras.callbacks.Callback):
    """Everything that a callback is called for, in order."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        if name.startswith("on_"):
            return lambda *args, **_: self.note(name, *args)
        return super().__getattribute__(name)

    def note(self, name, *args):
        number = args[0] if args and isinstance(args[0], int) else -1
        logs = args[-1] if args and isinstance(args[-1], dict) else {}
        self.calls.append([name, number, {key: value for key, value in logs.items() if key != "outputs"}])


@form()
def every_call_of_fit(scope):
    recorder = Recorder()
    model, history = fitted(scope, recorder, epochs=2)
    return seen(model, history, calls=[call for call in recorder.calls if "_test_" not in call[0]])


@form()
def every_batch_of_an_evaluation(scope):
    class Batches(keras.callbacks.Callback):
        numbers = ()

        def on_test_batch_end(self, batch, logs=None):
            self.numbers = (*self.numbers, batch)

    recorder = Batches()
    x, y = numbers()
    model = dense(scope)
    model.evaluate(x, y, batch_size=16, verbose=0, callbacks=[recorder])
    return seen(batches=recorder.numbers)


@form()
def every_batch_of_a_validation(scope):
    class Batches(keras.callbacks.Callback):
        numbers = ()

        def on_test_batch_end(self, batch, logs=None):
            self.numbers = (*self.numbers, batch)

    recorder = Batches()
    model, history = fitted(scope, recorder, validation_batch_size=8)
    return seen(model, history, batches=recorder.numbers)


@form()
def every_batch_of_a_prediction(scope):
    class Batches(keras.callbacks.Callback):
        numbers = ()

        def on_predict_batch_end(self, batch, logs=None):
            self.numbers = (*self.numbers, batch)

    recorder = Batches()
    x, _ = numbers()
    predictions = dense(scope).predict(x, batch_size=16, verbose=0, callbacks=[recorder])
    return seen(batches=recorder.numbers, predictions=predictions)


class Looking(keras.callbacks.Callback):
    """Does nothing with each batch."""

    def on_train_batch_end(self, batch, logs=None):
        pass

    def on_test_batch_end(self, batch, logs=None):
        pass


def is_first():
    return json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"] == 0


@form()
def batches_looked_at_by_worker_0_alone(scope):
    return seen(*fitted(scope, *([Looking()] if is_first() else [])))


@form()
def stopped_by_worker_0_alone(scope):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1 and is_first()

    return seen(*fitted(scope, Stop()))


@form(killed=True)
def probe_fitted_in_a_callback(scope):
    probe = dense(scope)
    initial, losses = probe.get_weights(), []

    class Probing(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            probe.set_weights(initial)
            x, y = numbers(48)
            done = probe.fit(x, y, batch_size=12, epochs=1, shuffle=False, verbose=0)
            losses.append(done.history["loss"][0])

    model, history = fitted(scope, Probing())
    return seen(model, history, last_loss=losses[-1])


@form()
def rate_read_as_a_number(scope):
    class Rates(keras.callbacks.Callback):
        rates = ()

        def on_epoch_end(self, epoch, logs=None):
            self.rates = (*self.rates, float(self.model.optimizer.learning_rate))

    rates = Rates()
    model, history = fitted(scope, rates)
    return seen(model, history, rates=rates.rates)


@form()
def rate_set_in_a_callback(scope):
    class Halved(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.optimizer.learning_rate = 0.1 / (epoch + 1)

    return seen(*fitted(scope, Halved()))


@form()
def stop_within_an_epoch(scope):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                self.model.stop_training = True

    return seen(*fitted(scope, Stop()))


@form()
def stop_after_an_epoch(scope):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    return seen(*fitted(scope, Stop(), epochs=5))


@form()
def predict_within_a_callback(scope):
    x, _ = numbers()

    class Look(keras.callbacks.Callback):
        predictions = ()

        def on_epoch_end(self, epoch, logs=None):
            self.predictions = (*self.predictions, self.model.predict(x[:24], verbose=0))

    look = Look()
    model, history = fitted(scope, look, epochs=2)
    return seen(model, history, predictions=look.predictions)


@form()
def evaluate_within_a_callback(scope):
    x, y = numbers()

    class Look(keras.callbacks.Callback):
        results = ()

        def on_epoch_end(self, epoch, logs=None):
            logs["extra"] = self.model.evaluate(x[:24], y[:24], verbose=0)[0]

    return seen(*fitted(scope, Look(), epochs=2))


@form()
def save_within_a_callback(scope):
    class Save(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.save(f"model-{epoch}.keras")

    return seen(*fitted(scope, Save(), epochs=2))


@form()
def early_stopping_on_an_own_metric(scope):
    class Own(keras.Sequential):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return {
                **super().compute_metrics(x, y, y_pred, sample_weight),
                "score": -self.metrics[0].result(),
            }

    with scope():
        model = Own([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    stopper = keras.callbacks.EarlyStopping(monitor="val_score", mode="max", min_delta=10.0, patience=1)
    return seen(*fitted(scope, stopper, model=model, epochs=5))


@form()
def weights_changed_in_a_callback(scope):
    class Decay(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.set_weights([0.99 * one for one in self.model.get_weights()])

    return seen(*fitted(scope, Decay(), epochs=1))
