"""What `train_and_evaluate` takes as Keras's `fit` does, beside `fit` itself on the same examples."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from support.trainer.alone import STRATEGY, Killed, record_writers, replica
from support.trainer.checkpoints import final_variables
from trainjob_trainer import InvalidConfiguration, OutputFinished, Task
from trainjob_trainer.checkpoint_manager import CheckpointManager
from trainjob_trainer.data.source import as_function, with_class_weight
from trainjob_trainer.library import Result, _check_for, _Request, _train
from trainjob_trainer.recipe import Recipe
from trainjob_trainer.reporting.progress import ProgressFile

ROWS, BATCH = 16, 4
X = np.random.default_rng(5).normal(size=(ROWS, 3)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


class Seen(keras.callbacks.Callback):
    """Notes all that it is called for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self.calls.append(("train begins", sorted(self.params)))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.calls.append(("epoch begins", epoch))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.calls.append(("batch begins", batch))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.calls.append(("batch ends", batch, rounded(logs)))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(("epoch ends", epoch, rounded(logs)))

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        self.calls.append(("train ends",))


class StopAfter(keras.callbacks.Callback):
    def __init__(self, epoch: int | None = None, batch: int | None = None) -> None:
        super().__init__()
        self.epoch = epoch
        if batch is not None:
            self.on_train_batch_end = lambda number, logs: self.stop(number == batch)  # noqa: ARG005

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.stop(epoch == self.epoch)

    def stop(self, is_time: bool) -> None:
        self.model.stop_training = self.model.stop_training or is_time


def rounded(logs: Mapping[str, Any]) -> dict[str, float]:
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
    folder: Path,
    epochs: int,
    *callbacks: Any,
    data: Any = (X, Y),
    class_weight: Mapping[int, float] | None = None,
    verbose: Any = "auto",
    recipe: Mapping[str, Any] | None = None,
    build: Callable[[], Any] = model,
    **where: Any,
) -> Result:
    keras.utils.clear_session()  # names of layers are numbered within a process
    settings = {"shuffle": False, "seed": 1, "export": False, **(recipe or {})}
    load, heldout = (
        with_class_weight(as_function(data, "train"), class_weight),
        as_function((X, Y), "heldout"),
    )
    chosen = Recipe(epochs=epochs, global_batch=BATCH, **settings)
    request = _Request(build, load, heldout, chosen, None, callbacks, verbose)
    return _train(replica(folder, **where), STRATEGY, request)


def weights_of(net: Any) -> list[Any]:
    return [np.asarray(one) for one in net.get_weights()]


def same_weights(first: Any, second: Any) -> None:
    for one, other in zip(weights_of(first), weights_of(second), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_callbacks_are_called_as_fit_calls_them(tmp_path: Path) -> None:
    by_fit, by_library = Seen(), Seen()
    net = fitted(2, by_fit)
    result = trained(tmp_path, 2, by_library)

    assert by_library.calls == by_fit.calls
    same_weights(result.model, net)


RATE: Callable[[int], float] = lambda epoch, _=0.0: 0.1 / (1 + epoch)  # noqa: E731 - Keras passes the rate too


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own
@pytest.mark.parametrize("many", [True, False], ids=["many steps a call", "one step a call"])
def test_a_callback_sets_the_learning_rate(many: bool, tmp_path: Path) -> None:
    def callbacks() -> list[Any]:
        return [keras.callbacks.LearningRateScheduler(RATE), *([] if many else [Seen()])]

    net = fitted(3, *callbacks())
    result = trained(tmp_path, 3, *callbacks())

    same_weights(result.model, net)


@pytest.mark.parametrize(
    ("when", "step"), [({"epoch": 1}, 8), ({"batch": 1}, 2)], ids=["at an epoch's end", "within an epoch"]
)
def test_a_callback_ends_the_training(when: Mapping[str, int], step: int, tmp_path: Path) -> None:
    seen, by_fit, progress = Seen(), Seen(), ProgressFile(None)
    net = fitted(5, StopAfter(**when), by_fit)
    result = trained(tmp_path, 5, StopAfter(**when), seen, progress=progress)

    assert result.step == step
    assert seen.calls == by_fit.calls
    same_weights(result.model, net)
    assert progress.last.stopped_early == "a callback has set model.stop_training"
    with pytest.raises(OutputFinished, match=f"stopped early at step {step} of 20: a callback has set"):
        trained(tmp_path, 5, uid="another")


def test_what_callbacks_remember_survives_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def callbacks() -> list[Any]:
        stopping = keras.callbacks.EarlyStopping("loss", patience=2, min_delta=0.2, restore_best_weights=True)
        return [stopping, keras.callbacks.CSVLogger(str(tmp_path / "log.csv")), Seen()]

    whole = trained(tmp_path / "whole", 9, *callbacks())
    log = (tmp_path / "log.csv").read_text()
    (tmp_path / "log.csv").unlink()
    writers, killed = record_writers(monkeypatch), callbacks()
    with pytest.raises(Killed):
        trained(tmp_path / "cut", 9, *killed, killed_at=9)
    writers[-1].wait()
    killed[1].csv_file.close()
    result = trained(tmp_path / "cut", 9, *callbacks())

    assert result.step == whole.step < 36
    same_weights(result.model, whole.model)
    assert (tmp_path / "log.csv").read_text() == log
    told = capsys.readouterr().err
    assert told.count("callbacks begin again without what they had at the checkpoint: Seen.calls. ") == 1


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own
def test_a_rate_is_changed_once_an_epoch_also_where_a_restart_is_within_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halving() -> Any:
        return keras.callbacks.LearningRateScheduler(lambda _, rate: rate / 2)

    writers = record_writers(monkeypatch)
    with pytest.raises(Killed):
        trained(tmp_path, 3, halving(), recipe={"checkpoint_every": 3}, killed_at=7)
    writers[-1].wait()
    result = trained(tmp_path, 3, halving(), recipe={"checkpoint_every": 3})
    same_weights(result.model, fitted(3, halving()))


def test_what_an_optimizer_does_at_the_end_is_done(tmp_path: Path) -> None:
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


def test_a_wish_to_stop_between_batches_counts_at_the_epochs_end(tmp_path: Path) -> None:
    class Wishes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            self.model.stop_training = epoch == 1

    assert trained(tmp_path, 5, Wishes()).step == 8


def test_a_callback_that_has_ended_training_has_done_so_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: Any, **__: Any) -> None:
        raise Killed

    writers = record_writers(monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointManager, "end", cut_off)
        with pytest.raises(Killed):
            trained(tmp_path, 5, StopAfter(epoch=1))
    writers[-1].wait()
    seen, progress = Seen(), ProgressFile(None)
    result = trained(tmp_path, 5, StopAfter(epoch=1), seen, progress=progress)

    assert result.step == 8
    assert [call[0] for call in seen.calls] == ["train begins", "train ends"]
    assert progress.last.stopped_early == "a callback has set model.stop_training"
    same_weights(result.model, fitted(2))


