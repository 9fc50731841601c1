"""The parts of training with parameter servers that need no other process."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from support.trainer.alone import process
from trainjob_trainer import InvalidConfiguration, NotFinite, Preempted, Task
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.distribution.strategy import wait_for_servers
from trainjob_trainer.edge import StopRequest
from trainjob_trainer.keras.gradients import GradientPath
from trainjob_trainer.keras.model import optimizers_of
from trainjob_trainer.keras.not_finite import OnNan
from trainjob_trainer.parameter_server import (
    Block,
    CoordinatorLoop,
    Course,
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


class Workers:
    """Stands in for the engine: blocks are done in the order in which they were handed out."""

    def __init__(
        self, stop_after: int | None = None, stop: StopRequest | None = None, fault_after: int | None = None
    ) -> None:
        self.blocks: deque[int] = deque()
        self.done = 0
        self.most = 0
        self.resets: list[int] = []
        self.saved: list[int] = []
        self._stop_after, self._stop, self._fault_after = stop_after, stop, fault_after

    @property
    def outstanding(self) -> int:
        return len(self.blocks)

    def hand_out(self, iterators: Any, steps: int) -> None:
        assert iterators == "iterators"
        self.blocks.append(steps)
        self.most = max(self.most, len(self.blocks))

    def take_back(self) -> Block:
        self.done += self.blocks[0]
        if self._stop is not None and self._stop_after is not None and self.done >= self._stop_after:
            self._stop._requested.set()
        has_fault = self._fault_after is not None and self.done > self._fault_after
        return Block(self.blocks.popleft(), 0.001, [0, int(has_fault)])

    def metrics(self) -> dict[str, float]:
        return {"loss": float(self.done)}

    def reset(self) -> None:
        assert not self.blocks
        self.resets.append(self.done)

    @property
    def metric_state(self) -> list[Any]:
        assert not self.blocks
        self.saved.append(self.done)
        return []

    def resume_metrics(self, state: Any) -> None:
        del state


def build_loop(folder: Path, workers: Workers, stop: StopRequest) -> tuple[CoordinatorLoop, CheckpointStore]:
    me = dataclasses.replace(process(folder, task=TASK, keep=10), stop=stop)
    store = me.trainings.root
    store.prepare()
    engine: Any = workers
    groups = {"model": [tf.Variable(1.0, name="weight")]}
    return CoordinatorLoop(me, engine, Course(50, 20, 15), store, groups, {}), store


def test_every_step_is_counted_once_and_all_meet_for_checkpoints(tmp_path: Path) -> None:
    workers, stop = Workers(), StopRequest()
    loop, store = build_loop(tmp_path, workers, stop)
    saved = loop.run("iterators", 0, {})
    assert workers.done == 50
    assert workers.resets == [20, 40]
    assert loop.last_epoch == {"loss": 40.0}
    assert workers.saved == store.steps() == [15, 30, 45, 50]
    assert workers.most > 1
    assert {"model", "last-epoch", "settings"} <= set(saved)


def test_on_a_request_to_stop_what_was_handed_out_is_finished_and_saved(tmp_path: Path) -> None:
    stop = StopRequest()
    workers = Workers(stop_after=18, stop=stop)
    loop, store = build_loop(tmp_path, workers, stop)
    with pytest.raises(Preempted, match="saved step"):
        loop.run("iterators", 0, {})
    assert 18 <= workers.done <= 20
    assert store.steps() == [15, workers.done]


def test_a_loss_that_is_not_finite_ends_it_before_anything_is_saved(tmp_path: Path) -> None:
    loop, store = build_loop(tmp_path, Workers(fault_after=20), StopRequest())
    words = r"step 2[0-9]: the loss or a gradient of worker-1 .* clipping may help$"
    with pytest.raises(NotFinite, match=words):
        loop.run("iterators", 0, {})
    assert set(store.steps()) <= {15}  # it may be on its way to the disk


def test_a_resumed_run_takes_the_rest(tmp_path: Path) -> None:
    workers, stop = Workers(), StopRequest()
    loop, _ = build_loop(tmp_path, workers, stop)
    loop.run("iterators", 45, {})
    assert workers.done == 5
