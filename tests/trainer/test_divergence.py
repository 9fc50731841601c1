"""Whose weights have come apart, by which variables that is seen, and what is saved then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from support.trainer.alone import train
from trainjob_trainer import PeerLost, Preempted, Task, WeightsDiverged
from trainjob_trainer.checkpoint.snapshot import local_components, variable_name
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.distribution import divergence
from trainjob_trainer.distribution.divergence import (
    Apart,
    WeightsWatch,
    describe,
    find_apart,
    hash_of,
    mirrored,
)
from trainjob_trainer.keras.gradients import _note_gathered
from trainjob_trainer.keras.pace import Looks

THREE = {"worker": ("a:1", "b:1", "c:1")}
MIRRORED = tf.distribute.MirroredStrategy(["CPU:0"])


@pytest.mark.parametrize(
    ("hashes", "expected"),
    [
        ([], None),
        ([7], None),
        ([7, 7], None),
        ([7, 7, 7, 7], None),
        ([7, 7, 8], Apart([2], is_certain=True)),
        ([8, 7, 7], Apart([0], is_certain=True)),
        ([7, 8, 7, 9, 7], Apart([1, 3], is_certain=True)),
        ([7, 8], Apart(range(2), is_certain=False)),
        ([7, 8, 9], Apart(range(3), is_certain=False)),
        ([7, 7, 8, 8], Apart(range(4), is_certain=False)),
        ([7, 7, 8, 9], Apart(range(4), is_certain=False)),
        ([None], Apart([0], is_certain=True)),  # a worker whose own devices differ is wrong whoever agrees
        ([None, 7], Apart([0], is_certain=True)),
        ([7, None, 7], Apart([1], is_certain=True)),
        ([None, 7, 8, 7, 7], Apart([0, 2], is_certain=True)),
        ([None, 7, 8], Apart(range(3), is_certain=False)),
        ([None, None], Apart([0, 1], is_certain=True)),
    ],
)
def test_the_odd_one_is_named_where_more_than_half_agree(
    hashes: Sequence[int | None], expected: Apart | None
) -> None:
    found = find_apart(hashes)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert (list(found.ranks), found.is_certain) == (list(expected.ranks), expected.is_certain)


ENDING = "; they are not saved, and training goes back to the last checkpoint"


@pytest.mark.parametrize(
    ("apart", "count", "variables", "expected"),
    [
        (
            Apart([1], is_certain=True),
            3,
            ["dense/kernel"],
            "worker-1's weights differ from the others' at step 12 (variable dense/kernel)",
        ),
        (
            Apart([0, 2], is_certain=True),
            5,
            ["a", "b", "c"],
            "worker-0's and worker-2's weights differ from the others' at step 12 (variable a and 2 more)",
        ),
        (
            Apart(range(2), is_certain=False),
            2,
            ["a"],
            "worker-0's and worker-1's weights differ from each other's at step 12 (variable a); no majority "
            "says whose are right",
        ),
        (
            Apart(range(6), is_certain=False),
            6,
            ["a"],
            "worker-0's, worker-1's, worker-2's, worker-3's and 2 more workers' weights differ from each "
            "other's at step 12 (variable a); no majority says whose are right",
        ),
        (
            Apart([0], is_certain=True),
            1,
            ["a"],
            "worker-0's weights differ between their devices at step 12 (variable a)",
        ),
    ],
)
def test_the_sentence_names_worker_step_and_variable(
    apart: Apart, count: int, variables: list[str], expected: str
) -> None:
    assert describe(apart, [f"worker-{rank}" for rank in range(count)], variables, 12) == expected + ENDING


class Noise(keras.layers.Layer):
    """A layer with a random state, a counter and a scale of its own."""

    def __init__(self) -> None:
        super().__init__(name="noise")
        self.random = keras.random.SeedGenerator(1)
        self.calls = self.add_weight(shape=(), dtype="int32", trainable=False, name="calls")
        self.mean = self.add_weight(shape=(), trainable=False, aggregation="mean", name="mean")

    def call(self, inputs: Any) -> Any:
        return inputs + keras.random.normal((4,), seed=self.random)


def everything() -> Any:
    """A model with everything that there is to hold."""
    inputs = keras.Input((3,), dtype="int32")
    frozen = keras.layers.Embedding(5, 4, name="frozen")
    net = keras.layers.Flatten()(frozen(inputs))
    net = keras.layers.Dense(4, name="half", dtype="mixed_float16")(net)
    net = keras.layers.BatchNormalization(name="norm")(net)
    net = keras.layers.Dropout(0.5, name="dropout")(net)
    model = keras.Model(inputs, Noise()(net))
    frozen.trainable = False
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(use_ema=True, gradient_accumulation_steps=2)
    )
    model.compile(optimizer, "mse", metrics=["mae"])
    optimizer.build(model.trainable_variables)
    return model


def test_the_variables_of_a_model_are_told_apart() -> None:
    with MIRRORED.scope():
        model = everything()
        counter = tf.Variable(0, trainable=True)
    weights = {"model": [*model.variables, counter], "metrics": model.metrics_variables}
    names = [variable_name(one) for one in mirrored(weights)]
    assert names == [
        "frozen/embeddings",
        "half/kernel",
        "half/bias",
        "norm/gamma",
        "norm/beta",
        "noise/mean",
    ]
    all_of_them = [variable_name(one) for one in model.optimizer.variables]
    assert [variable_name(one) for one in mirrored({"optimizer": model.optimizer.variables})] == all_of_them
    assert {"dynamic_scale", "kernel_average", "gradient_accumulator", "momentum", "iteration"} <= {
        word for name in all_of_them for word in [name.rpartition("/")[2], *_endings(name)]
    }


def _endings(name: str) -> list[str]:
    parts = name.split("_")
    return ["_".join(parts[-count:]) for count in range(1, len(parts) + 1)]


def test_in_a_loop_of_ones_own_an_optimizers_sums_may_be_each_workers() -> None:
    with MIRRORED.scope():
        model = everything()
    found = [variable_name(one) for one in mirrored({"training": model.optimizer.variables})]
    assert [name.rpartition("/")[2] for name in found] == ["iteration", "learning_rate"] * 2


def test_without_a_strategy_nothing_is_mirrored() -> None:
    assert mirrored({"model": everything().variables}) == []


def test_tables_that_are_updated_by_rows_are_left_out_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    with MIRRORED.scope():
        table = keras.Variable(np.zeros((5, 4), "float32"), name="table")
        slot = keras.Variable(np.zeros((5, 4), "float32"), trainable=False, name="slot")
        other = keras.Variable(np.zeros((4,), "float32"), name="other")
    rows = tf.IndexedSlices(tf.zeros((1, 4)), tf.constant([0]), tf.constant([5, 4]))
    groups = {"model": [table, other], "optimizer": [slot]}
    _note_gathered([rows, tf.zeros(4)], [table, other])
    assert mirrored(groups) == [table, other, slot]
    monkeypatch.setattr(divergence, "has_gpus", lambda: True)
    assert mirrored(groups) == [other]


DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "int8")


@pytest.mark.parametrize(
    ("dtype", "count"),
    [
        *((dtype, count) for dtype in DTYPES for count in (1, 3)),
        ("float32", 1 << 20),
        ("bfloat16", (1 << 20) + 5),
        ("int64", (1 << 20) + 5),
        ("uint8", (1 << 22) + 13),
    ],
)
def test_any_bit_changes_the_hash(dtype: str, count: int) -> None:
    kind = tf.as_dtype(dtype).as_numpy_dtype
    value = (np.arange(count) % 100).astype(kind)
    variables = [tf.Variable(1.0), tf.Variable(value), tf.Variable([2, 3])]
    before = hash_of(variables)
    assert hash_of(variables) == before
    size = value.dtype.itemsize
    for place in sorted({0, count // 2, count - 1}):
        for bit in (0, 8 * size - 1):
            data = bytearray(value.tobytes())
            data[place * size + bit // 8] ^= 1 << bit % 8
            variables[1].assign(np.frombuffer(bytes(data), value.dtype))
            assert hash_of(variables) != before, (place, bit)


def test_values_that_changed_places_change_the_hash() -> None:
    value = np.random.default_rng(0).normal(size=1 << 20).astype("float32")
    swapped = np.concatenate([value[1 << 19 :], value[: 1 << 19]])
    assert hash_of([tf.Variable(value)]) != hash_of([tf.Variable(swapped)])
    assert hash_of([tf.Variable([True, False])]) != hash_of([tf.Variable([False, True])])


class Workers:
    """Three of them; what the others say is what this one says, but for what is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rank: int = 0, *, machine: int | None = None) -> None:
        self.bad: int | None = None
        self.asked = 0
        self.machine = machine
        extended = type("MirroredExtended", (), {})()
        strategy = SimpleNamespace(extended=extended, num_replicas_in_sync=3)
        monkeypatch.setattr(divergence, "gather_all", self._gather_all)
        monkeypatch.setattr(divergence, "gather", self._gather)
        with MIRRORED.scope():
            self.groups = {"model": [keras.Variable([1.0], name=name) for name in ("a", "b")]}
        self.watch = WeightsWatch(strategy, Task("worker", rank, THREE))

    def _gather(self, _strategy: Any, _task: Task, number: int) -> list[int]:
        return [number, number, number if self.machine is None else self.machine]

    def _gather_all(self, _strategy: Any, _task: Task, numbers: Sequence[int]) -> list[list[int]]:
        self.asked += 1
        others = [*numbers[:-1], numbers[-1] ^ 1]
        return [others if rank == self.bad else list(numbers) for rank in range(3)]


