"""The user's training data: calls of the user's function, and each worker's share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from trainjob_trainer.data.batches import (
    Part,
    Place,
    Reshuffle,
    TrainingData,
    are_nearly_equal,
    as_written,
    check_examples,
    count,
    pass_over,
    place_of,
    refuse_empty,
    reshuffles,
    shared_out,
    shuffle_buffer,
    stream_in_turn,
    turns,
    whole_passes,
    worker_batches,
)
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.recipe import Recipe, TrainingPlan, batch_of_a_device
from trainjob_trainer.replica import Replica

# The log line on how the workers share the training data.


@dataclass(frozen=True)
class Policy:
    """What each worker reads, and in which order.

    `sizes` are the examples of each part, or of all as one; None if they are endless. `window` examples are
    shuffled together; None if each part is shuffled as a whole.
    """

    workers: int
    sizes: Sequence[int] | None
    takes_part: bool
    shuffles: bool
    window: int | None

    def sentence(self, plan: TrainingPlan) -> str:
        """Return the whole log line."""
        sizes, workers = self.sizes, self.workers
        if sizes is None:
            amount = f"endless, {plan.global_batch:,} examples a step"
        else:
            steps = f"{plan.epoch_steps:,} steps of {plan.global_batch:,} an epoch"
            amount = f"{sum(sizes):,} examples, {steps}"
        if workers == 1:
            share = ""
        elif not self.takes_part or (sizes is not None and len(sizes) < workers):
            share = f"each of {workers} workers reads all of it and takes one example in {workers}"
        elif sizes is None or are_nearly_equal(sizes):
            share = f"each of {workers} workers reads a part of its own"
        else:
            share = (
                f"the parts hold {min(sizes):,} to {max(sizes):,} examples, so each of {workers} workers "
                "reads all of them in turn, and every example comes equally often"
            )
        order = "in the order of train()"
        if self.shuffles and sizes is not None:
            order = "shuffled anew each epoch" + (f", {self.window:,} at a time" if self.window else "")
        return "training data: " + "; ".join(clause for clause in (amount, share, order) if clause)


STEP, PART = "step", "part"
"""Parameter names: a function that has them is called with the steps done, and with the worker's part."""
_ENDLESS = -1


class TrainingSource:
    """Training data from `train()`, `train(step)`, `train(part)` or `train(step, part)`.

    The function returns all examples; with `part`, only those of that part; with `step`, endless examples
    that begin with those of that step. Unless it takes the step, it is called at once. A process that reads
    for all workers has all parts as its `part`. All workers call `gather` together; it returns the number of
    each worker, by worker.
    """

    def __init__(
        self,
        load: Callable[..., Any],
        part: Part = Part(),  # noqa: B008 - it is frozen
        gather: Callable[[int], Sequence[int]] = lambda number: [number],
    ) -> None:
        self._load = load
        self._part = part
        self.takes_part, self.takes_step = takes(load, PART), takes(load, STEP)
        self._from_step: dict[int, TrainingData] = {}
        self.sizes: list[int] | None = None
        """Examples of each part, or of all as one; None if they are endless."""
        self._turns: list[TrainingData] = []
        if not self.takes_step:
            self._open(gather)

    @property
    def examples(self) -> int | None:
        """The number of all examples, or None if they are endless."""
        return None if self.sizes is None else sum(self.sizes)

    def share_of(self, worker: Part) -> Part:
        """Return what a worker takes of its stream: every n-th example, or all if it reads its own part."""
        return Part() if self.takes_part else worker

    def policy(self, workers: int, *, shuffle: bool) -> Policy:
        """Return how this number of workers shares the data."""
        limited = [
            shuffle_buffer(data) for data in self._turns if shuffle_buffer(data) < (data.examples or 0)
        ]
        window = min(limited, default=None)
        return Policy(workers, self.sizes, self.takes_part, shuffle and not self.takes_step, window)

    def at(self, step: int) -> TrainingData:
        """Return the function's data when `step` steps are done."""
        if not self.takes_step:
            return self._turns[0]
        if step not in self._from_step:
            self._from_step[step] = self._open_step(step)
        return self._from_step[step]

    def stream(
        self, *, step: int, global_batch: int, seed: int, shuffle: bool, rereads: str = ""
    ) -> tuple[Any, int]:
        """Return endless examples, and how many steps of them this process has to read to be at `step`.

        With `rereads`, `exact` or `epoch`, whole passes over the data aren't read where the order stays
        without that, or by choice. Without it any process can read the stream, which begins at the step.
        """
        if self.takes_step:
            return self.at(step).dataset, 0
        a_step = global_batch // (self._part.count if self.takes_part else 1)
        place, before = self._standing(step * a_step, rereads)
        for stages, passes in before:
            pass_over(stages, passes)
        steps, offset = divmod(place.offset, a_step) if rereads else (0, place.offset)
        part = self._part if self.takes_part else Part()
        place = replace(place, offset=offset)
        return stream_in_turn(self._turns, place, part=part, seed=seed, shuffle=shuffle), steps

    def _standing(self, position: int, rereads: str) -> tuple[Place, list[tuple[list[Reshuffle], int]]]:
        """Return the place to begin at, and what has been passed over by then, and how often."""
        stages = [reshuffles(data.dataset) for data in self._turns]
        anew = [[replace(one, passes=1) for one in found] for found in stages]
        is_known = all(one.passes for found in stages for one in found) and (rereads or not any(stages))
        if self.sizes is None and rereads:
            found, passes, rest = whole_passes(self._turns[0].dataset, position)
            if rereads == "epoch" and not found and rest:
                return Place(0, 0, 0), [(anew[0], 1)]
            return Place(0, 0, rest), [(found, passes)]
        if self.sizes is None or not (is_known or rereads == "epoch"):
            return Place(0, 0, position), []
        place = place_of([data.examples or 0 for data in self._turns], position)
        return place, [(found, place.cycle + (turn < place.turn)) for turn, found in enumerate(anew)]

    def _open(self, gather: Callable[[int], Sequence[int]]) -> None:
        own = count(self._load(**({PART: self._part} if self.takes_part else {})), "train")
        self._turns = [own]
        if not self.takes_part:
            refuse_empty(own, "train")
            self.sizes = None if own.examples is None else [own.examples]
            return
        sizes = list(gather(_ENDLESS if own.examples is None else own.examples))
        check_parts(sizes)
        if _ENDLESS not in sizes:
            self.sizes = sizes
            for number in turns(sizes, self._part.index)[1:]:
                dataset = self._load(part=Part(number, self._part.count))
                check_examples(dataset, "train")
                self._turns.append(TrainingData(dataset, sizes[number]))

    def _open_step(self, step: int) -> TrainingData:
        dataset = self._load(step=step, **({PART: self._part} if self.takes_part else {}))
        check_examples(dataset, "train")
        if int(dataset.cardinality()) not in (tf.data.INFINITE_CARDINALITY, tf.data.UNKNOWN_CARDINALITY):
            raise InvalidConfiguration(
                "train(step) must return examples without end, as .repeat() does: how many epochs they are "
                "is yours to say, by steps=..."
            )
        return TrainingData(dataset, None)


