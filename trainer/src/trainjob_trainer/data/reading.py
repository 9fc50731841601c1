"""The training data of a replica, as its recipe says: shared, opened once, and read from a step on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainjob_trainer.data.batches import worker_batches
from trainjob_trainer.data.part import Part, part_of
from trainjob_trainer.data.source import Cache, Policy, TrainingSource
from trainjob_trainer.distribution.collective import gather
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.plan import batch_of_a_device
from trainjob_trainer.recipe import Recipe
from trainjob_trainer.replica import Replica

# Each worker's share of the training data, which the worker itself reads.


_WARN_OF_STATE = 0
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def worker_iterators(strategy: Any, stream: Any, *, workers: int, batch: int) -> Any:
    """Have every worker begin its share of a stream: worker i of n takes every n-th example from the i-th.

    TensorFlow's own `create_per_worker_dataset` doesn't tell a worker which one it is, so all would read the
    same examples. A worker that is started again begins its share anew. A step takes `batch` examples, all of
    them one worker's. `coordinator.schedule` gives each worker its own iterator, as `build_share` has it.
    """
    begin = build_share(stream, workers=workers, batch=batch)
    coordination = tf.distribute.experimental.coordinator
    # One coordinator for each strategy: whoever asks gets the same.
    remote = coordination.ClusterCoordinator(strategy)._cluster.workers
    iterators = [
        one.create_resource(lambda worker: iter(begin(tf.constant(worker, tf.int64))), args=(number,))
        for number, one in enumerate(remote)
    ]
    for iterator in iterators:
        iterator._type_spec = tf.data.IteratorSpec(begin.structured_outputs.element_spec)
    return coordination.PerWorkerValues(tuple(iterators))


def build_share(stream: Any, *, workers: int, batch: int) -> Any:
    """Return a function that builds a worker's share wherever it is called, from the worker's number.

    Its elements are pairs of that number and a batch: by them the chief knows whose step it was.
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
    """Refuse a data set, a serialized GraphDef, that calls Python: workers don't have the user's program."""
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


def open_training_data(
    replica: Replica, strategy: Any, load: Callable[..., Any], recipe: Recipe
) -> TrainingSource:
    """Call the user's function; all workers do so together."""
    task = replica.task
    name = f"{replica.environment.name}-{task.replica}"
    cache = Cache.of(recipe.cache, name, reads_here=not task.is_coordinator)
    return TrainingSource(load, part_of(task), lambda number: gather(strategy, task, number), cache)


def policy_of(replica: Replica, source: TrainingSource, recipe: Recipe) -> Policy:
    """How the job's workers share the training data."""
    return source.policy(replica.task.num_workers, shuffle=recipe.shuffle, cache=recipe.cache)


def distributed_batches(
    replica: Replica, strategy: Any, source: TrainingSource, recipe: Recipe, step: int
) -> Any:
    """This worker's batches from a step on, without end; for a chief, an iterator for each worker."""
    batch = recipe.global_batch or 0  # the recipe has been checked
    stream = source.stream(step=step, global_batch=batch, seed=recipe.seed, shuffle=recipe.shuffle)
    if replica.task.is_coordinator:
        return worker_iterators(strategy, stream, workers=replica.task.num_workers, batch=batch)
    teller = source.read_over(step, batch) if replica.task.is_writer else None

    def of_worker(context: Any) -> Any:
        share = source.share_of(Part(context.input_pipeline_id, context.num_input_pipelines))
        return worker_batches(
            stream,
            workers=share.count,
            worker=share.index,
            batch=batch_of_a_device(batch, strategy.num_replicas_in_sync),
            read_over=teller,
        )

    return strategy.distribute_datasets_from_function(of_worker)