def test_examples_may_be_arrays_or_a_data_set(tmp_path: Path) -> None:
    net = fitted(2)
    data_set = tf.data.Dataset.from_tensor_slices((X, Y))
    for number, data in enumerate([(X, Y), data_set, lambda: data_set]):
        same_weights(trained(tmp_path / str(number), 2, data=data).model, net)


def test_sample_weights_and_class_weights_count_as_in_fit(tmp_path: Path) -> None:
    weights = np.linspace(0, 2, ROWS).astype("float32")
    same_weights(trained(tmp_path / "rows", 2, data=(X, Y, weights)).model, fitted(2, sample_weight=weights))
    by_class = {0: 0.5, 1: 3.0}
    same_weights(
        trained(tmp_path / "classes", 2, class_weight=by_class).model, fitted(2, class_weight=by_class)
    )


@pytest.mark.parametrize(
    ("label", "weight"),
    [(np.int32(1), 3.0), (np.array([0.0], "float32"), 0.5), (np.array([0, 0, 1], "float32"), 1.0)],
    ids=["a number", "in a vector of one", "one of three, and not named"],
)
def test_a_label_is_a_number_or_one_hot(label: Any, weight: float) -> None:
    data = tf.data.Dataset.from_tensors((np.zeros(3), label))
    (example,) = with_class_weight(lambda: data, {0: 0.5, 1: 3.0})()
    assert float(example[2]) == weight


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([X, Y], r"train: must be a function that returns a tf.data.Dataset .* such as \(x, y\), got list"),
        ((X, Y[:3]), "train: the arrays have different lengths: 16, 3"),
    ],
)
def test_other_examples_are_refused(data: Any, words: str) -> None:
    with pytest.raises(InvalidConfiguration, match=words):
        as_function(data, "train")


def test_class_weights_beside_sample_weights_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="pairs of features and label, without sample weights"):
        with_class_weight(as_function((X, Y, Y), "train"), {0: 2.0})()


def test_callbacks_are_refused_with_parameter_servers() -> None:
    cluster: dict[str, Sequence[str]] = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    request = _Request(model, dict, dict, Recipe(steps=1, global_batch=1), callbacks=(Seen(),))
    with pytest.raises(InvalidConfiguration, match="callbacks: with parameter servers they aren't called"):
        _check_for(Task("chief", 0, cluster), request)


@pytest.mark.parametrize(
    ("callback", "named"),
    [
        (keras.callbacks.EarlyStopping(), "EarlyStopping monitors val_loss, .* let it monitor loss"),
        (keras.callbacks.ReduceLROnPlateau(), "ReduceLROnPlateau monitors val_loss"),
        (
            keras.callbacks.ModelCheckpoint("a.keras", monitor="val_accuracy", save_best_only=True),
            "ModelCheckpoint monitors val_accuracy, .* let it monitor accuracy",
        ),
        (keras.callbacks.ModelCheckpoint("a.keras"), None),  # it saves always
        (keras.callbacks.EarlyStopping("loss"), None),
        (keras.callbacks.CSVLogger("a.csv"), None),
    ],
)
def test_callbacks_that_wait_for_heldout_metrics_are_refused(callback: Any, named: str | None) -> None:
    recipe = Recipe(steps=1, global_batch=1)
    request = _Request(model, dict, dict, recipe, callbacks=(Seen(), callback))
    with pytest.raises(InvalidConfiguration, match=named) if named else contextlib.nullcontext():
        _check_for(Task.from_environment({}), request)


@pytest.mark.parametrize(("verbose", "lines"), [("auto", True), (0, False)])
def test_lines_can_be_left_out(
    verbose: Any,
    lines: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainjob_trainer.recorder._SECONDS_BETWEEN_LINES", 0.0)
    trained(tmp_path, 2, verbose=verbose)
    assert ("step 8/8, " in capsys.readouterr().err) is lines


def test_the_progress_bar_is_kerass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path, 2, verbose=1)
    assert "Epoch 2/2" in capsys.readouterr().out
