"""Many batches in one call: when, and what of Keras it rests on."""

import importlib
import itertools
import math
import sys
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute import values

from support.trainer.alone import prepare_fit
from trainjob_trainer.evaluation import Scoring
from trainjob_trainer.keras import steps as keras_steps
from trainjob_trainer.keras.data import (
    EVALUATION_BATCHES,
    Batches,
    JobEpochs,
    _others_at_end,
)
from trainjob_trainer.keras.pace import StepsPerExecution
from trainjob_trainer.keras.trainer import (
    TEST_METHODS,
    JobTrainer,
    are_keras_own,
    see_tests,
    sees_batches,
)
from trainjob_trainer.patches import PATCHES, _has_expected_form
from trainjob_trainer.reporting.progress import ProgressFile

callbacks, adapters = keras.callbacks, keras.src.trainers.data_adapters


def tf_adapter(rows: int, *, drop_remainder: bool) -> Any:
    dataset = tf.data.Dataset.range(rows).batch(4, drop_remainder=drop_remainder)
    return adapters.tf_dataset_adapter.TFDatasetAdapter(dataset)


def distributed_adapter(*, drop_remainder: bool) -> Any:
    spec = tf_adapter(8, drop_remainder=drop_remainder).get_tf_dataset().element_spec
    of_replicas = SimpleNamespace(element_spec=values.PerReplicaSpec(spec, spec))
    return type("TFDatasetAdapter", (), {"get_tf_dataset": lambda _: of_replicas})()


class EachBatch(callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


class EachTestBatch(callbacks.Callback):
    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        pass


class EachEpoch(callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        pass


class OldName(callbacks.Callback):
    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        pass


class OwnBoard(callbacks.TensorBoard):
    pass


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (EachBatch(), True),
        (OldName(), True),
        (EachEpoch(), False),
        (callbacks.LambdaCallback(on_epoch_end=print), False),
        (callbacks.LambdaCallback(on_train_batch_end=print), True),
        (callbacks.EarlyStopping(), False),
        (callbacks.LearningRateScheduler(lambda _: 0.1), False),
        (callbacks.ProgbarLogger(), False),
        (callbacks.TerminateOnNaN(), True),
        (callbacks.ModelCheckpoint("a.keras"), False),
        (callbacks.ModelCheckpoint("a.keras", save_freq=10), True),
        (callbacks.BackupAndRestore("a"), False),
        (callbacks.BackupAndRestore("a", save_freq=10), True),
        (callbacks.TensorBoard("a"), False),
        (callbacks.TensorBoard("a", update_freq="batch"), True),
        (callbacks.TensorBoard("a", write_steps_per_second=True), True),
        (OwnBoard("a"), True),
        (SimpleNamespace(), True),
    ],
)
def test_who_sees_each_batch(callback: Any, expected: bool) -> None:
    assert sees_batches(callback) is expected


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (EachTestBatch(), True),
        (callbacks.LambdaCallback(), False),
        (EachBatch(), False),
        (callbacks.ProgbarLogger(), False),
        (callbacks.TensorBoard("a"), False),
        (SimpleNamespace(), True),
    ],
)
def test_who_sees_each_batch_of_an_evaluation(callback: Any, expected: bool) -> None:
    assert sees_batches(callback, TEST_METHODS) is expected


def test_our_own_callback_does_not_ask_for_each_batch() -> None:
    ours = Scoring(ProgressFile(None))
    assert not see_tests(callbacks.CallbackList([callbacks.History(), ours]))
    assert see_tests([EachTestBatch(), ours])
    assert not see_tests(None)


class OwnMetrics(keras.Model):
    def compute_metrics(self, *_: Any, **__: Any) -> Any:
        return {}


class OwnName(keras.Sequential):
    train_step = keras.Model.train_step


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(keras.Model, True), (keras.Sequential, True), (OwnName, True), (OwnMetrics, False), (type(None), True)],
)
def test_whose_methods_are_keras_own(kind: type, expected: bool) -> None:
    assert are_keras_own(kind, ("train_step", "test_step", "compute_metrics")) is expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (adapters.array_data_adapter.ArrayDataAdapter(np.zeros((8, 2)), batch_size=4), 0),
        (adapters.array_data_adapter.ArrayDataAdapter(np.zeros((9, 2)), batch_size=4), 1),
        (
            adapters.array_data_adapter.ArrayDataAdapter(tf.ragged.constant([[1], [2, 3]]), batch_size=2),
            math.inf,
        ),
        (tf_adapter(8, drop_remainder=True), 0),
        (tf_adapter(8, drop_remainder=False), math.inf),
        (SimpleNamespace(), math.inf),
        (distributed_adapter(drop_remainder=True), 0),
        (distributed_adapter(drop_remainder=False), math.inf),
    ],
)
def test_what_is_known_of_batches(data: Any, expected: float) -> None:
    assert _others_at_end(data) == expected