def as_function(data: Any, name: str) -> Callable[..., Any]:
    """Return the user's function of examples, or one for the examples of a data set or a tuple of arrays.

    Errors name the argument by `name`.
    """
    if isinstance(data, tf.data.Dataset):
        return lambda: data
    if callable(data):
        return data  # type: ignore[no-any-return]
    if not isinstance(data, tuple):
        raise InvalidConfiguration(
            f"{name}: must be a function that returns a tf.data.Dataset of single examples, such a data set, "
            f"or a tuple of arrays such as (x, y), got {type(data).__name__}"
        )
    lengths = [len(one) for one in tf.nest.flatten(data)]
    if len(set(lengths)) > 1:
        raise InvalidConfiguration(
            f"{name}: the arrays have different lengths: {', '.join(map(str, lengths))}"
        )
    return lambda: tf.data.Dataset.from_tensor_slices(data)


def with_class_weight(load: Callable[..., Any], weights: Mapping[int, float] | None) -> Callable[..., Any]:
    """Return a function of the same examples, each with the weight of its class; None changes nothing.

    `weights` has integer labels from 0 on as keys; a label without a weight counts 1.
    """
    if weights is None:
        return load
    table = np.ones(max(weights) + 1, np.float32)
    for label, weight in weights.items():
        table[label] = weight

    @as_written
    def weighted(*example: Any) -> Any:
        if len(example) != 2:
            raise InvalidConfiguration(
                "class_weight: train() must return pairs of features and label, without sample weights"
            )
        label = example[1]
        is_one_hot = label.shape.rank and label.shape[-1] not in (1, None)
        number = tf.argmax(label, axis=-1) if is_one_hot else tf.cast(tf.reshape(label, []), tf.int64)
        known = tf.minimum(number, len(table) - 1)
        return (*example, tf.where(number < len(table), tf.gather(table, known), 1.0))

    @functools.wraps(load)
    def load_weighted(**arguments: Any) -> Any:
        return load(**arguments).map(weighted)

    return load_weighted


def only_first(load: Callable[..., Any], examples: int) -> Callable[..., Any]:
    """Return a function of the first examples alone, for a smoke test: counting all may take long.

    One that takes the step has to be endless, and isn't counted.
    """
    if takes(load, STEP):
        return load

    @functools.wraps(load)
    def load_first(**arguments: Any) -> Any:
        data = load(**arguments)
        return data.take(examples) if isinstance(data, tf.data.Dataset) else data

    return load_first


