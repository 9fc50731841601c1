"""`train_and_evaluate` beside `fit` itself on the same examples, and the forms of data that it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from support.trainer import alone
from support.trainer.alone import Killed, record_writers
from support.trainer.checkpoints import final_variables
from trainjob_trainer import InvalidConfiguration, OutputFinished, Result, Task, train_and_evaluate

ROWS, BATCH = 16, 4
X = np.random.default_rng(5).normal(size=(ROWS, 3)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")
SET = tf.data.Dataset.from_tensor_slices((X, Y))
BATCHES = SET.batch(BATCH)


class OfATensor(keras.optimizers.schedules.LearningRateSchedule):
    """A script's own schedule: it fails for a step that is a number, and has no `get_config`."""

    def __call__(self, step: Any) -> Any:
        return tf.zeros(step.shape)


class Rows(keras.utils.PyDataset):
    def __len__(self) -> int:
        return ROWS // BATCH

    def __getitem__(self, number: int) -> Any:
        rows = slice(number * BATCH, (number + 1) * BATCH)
        return X[rows], Y[rows]


class Seen(keras.callbacks.Callback):
    """Notes all that it is called for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self.calls.append(("train begins", sorted(self.params)))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.calls.append(("batch ends", batch, rounded(logs)))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(("epoch ends", epoch, rounded(logs)))

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        self.calls.append(("train ends",))


def rounded(logs: Any) -> dict[str, float]:
    return {name: round(float(value), 5) for name, value in logs.items()}


def model() -> Any:
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    net.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["accuracy"])
    return net


def fitted(epochs: int, *callbacks: Any, build: Callable[[], Any] = model, **settings: Any) -> Any:
    keras.utils.set_random_seed(1)
    net = build()
    net.fit(X, Y, BATCH, epochs, shuffle=False, verbose=0, callbacks=list(callbacks), **settings)
    return net


def trained(
    folder: Path, epochs: int, *callbacks: Any, data: Any = (X, Y), build: Any = model, **words: Any
) -> Result:
    settings = {"epochs": epochs, "global_batch": BATCH, "shuffle": False, **words}
    heldout = settings.pop("heldout", None)
    return alone.train(folder, build, data, heldout, *callbacks, **settings)


def same_weights(first: Any, second: Any) -> None:
    for one, other in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_callbacks_are_called_as_fit_calls_them_with_held_out_metrics_too(tmp_path: Path) -> None:
    by_fit, by_library = Seen(), Seen()
    net = fitted(2, by_fit, validation_data=(X, Y))
    result = trained(tmp_path, 2, by_library, heldout=(X, Y))

    assert by_library.calls == by_fit.calls
    assert set(result.metrics) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert result.step == 8
    same_weights(result.model, net)


@pytest.fixture(scope="module")
def fitted_twice() -> Any:
    return fitted(2)


@pytest.mark.parametrize(
    ("data", "settings"),
    [
        (SET, {}),
        (lambda: SET, {}),
        (BATCHES, {"global_batch": None}),
        (lambda: BATCHES, {}),
        (SET.batch(8), {}),
        (SET.batch(8, drop_remainder=True).map(lambda x, y: (x, y)), {}),
        (SET.repeat(), {"steps_per_epoch": 4}),
        (SET, {"steps_per_epoch": 4}),
        (SET.filter(lambda x, _: tf.size(x) > 0), {}),
        (Rows(), {"global_batch": None}),
    ],
    ids=[
        "set",
        "function",
        "batches",
        "same",
        "recut",
        "full",
        "endless",
        "repeated",
        "unknown",
        "PyDataset",
    ],
)
def test_the_data_may_have_any_form(
    data: Any, settings: dict[str, Any], tmp_path: Path, fitted_twice: Any
) -> None:
    same_weights(trained(tmp_path, 2, data=data, **settings).model, fitted_twice)


def test_a_model_may_be_given_as_it_is_and_a_rest_of_the_rows_is_a_smaller_batch(tmp_path: Path) -> None:
    rest = X[:14], Y[:14]
    keras.utils.set_random_seed(1)
    result = trained(tmp_path, 1, data=rest, build=model())
    assert result.step == 4
    assert trained(tmp_path / "other", 1, data=SET.take(14)).step == 4


def test_examples_are_shuffled_by_the_seed_anew_in_each_epoch(tmp_path: Path) -> None:
    def read(folder: str, seed: int) -> list[list[float]]:
        rows: list[float] = []
        numbers = tf.data.Dataset.range(6).map(lambda n: (tf.fill([3], float(0)), tf.cast(n, tf.float32)))

        class Notes(keras.losses.Loss):
            def call(self, y_true: Any, y_pred: Any) -> Any:
                tf.py_function(lambda y: rows.extend(y.numpy().ravel().tolist()), [y_true], [])
                return tf.reduce_mean(y_pred, axis=-1)

        def build() -> Any:
            net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            net.compile("sgd", Notes(), run_eagerly=True)
            return net

        trained(tmp_path / folder, 2, data=numbers, build=build, seed=seed, shuffle=True, global_batch=3)
        return [rows[:6], rows[6:]]

    one, same, other = read("one", 1), read("same", 1), read("other", 2)
    assert one == same != other
    assert one[0] != one[1]
    assert sorted(one[0]) == sorted(one[1]) == list(range(6))


def test_what_early_stopping_remembers_survives_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def callbacks() -> list[Any]:
        best = {"patience": 2, "min_delta": 0.2, "restore_best_weights": True}
        csv = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
        return [keras.callbacks.EarlyStopping("val_loss", **best), csv, Seen()]

    settings = {"heldout": (X, Y), "checkpoint_every": 4}
    whole = trained(tmp_path / "whole", 9, *callbacks(), **settings)
    log = (tmp_path / "log.csv").read_text()
    (tmp_path / "log.csv").unlink()
    writers, killed = record_writers(monkeypatch), callbacks()
    with pytest.raises(Killed):
        trained(tmp_path / "cut", 9, *killed, killed_at=9, **settings)
    writers[-1].settle()
    killed[1].csv_file.close()
    result = trained(tmp_path / "cut", 9, *callbacks(), **settings)

    assert result.step == whole.step < 36
    same_weights(result.model, whole.model)
    assert (tmp_path / "log.csv").read_text() == log
    told = capsys.readouterr().err
    assert (
        told.count("these callbacks start without the state that they had at the checkpoint: Seen.calls. ")
        == 1
    )
    epochs = whole.step // 4
    why = f"EarlyStopping has seen no better val_loss than in epoch {epochs - 2}, whose weights the model has"
    assert told.count(f"training ended after epoch {epochs} of 9: {why}") == 2


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own
def test_a_rate_is_changed_once_an_epoch_also_where_a_restart_is_within_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halving() -> Any:
        return keras.callbacks.LearningRateScheduler(lambda _, rate: float(rate) / 2)

    writers = record_writers(monkeypatch)
    with pytest.raises(Killed):
        trained(tmp_path, 3, halving(), checkpoint_every=3, killed_at=7)
    writers[-1].settle()
    result = trained(tmp_path, 3, halving(), checkpoint_every=3)
    same_weights(result.model, fitted(3, halving()))


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (
            lambda rates: rates.CosineDecay(0.1, 8),
            "0 after 8 steps, by CosineDecay: the 8 remaining steps",
        ),
        (lambda rates: rates.CosineDecay(0.1, 16), ""),
        (lambda rates: rates.CosineDecay(0.0, 8, warmup_target=0.1, warmup_steps=2), "0 after 12 steps, by"),
        (lambda rates: rates.CosineDecayRestarts(0.1, 4), ""),
        (lambda rates: rates.PiecewiseConstantDecay([4], [0.1, 0.0]), "0 after 8 steps, by"),
        (lambda _: 0.0, ""),
        (lambda _: OfATensor(), ""),
    ],
    ids=["ends early", "fits", "warm-up", "cycles", "by pieces", "a number", "the script's own"],
)
def test_a_schedule_that_has_reached_zero_is_said_once(
    schedule: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def build() -> Any:
        net = model()
        net.compile(keras.optimizers.SGD(schedule(keras.optimizers.schedules)), "mse")
        return net

    alone.train(tmp_path, build, SET, epochs=4)
    lines = [line for line in capsys.readouterr().err.splitlines() if "learning rate" in line]
    assert len(lines) == bool(said)
    assert said in "".join(lines)


def test_what_an_optimizer_does_at_the_end_is_done_and_saved(tmp_path: Path) -> None:
    def averaged() -> Any:
        net = model()
        optimizer = keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.5)
        net.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
        return net

    result = trained(tmp_path, 2, build=averaged)
    same_weights(result.model, fitted(2, build=averaged))
    saved = final_variables(tmp_path)
    for one in result.model.trainable_variables:
        (array,) = (value for name, value in saved.items() if name.endswith(f"model/{one.path}"))
        np.testing.assert_array_equal(array, one)


def test_a_finished_output_is_not_trained_again_but_for_more_epochs(tmp_path: Path) -> None:
    trained(tmp_path, 2)
    with pytest.raises(OutputFinished, match="finished at step 8, and this fit requests only 2 epochs"):
        trained(tmp_path, 2, uid="another")
    with pytest.raises(OutputFinished):
        trained(tmp_path, 2, uid="another", data=(X, 1 - Y))
    result = trained(tmp_path, 3, uid="third")
    assert result.step == 12
    same_weights(result.model, fitted(3))


def test_another_model_begins_in_a_folder_of_its_own(tmp_path: Path) -> None:
    trained(tmp_path, 2, killed_at=None)
    (tmp_path / "checkpoints" / "final.json").unlink()

    def wider() -> Any:
        net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
        net.compile("sgd", "mse")
        return net

    assert trained(tmp_path, 1, build=wider).step > 4
    assert (tmp_path / "checkpoints" / "model-2").is_dir()


def test_sample_weights_and_class_weights_count_as_in_fit(tmp_path: Path) -> None:
    weights = np.linspace(0, 2, ROWS).astype("float32")
    by_row = trained(tmp_path / "rows", 2, data=(X, Y, weights))
    same_weights(by_row.model, fitted(2, sample_weight=weights))
    by_class = {0: 0.5, 1: 3.0}
    by_label = trained(tmp_path / "classes", 2, class_weight=by_class)
    same_weights(by_label.model, fitted(2, class_weight=by_class))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"data": [X, Y]}, r"train: must be a tf.data.Dataset, a tuple of arrays .*, got list"),
        ({"data": (X, Y[:3])}, r"train: the arrays have different lengths: \[3, 16\]"),
        ({"global_batch": None}, "global_batch: must be given, as the data are single examples"),
        ({"data": SET.repeat()}, "steps_per_epoch: must be given, as the training data are endless"),
        ({"heldout": SET.repeat()}, "heldout: the data are endless"),
        ({"build": keras.Sequential}, "model: must be a compiled Keras model, got Sequential"),
        ({"build": lambda: None}, "model: must be a compiled Keras model, got NoneType"),
        ({"epochs": 0}, "epochs: must be a whole number of at least 1, got 0"),
    ],
)
def test_what_it_cannot_train_is_refused(words: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        trained(tmp_path, words.pop("epochs", 1), **words)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="no setting 'patience', only global_batch, epochs,"):
        train_and_evaluate(model, SET, epochs=1, patience=3)


def test_callbacks_are_refused_with_parameter_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainjob_trainer.library.build_strategy", lambda *_, **__: None)
    chief = Task("chief", 0, {"chief": ("a:1",), "worker": ("b:1",), "ps": ("c:1",)})
    with pytest.raises(InvalidConfiguration, match="with parameter servers no process sees each step"):
        trained(tmp_path, 1, Seen(), task=chief)


@pytest.mark.parametrize(("verbose", "lines"), [("auto", True), (0, False)])
def test_a_line_for_each_epoch_can_be_left_out(
    verbose: Any, lines: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, 2, verbose=verbose)
    assert ("Epoch 2/2" in capsys.readouterr().out) is lines