class Rereading:
    def read(self, iterator: Any, count: int) -> int:
        return sum(1 for _ in itertools.islice(iterator, count))


def build_epoch(
    use: str = "fit",
    *,
    a_call: int = 1,
    batches: int | None = None,
    of_an_epoch: int | None = None,
    seen: int = 0,
    others_at_end: float = 0,
) -> Any:
    epoch = object.__new__(JobEpochs)
    vars(epoch).update(
        trains=use == "fit",
        _predicts=use == "predict",
        _num_batches=batches,
        steps_per_epoch=of_an_epoch,
        _steps_seen=seen,
        _current_iterator=iter(range(1000)),
        warned=[],
        _interrupted_warning=lambda: epoch.warned.append(True),
        rows=None,
        others_at_end=others_at_end,
        steps_per_execution=a_call,
    )
    return epoch


class Fast(StepsPerExecution):
    """It wants that many steps a call, and no measure changes it."""

    def __init__(self, wanted: int) -> None:
        super().__init__(lambda number: number)
        self.wanted = wanted

    @property
    def longest(self) -> int:
        return self.wanted


def build_call(wanted: int | None = None, **more: Any) -> Any:
    """A `fit` with so many steps a call; None: as many as Keras's."""
    stated = {
        "gathers": False,
        "sees_tests": False,
        "batches_before": 0,
        "every": None,
        "seen": SimpleNamespace(batches=wanted is None),
        "executions": None if wanted is None else Fast(wanted),
    }
    return SimpleNamespace(**{**stated, **more})


def numbers(epoch: Any, steps: int, call: Any) -> list[tuple[int, int, int]]:
    """Of each call the first and the last batch's number, as callbacks get them, and how many it takes."""
    return [
        (first, last, batches.count if isinstance(batches, Batches) else len(list(batches)))
        for first, last, batches in epoch._calls(steps, call)
    ]


PREDICTED = [(0, 2, 3), (3, 5, 3), (6, 8, 1)]


@pytest.mark.parametrize(
    ("epoch", "steps", "call", "expected"),
    [
        (build_epoch(), 28, build_call(10), [(0, 9, 10), (10, 19, 10), (20, 27, 8)]),
        (build_epoch(), 28, build_call(100), [(0, 27, 28)]),
        (build_epoch(batches=3), 3, build_call(1), [(0, 0, 1), (1, 1, 1), (2, 2, 1)]),
        (build_epoch(a_call=3, batches=7), 7, build_call(), PREDICTED),
        (build_epoch(a_call=50, batches=7), 7, build_call(), [(0, 49, 7)]),
        (build_epoch("evaluate", a_call=3, batches=7), 7, None, PREDICTED),
        (build_epoch("evaluate", a_call=3, batches=7), 7, build_call(sees_tests=True), PREDICTED),
        (build_epoch("evaluate"), 33, build_call(), [(0, 31, EVALUATION_BATCHES), (32, 32, 1)]),
        (build_epoch("predict", a_call=3, batches=7), 7, None, PREDICTED),
        # `steps_per_epoch` that `steps_per_execution` doesn't divide, twice: Keras takes whole calls
        (
            build_epoch(a_call=2, batches=10, of_an_epoch=5),
            5,
            build_call(),
            [(0, 1, 2), (2, 3, 2), (4, 5, 2)],
        ),
        (build_epoch(a_call=2, batches=10, of_an_epoch=5, seen=6), 5, build_call(), [(0, 1, 2), (2, 3, 2)]),
        (build_epoch(a_call=2, batches=10, of_an_epoch=5, seen=6), 5, build_call(9), [(0, 3, 4)]),
    ],
)
def test_an_epoch_is_cut_into_calls(
    epoch: Any, steps: int, call: Any, expected: list[tuple[int, int, int]]
) -> None:
    assert numbers(epoch, steps, call) == expected