def takes(load: Callable[..., Any], name: str) -> bool:
    """Return whether the user's function has a parameter of this name."""
    try:
        return name in inspect.signature(load).parameters
    except (TypeError, ValueError):  # a built-in function
        return False


def check_parts(sizes: Sequence[int]) -> None:
    """Refuse parts if one is empty, or if some are endless (-1) and others are not.

    All workers see the same sizes, and refuse together.
    """
    empty = [number for number, size in enumerate(sizes) if size == 0]
    if empty:
        raise InvalidConfiguration(
            f"train(part) has no examples for part {empty[0]} of {len(sizes)} (numbered from 0), which is "
            f"worker {empty[0]}'s: where there are fewer files than workers, share their records, as "
            "`interleaved(files, parse, part=part)` does"
        )
    if _ENDLESS in sizes and set(sizes) != {_ENDLESS}:
        ends = next(number for number, size in enumerate(sizes) if size != _ENDLESS)
        raise InvalidConfiguration(
            f"train(part) is endless for some parts, and ends for part {ends}: repeat all of them or none"
        )


# Each worker's share of the training data.


_WARN_OF_STATE = 0
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def worker_iterators(strategy: Any, stream: Any, *, workers: int, batch: int) -> Any:
    """Start each worker's share of a stream there: worker i of n takes every n-th example from the i-th on.

    TensorFlow's own `create_per_worker_dataset` does not pass a worker its number, so all would read the same
    examples. A restarted worker begins its share again. A step takes `batch` examples, all of one worker.
    `coordinator.schedule` gives each worker its own iterator, as `build_share` describes it.
    """
    begin = build_share(stream, workers=workers, batch=batch)
    coordination = tf.distribute.experimental.coordinator
    # Each strategy has one coordinator, which every call returns.
    remote = coordination.ClusterCoordinator(strategy)._cluster.workers
    iterators = [
        one.create_resource(lambda worker: iter(begin(tf.constant(worker, tf.int64))), args=(number,))
        for number, one in enumerate(remote)
    ]
    for iterator in iterators:
        iterator._type_spec = tf.data.IteratorSpec(begin.structured_outputs.element_spec)
    return coordination.PerWorkerValues(tuple(iterators))


def build_share(stream: Any, *, workers: int, batch: int) -> Any:
    """Return a function that builds a worker's share where it is called, from the worker's number.

    Its elements are pairs of that number and a batch: the number shows the chief which worker took the step.
    """
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(stream),
        external_state_policy=_WARN_OF_STATE,
        strip_device_assignment=True,
    )
    refuse_python(graph.numpy())
    spec = stream.element_spec

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int64)])  # type: ignore[untyped-decorator,unused-ignore]
    def share(worker: Any) -> Any:
        whole = tf.data.experimental.from_variant(tf.raw_ops.DatasetFromGraph(graph_def=graph), spec)
        batches = worker_batches(whole, workers=workers, worker=worker, batch=batch)
        return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(worker).repeat(), batches))

    return share.get_concrete_function()


def refuse_python(graph: bytes) -> None:
    """Refuse a data set (a serialized GraphDef) that calls Python: workers don't have the user's program."""
    if b"PyFunc" not in graph:
        return
    parsed = tf.compat.v1.GraphDef.FromString(graph)
    functions = [node for function in parsed.library.function for node in function.node_def]
    if any(node.op in _PYTHON for node in [*parsed.node, *functions]):
        raise InvalidConfiguration(
            "train() calls Python for its examples (from_generator, py_function, numpy_function), and with "
            "parameter servers the workers read the data without your program: use TensorFlow's "
            "own operations, or TFRecord files"
        )


def distributed_batches(
    replica: Replica, strategy: Any, source: TrainingSource, recipe: Recipe, step: int
) -> tuple[Any, int]:
    """Return this worker's endless batches, and how many steps of them to read to be at `step`.

    For a chief, return an iterator for each worker, which stands there.
    """
    batch = recipe.global_batch or 0  # the recipe has been checked
    is_chief = replica.task.is_coordinator
    stream, steps = source.stream(
        step=step,
        global_batch=batch,
        seed=recipe.seed,
        shuffle=recipe.shuffle,
        rereads="" if is_chief else recipe.resume_data,
    )
    if is_chief:
        return worker_iterators(strategy, stream, workers=replica.task.num_workers, batch=batch), 0

    def of_worker(context: Any) -> Any:
        share = source.share_of(Part(context.input_pipeline_id, context.num_input_pipelines))
        return worker_batches(
            stream,
            workers=share.count,
            worker=share.index,
            batch=batch_of_a_device(batch, strategy.num_replicas_in_sync),
        )

    return shared_out(strategy, of_worker), steps
