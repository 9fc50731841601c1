"""Agreement between the training workers, by the strategy's own collectives."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import tensorflow as tf

from trainjob_trainer.checkpoint.snapshot import VariableGroups, read
from trainjob_trainer.errors import CheckpointMismatch
from trainjob_trainer.task import Task


def is_collective(strategy: Any) -> bool:
    """Return whether the strategy is a MultiWorkerMirroredStrategy of at least two processes."""
    kinds = {kind.__name__ for kind in type(strategy).__mro__}
    return "CollectiveAllReduceStrategy" in kinds and bool(strategy.extended._in_multi_worker_mode())


def broadcast(strategy: Any, task: Task, values: Sequence[int]) -> list[int]:
    """Return the writer's 64-bit integers on every worker; all call it at the same point with equally many.

    A process whose strategy is of itself alone agrees with itself.
    """
    if not is_collective(strategy):
        return list(values)
    return _added(strategy, task, values if task.is_writer else [0] * len(values))


def gather(strategy: Any, task: Task, number: int) -> list[int]:
    """Return each worker's number by rank, as `gather_all`."""
    return [one for (one,) in gather_all(strategy, task, [number])]


def gather_all(strategy: Any, task: Task, numbers: Sequence[int]) -> list[list[int]]:
    """Return each worker's 64-bit integers by rank; all call it at the same point with equally many."""
    if not is_collective(strategy):
        return [list(numbers)]
    count, workers = len(numbers), task.num_workers
    none = [0] * count
    offered = [number for rank in range(workers) for number in (numbers if rank == task.rank else none)]
    added = _added(strategy, task, offered)
    return [added[count * rank : count * (rank + 1)] for rank in range(workers)]


def _added(strategy: Any, task: Task, offered: Sequence[int]) -> list[int]:
    total = _sum(strategy)(tf.constant(list(offered), tf.int64))
    summed = strategy.experimental_local_results(total)[0].numpy()
    replicas_a_worker = max(1, strategy.num_replicas_in_sync // task.num_workers)
    return [int(value) // replicas_a_worker for value in summed]


@lru_cache(maxsize=4)
def _sum(strategy: Any) -> Any:
    """Traced once for each strategy: tracing costs more than the collective."""

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)])  # type: ignore[untyped-decorator,unused-ignore]
    def total(offered: Any) -> Any:
        def contribute() -> Any:
            here = tf.identity(offered)  # an argument has no device, and the collective needs one
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)

        return strategy.run(contribute)

    return total


def check_same_weights(strategy: Any, task: Task, groups: VariableGroups) -> None:
    """Raise CheckpointMismatch if this worker's variables differ from the writer's, by a hash.

    Workers that restored different values would continue without an error, and diverge.
    """
    mine = weights_hash(groups)
    (writers,) = broadcast(strategy, task, [mine])
    if mine != writers:
        raise CheckpointMismatch(
            f"{task.replica}: the weights restored here differ from the writer's; "
            "do all workers see the same output folder?"
        )


def weights_hash(groups: VariableGroups) -> int:
    """Return a CRC over the local values of all variables, in order."""
    crc = 0
    for arrays in read(groups).values():
        for array in arrays:
            crc = zlib.crc32(array.value.tobytes(), crc)
    return crc