def test_an_epoch_that_an_earlier_attempt_has_begun_goes_on_behind_its_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainjob_trainer.keras.data.rereading", lambda _: Rereading())
    epoch = build_epoch(batches=10)
    epoch._current_iterator = iter(tf.data.Dataset.range(10))
    calls = [
        (first, last, [int(next(batches)) for _ in range(batches.count)])
        for first, last, batches in epoch._calls(10, build_call(4, batches_before=3))
    ]
    assert calls == [(3, 6, [3, 4, 5, 6]), (7, 9, [7, 8, 9])]
    assert epoch._steps_seen == 10


@pytest.mark.parametrize(
    ("passed", "length", "of_an_epoch", "expected"),
    [
        (6, 10, None, [(6, 7, [6, 7]), (8, 9, [8, 9])]),
        (4, 3, None, []),  # the data has ended before
        (4, 6, 6, [(4, 5, [0, 1])]),  # an iterator of several epochs is there already
    ],
)
def test_keras_own_calls_are_left_out_where_an_earlier_attempt_has_made_them(
    passed: int, length: int, of_an_epoch: int | None, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainjob_trainer.keras.data.rereading", lambda _: Rereading())
    epoch, data = build_epoch(a_call=2, of_an_epoch=of_an_epoch), iter(range(length))
    calls = ((first, first + 1, data) for first in range(0, max(length, 6), 2))
    monkeypatch.setattr(JobEpochs.__mro__[1], "_enumerate_iterator", lambda _: calls)
    call = build_call(batches_before=passed)
    found = epoch._calls_of_keras(call, call, is_ours=False)
    assert [(first, last, [next(it), next(it)]) for first, last, it in found] == expected


@pytest.mark.parametrize(
    ("others_at_end", "gathers", "expected"),
    [(0, True, [5]), (1, True, [4, 1]), (math.inf, True, [1] * 5), (1, False, [5]), (math.inf, False, [5])],
)
def test_batches_of_another_shape_are_gathered_in_another_call(
    others_at_end: float, gathers: bool, expected: list[int]
) -> None:
    epoch = build_epoch(batches=5, others_at_end=others_at_end)
    assert [count for *_, count in numbers(epoch, 5, build_call(9, gathers=gathers))] == expected


def test_calls_end_where_a_checkpoint_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimpleNamespace(step=103)
    monkeypatch.setattr("trainjob_trainer.keras.data.current_session", lambda: process)
    counts = []
    for _, last, batches in build_epoch()._calls(12, build_call(4, every=5)):
        counts.append(batches.count)
        process.step = 103 + last + 1
    assert counts == [2, 4, 1, 4, 1]


def test_the_pace_may_change_within_an_epoch() -> None:
    executions = StepsPerExecution(lambda number: number)
    counts = []
    for _, _, batches in build_epoch()._calls(100, build_call(1, executions=executions)):
        counts.append(batches.count)
        executions.record(batches.count, batches.count * 0.01)
    assert counts == [1, 4, 50, 45]


@pytest.mark.parametrize(("of_an_epoch", "warned"), [(10, True), (None, False)])
def test_data_that_ends_before_the_epoch_does_ends_it_with_a_warning(
    of_an_epoch: int | None, warned: bool
) -> None:
    epoch = build_epoch(batches=12, seen=5, of_an_epoch=of_an_epoch)
    assert numbers(epoch, 10, build_call(4)) == [(0, 3, 4), (4, 6, 3)]
    assert bool(epoch.warned) is warned


@pytest.mark.parametrize(
    ("batches", "most", "expected"),
    [
        (Batches("data", 7), 3, [("data", 3), ("data", 3), ("data", 1)]),
        (Batches("data", 7), 50, [("data", 7)]),
        (Batches("data", 3, most=2), 50, [("data", 2), ("data", 1)]),  # the last has another shape
        (Batches(iter("abc"), 2, is_open=True), 50, [(["a"], 1), (["b"], 1)]),
        (Batches(iter("a"), 2, is_open=True), 50, [(["a"], 1)]),
    ],
)
def test_a_call_of_keras_is_cut_into_those_of_tensorflow(
    batches: Batches, most: int, expected: list[tuple[Any, int]]
) -> None:
    assert batches.in_calls(most) == expected


def test_the_end_of_data_of_unknown_length_ends_the_epoch_as_in_keras() -> None:
    with pytest.raises(StopIteration):
        Batches(iter(()), 2, is_open=True).in_calls()


def test_canary_keras_has_what_is_replaced() -> None:
    """When this fails, Keras has changed its loop: a line says so, and Keras's own trains."""
    importlib.import_module("keras.src.backend.tensorflow.trainer")
    _has_expected_form.cache_clear()
    assert _has_expected_form()
    assert {"steps_per_epoch", "_num_batches", "_steps_seen", "_current_iterator"} <= {
        name for kind in JobEpochs.__mro__[1:] for name in _names(kind)
    }


def _names(kind: type) -> set[str]:
    init = vars(kind).get("__init__")
    return set(init.__code__.co_names) if hasattr(init, "__code__") else set()


@pytest.mark.parametrize("trainer", [SimpleNamespace(), SimpleNamespace(TensorFlowTrainer=JobTrainer)])
def test_a_keras_of_another_form_is_left_alone_and_said(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "keras.src.backend.tensorflow.trainer", trainer)
    _has_expected_form.cache_clear()
    assert not _has_expected_form()
    assert "differs from those that this release repairs" in capsys.readouterr().err
    assert not _has_expected_form()
    assert capsys.readouterr().err == "", "it is said once"
    _has_expected_form.cache_clear()


def test_every_fault_that_the_table_names_is_in_the_installed_source() -> None:
    """When this fails, a release has mended it: the row may go."""
    assert {one.name: one.is_needed() for one in PATCHES if one.fault} == {
        one.name: True for one in PATCHES if one.fault
    }


def results(model: Any) -> dict[str, Any]:
    return {metric.name: metric.result() for metric in model.metrics}


def shown(model: Any) -> dict[str, Any]:
    tf.print(model.metrics[0].result(), output_stream="file:///dev/null")
    return results(model)


def used(model: Any) -> dict[str, Any]:
    found = results(model)
    model.optimizer.learning_rate.assign(0.5 * found["loss"])
    return found


@pytest.mark.parametrize(
    ("logs", "meets_once"),
    [
        (results, True),
        (lambda model: model.get_metrics_result(), True),
        (lambda model: {**results(model), "raw": tf.constant(1.0)}, True),
        (lambda model: {"twice": 2.0 * model.metrics[0].result()}, True),
        (lambda _: tf.constant(1.0), True),
        (shown, False),
        (used, False),
    ],
)
def test_an_own_step_reads_metrics_in_the_last_batch_alone_unless_it_uses_them(
    logs: Any, meets_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keras_steps, "has_keras_steps", lambda _: False)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    data = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
    model.evaluate(*data, verbose=0)

    def step(data: Any) -> Any:
        model.test_step(data)
        return logs(model)

    steps = keras_steps.TracedSteps(model, step, lambda logs: tf.nest.map_structure(tf.identity, logs))
    local, seen, batches = steps._local, steps._seen, iter(tf.data.Dataset.from_tensors(data).repeat(4))
    taken: list[tuple[Any, int]] = []
    run = steps._run
    monkeypatch.setattr(
        steps, "_run", lambda by, data, count: (run(by, data, count), taken.append((by, count)))[0]
    )
    told = steps.take(Batches(batches, 3))
    assert taken == ([(local, 2), (seen, 1)] if meets_once else [(seen, 1)] * 3)
    tf.nest.map_structure(np.testing.assert_allclose, told, logs(model))
    assert len(list(batches)) == 1, "each is taken once"
    assert not any("result" in vars(metric) for metric in model.metrics)


@pytest.mark.parametrize(
    ("strategy", "devices", "expected"),
    [
        (tf.distribute.MirroredStrategy, ("CPU", "GPU"), True),
        (lambda: tf.distribute.OneDeviceStrategy("CPU:0"), ("CPU", "GPU"), True),
        (tf.distribute.get_strategy, ("CPU", "GPU"), True),
        (tf.distribute.MirroredStrategy, ("CPU",), False),
    ],
)
def test_auto_means_under_a_strategy_what_it_means_without(
    strategy: Any, devices: tuple[str, ...], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_fit()
    with strategy().scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        found = [SimpleNamespace(device_type=kind) for kind in devices]
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: found)
        model.compile("sgd", "mse")
    assert model.jit_compile is expected