def test_workers_that_agree_go_on_and_ask_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(monkeypatch)
    for step in (5, 5, 10):
        workers.watch.compare(workers.groups, step)
    assert workers.asked == 2


@pytest.mark.parametrize(("rank", "error"), [(1, WeightsDiverged), (0, PeerLost), (2, PeerLost)])
def test_the_odd_one_says_so_and_the_others_lose_it(
    rank: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Workers(monkeypatch, rank)
    workers.bad = 1
    words = r"worker-1's weights differ from the others' at step 5 \(variable b\)"
    with pytest.raises(error, match=words) as raised:
        workers.watch.compare(workers.groups, 5)
    assert getattr(raised.value, "replicas", ()) == (("worker-1",) if error is WeightsDiverged else ())


@pytest.mark.parametrize(
    ("machine", "printed"),
    [(divergence._NOT_WANTED, ""), (7, "round differently: their weights are not compared")],
)
def test_where_one_rounds_differently_or_does_not_want_to_nobody_compares(
    machine: int, printed: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    workers = Workers(monkeypatch, machine=machine)
    workers.bad = 1
    workers.watch.compare(workers.groups, 5)
    assert workers.asked == 0
    told = "".join(capfd.readouterr())
    assert printed in told
    assert bool(told) == bool(printed)


def compared(monkeypatch: pytest.MonkeyPatch, apart_at: int | None = None) -> list[int]:
    """Return the list of steps that will be compared; the workers have come apart at one."""
    steps: list[int] = []

    def compare(self: WeightsWatch, groups: Any, step: int) -> None:
        steps.append(step)
        if step == apart_at:
            raise WeightsDiverged("apart")

    monkeypatch.setattr(WeightsWatch, "compare", compare)
    return steps


def saved(folder: Path) -> list[int]:
    return CheckpointStore(folder / "checkpoints").steps()


def test_each_checkpoint_is_compared_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = compared(monkeypatch)
    train(tmp_path, epochs=5, checkpoint_every=4)
    assert steps == saved(tmp_path) == [4, 8, 10]


@pytest.mark.parametrize(("apart_at", "expected"), [(4, []), (8, [4]), (10, [4, 8])])
def test_what_has_come_apart_is_not_saved(
    apart_at: int, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(monkeypatch, apart_at)
    with pytest.raises(WeightsDiverged):
        train(tmp_path, epochs=5, checkpoint_every=4)
    assert saved(tmp_path) == expected
    assert CheckpointStore(tmp_path / "checkpoints").final() is None


@pytest.mark.parametrize(
    ("apart_at", "error", "expected"), [(None, Preempted, [3]), (3, WeightsDiverged, [])]
)
def test_so_is_what_is_saved_because_the_process_is_to_end(
    apart_at: int | None,
    error: type[Exception],
    expected: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Looks, "after_call", lambda _, wishes, **__: wishes())  # after each call
    steps = compared(monkeypatch, apart_at)
    with pytest.raises(error):
        train(tmp_path, epochs=5, checkpoint_every=4, stopped_at=3)
    assert (steps, saved(tmp_path)) == ([3], expected)


def test_a_replicas_own_component_is_what_is_hashed() -> None:
    with MIRRORED.scope():
        variable = keras.Variable([1.0, 2.0])
    (component,) = local_components(variable)
    before = hash_of([component])
    component.assign([1.0, 3.0])
    assert hash_of([component]) != before
