"""The parts of training with parameter servers that need no other process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from support.trainer import alone
from trainjob_trainer import InvalidConfiguration, NotFinite, Preempted, Task, parameter_server
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.distribution.strategy import wait_for_servers
from trainjob_trainer.keras.gradients import GradientPath
from trainjob_trainer.keras.model import optimizers_of
from trainjob_trainer.keras.not_finite import OnNan
from trainjob_trainer.parameter_server import (
    Tally,
    add_on_server,
    build_share,
    many_steps,
    next_block,
    shuffled_passes,
    wait_for_end,
)

TASK = Task("chief", 0, {"chief": ("a:1",), "worker": ("b:1", "c:1"), "ps": ("d:1",)})


@given(left=st.integers(1, 5000), wanted=st.integers(1, 1000), workers=st.integers(1, 64))
def test_a_block_leaves_work_for_all(left: int, wanted: int, workers: int) -> None:
    block = next_block(left, wanted, workers)
    assert 1 <= block <= min(left, wanted)
    assert block == 1 or block * (workers - 1) < left


def test_the_chief_waits_for_each_server_and_says_for_whom() -> None:
    now, told = [0.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    wait_for_servers(
        TASK,
        lambda address: address != "c:1" or now[0] > 40,
        clock=lambda: now[0],
        sleep=sleep,
        tell=told.append,
    )
    assert told == ["waiting for worker-1 at c:1"]


@pytest.mark.parametrize(
    ("looks", "count"),
    [
        (["up", "up", "gone"], 3),
        (["gone", "gone", "up", "gone"], 4),  # the mark may be an earlier training's
    ],
)
def test_a_server_ends_after_the_chief(looks: list[str], count: int) -> None:
    seen: list[str] = []

    def is_gone() -> bool:
        seen.append(looks[len(seen)])
        return seen[-1] == "gone"

    wait_for_end(lambda: True, is_gone, wait=lambda _: None)
    assert len(seen) == count


def test_a_server_waits_for_a_chief_that_has_not_finished() -> None:
    finished = iter([False, False, True])
    looks = iter([False, True, True, True])
    wait_for_end(lambda: next(finished), lambda: next(looks), wait=lambda _: None)
    assert next(finished, None) is None


def first(stream: Any, count: int) -> list[int]:
    return [int(value) for value in stream.take(count)]


def test_each_pass_has_another_order_which_depends_on_seed_and_pass_alone() -> None:
    tf.random.set_seed(5)
    numbers = tf.data.Dataset.range(10)
    whole = first(shuffled_passes(numbers, 1, 0), 30)
    tf.random.set_seed(0)
    assert first(shuffled_passes(numbers, 1, 1), 20) == whole[10:]
    assert first(shuffled_passes(numbers, 2, 0), 10) != whole[:10]
    passes = [whole[at : at + 10] for at in (0, 10, 20)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert len(set(map(tuple, passes))) == 3


def test_workers_have_the_shuffled_examples_too() -> None:
    share = build_share(shuffled_passes(tf.data.Dataset.range(6), 1, 0), workers=2, batch=3)
    shares = [next(iter(share(tf.constant(i, tf.int64))))[1].numpy().tolist() for i in range(2)]
    assert sorted(shares[0] + shares[1]) == list(range(6))


def test_each_worker_reads_its_own_share() -> None:
    share = build_share(tf.data.Dataset.range(12).repeat(), workers=3, batch=2)
    shares = [list(share(tf.constant(i, tf.int64)).take(2).as_numpy_iterator()) for i in range(3)]
    assert [[whose for whose, _ in pairs] for pairs in shares] == [[0, 0], [1, 1], [2, 2]]
    batches = [[batch.tolist() for _, batch in pairs] for pairs in shares]
    assert batches == [[[0, 3], [6, 9]], [[1, 4], [7, 10]], [[2, 5], [8, 11]]]


def test_a_worker_keeps_examples_in_memory() -> None:
    share = build_share(tf.data.Dataset.range(4).cache().repeat(), workers=2, batch=2)
    batches = share(tf.constant(1, tf.int64)).take(3)
    assert [batch.numpy().tolist() for _, batch in batches] == [[1, 3]] * 3


def generated() -> Any:
    def numbers() -> Iterator[int]:
        yield from range(4)

    return tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64))


@pytest.mark.parametrize(
    "dataset",
    [
        generated(),
        tf.data.Dataset.range(4).map(lambda n: tf.numpy_function(lambda x: x, [n], tf.int64)),
        tf.data.Dataset.range(4).map(lambda n: tf.py_function(lambda x: x, [n], tf.int64)),
    ],
)
def test_data_that_takes_python_is_refused(dataset: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="train calls Python"):
        build_share(dataset, workers=2, batch=2)


def test_data_that_speaks_of_it_is_not() -> None:
    build_share(tf.data.Dataset.from_tensors("PyFunc").repeat(), workers=2, batch=2)


def test_metrics_and_steps_are_counted_as_before() -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    inputs, labels = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
    model.optimizer.build(model.trainable_variables)
    plain = model.evaluate(inputs, labels, batch_size=4, verbose=0, return_dict=True)
    add_on_server(model)
    assert model.evaluate(inputs, labels, batch_size=4, verbose=0, return_dict=True) == plain
    model.fit(inputs, labels, batch_size=4, epochs=3, verbose=0)
    assert int(model.optimizer.iterations) == 6


@pytest.mark.parametrize(("watched", "first_fault", "applied"), [(True, 3, 4), (False, 0, 5)])
def test_an_update_that_is_not_finite_is_told_of_and_left_out(
    watched: bool, first_fault: int, applied: int
) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    inputs = np.ones((5, 4, 2), "float32")
    inputs[2, 1] = np.nan
    batches = tf.data.Dataset.from_tensor_slices((inputs, np.ones((5, 4, 1), "float32")))
    second = tf.data.Dataset.from_tensors(tf.constant(1, tf.int64)).repeat()
    strategy = tf.distribute.get_strategy()
    on_nan = OnNan.SKIP if watched else OnNan.IGNORE
    path = GradientPath(strategy, optimizers_of(model), on_nan)
    tally = Tally(strategy, 2)
    call = many_steps(strategy, model.train_step, path, tally)
    call(iter(tf.data.Dataset.zip((second, batches))), tf.constant(5))
    seconds_a_step, faults = tally.look()
    assert 0 < seconds_a_step < 60
    assert faults == [0, first_fault]
    assert tally.look() == (seconds_a_step, faults)
    assert int(model.optimizer.iterations) == applied
    assert bool(np.isfinite(model.get_weights()[0]).all()) is watched


class Coordinator:
    """Stands in for all workers: it takes a block's steps at once, and they are done when asked for."""

    most = 0

    def __init__(self, strategy: Any) -> None:
        del strategy
        self.outstanding = 0

    def schedule(self, steps: Any, args: Any) -> Any:
        steps(*args)
        self.outstanding += 1
        Coordinator.most = max(Coordinator.most, self.outstanding)
        return SimpleNamespace(fetch=self._fetch)

    def _fetch(self) -> None:
        self.outstanding -= 1


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chief takes the steps itself, on the rows of all workers."""
    monkeypatch.setattr(tf.distribute.experimental.coordinator, "ClusterCoordinator", Coordinator)
    monkeypatch.setattr(Coordinator, "most", 0)
    monkeypatch.setattr("trainjob_trainer.library.build_strategy", lambda *_, **__: alone.STRATEGY)

    def all_rows(strategy: Any, stream: Any, *, workers: int, batch: int) -> Any:
        del strategy, workers
        return iter(build_share(stream, workers=1, batch=batch)(tf.constant(0, tf.int64)))

    monkeypatch.setattr(parameter_server, "worker_iterators", all_rows)


ROWS = np.random.default_rng(1).normal(size=(30, 3)).astype("float32")
WORDS = {"task": TASK, "epochs": 3, "steps_per_epoch": 20, "checkpoint_every": 15, "keep": 10}


def rows(rows: Any = ROWS) -> Any:
    return tf.data.Dataset.from_tensor_slices((rows, rows[:, :1]))


def check_saved(folder: Path, *steps: int) -> None:
    """Each checkpoint holds the updates of exactly its steps: no block is outstanding when it is read."""
    store = CheckpointStore(folder / "checkpoints")
    assert store.steps() == list(steps)
    for step in steps:
        (count,) = (
            one.value for one in store.read(store.at(step))["optimizer"] if one.name.endswith("iteration")
        )
        assert int(count) == step


def test_every_step_is_counted_once_and_all_meet_for_checkpoints(tmp_path: Path) -> None:
    trained = alone.train(tmp_path, data=rows, **WORDS)
    check_saved(tmp_path, 15, 30, 45, 60)
    assert trained.step == 60
    assert len(trained.model.history.history["loss"]) == 3
    assert Coordinator.most > 1


def test_a_second_start_has_nothing_to_do(tmp_path: Path) -> None:
    first = alone.train(tmp_path, data=rows, **WORDS)
    store = CheckpointStore(tmp_path / "checkpoints")
    store.clear_final()  # the job is still the same
    again = alone.train(tmp_path, data=rows, **WORDS)
    assert Coordinator.most > 1
    check_saved(tmp_path, 15, 30, 45, 60)
    assert (again.step, again.metrics) == (first.step, first.metrics)


def test_on_a_request_to_stop_what_was_handed_out_is_finished_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainjob_trainer.keras.pace.CALLS_A_LOOK", 1)  # also while blocks are outstanding
    with pytest.raises(Preempted, match="saved step"):
        alone.train(tmp_path, data=rows, stopped_at=17, **WORDS)
    *_, reached = CheckpointStore(tmp_path / "checkpoints").steps()
    check_saved(tmp_path, 15, reached)
    assert 17 <= reached <= 20


def test_a_loss_that_is_not_finite_ends_it_before_anything_is_saved(tmp_path: Path) -> None:
    bad = np.concatenate([ROWS] * 3)
    bad[88] = np.nan
    words = r"step 2[0-9]: the loss or a gradient of worker-0 .* clipping may help$"
    with pytest.raises(NotFinite, match=words):
        alone.train(tmp_path, data=lambda: rows(bad), shuffle=False, **WORDS)
    assert set(CheckpointStore(tmp_path / "checkpoints").steps()) <= {15}  # it may be on its way to the disk


@pytest.mark.parametrize("killed_at", [31, 41])
def test_a_resumed_run_takes_the_rest(tmp_path: Path, killed_at: int) -> None:
    whole = alone.train(tmp_path / "whole", data=rows, **WORDS)
    with pytest.raises(alone.Killed):
        alone.train(tmp_path, data=rows, killed_at=killed_at, **WORDS)
    resumed = alone.train(tmp_path, data=rows, **WORDS)
    check_saved(tmp_path, 15, 30, 45, 60)
    assert resumed.step == 60
    assert resumed.model.history.history == whole.model.history.history
    for one, other in zip(whole.model.get_weights(), resumed.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_smoke_test_takes_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAIN_SMOKE", "true")
    monkeypatch.setenv("TRAINJOB_OUTPUT_DIR", str(tmp_path))
    assert alone.train(tmp_path, data=rows, **WORDS).step == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"build": alone.model()}, "it must be a function that returns the compiled model"),
        ({"data": lambda: rows(ROWS[:0])}, "train: there are no examples"),
        ({"on_nan": "skip"}, 'on_nan: "skip" isn\'t possible with parameter servers'),
        ({"global_batch": None}, "global_batch: must be given"),
        ({"data": lambda: rows().repeat(), "steps_per_epoch": None}, "steps_per_epoch: must be given"),
    ],
)
def test_what_it_cannot_train_is_refused(tmp_path: Path, words: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        alone.train(tmp_path, **{"data": rows, **WORDS, **words})
