"""The files that each worker reads, if the script shards its data by file (`auto_shard_policy` FILE).

Worker i of n reads every n-th file from the i-th on; TensorFlow rewrites the pipeline for that. Its rows are
batched again, so that all workers together take one global batch per step. Files hold different numbers of
rows, and no worker may run out of rows while others wait for it in a collective. So the steps of an epoch are
planned from the rows of all workers, or the script sets them, and then files are read repeatedly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainjob_trainer.data.batches import Part, as_written, count_elements, equally_many
from trainjob_trainer.errors import InvalidConfiguration

_POLICY = tf.data.experimental.AutoShardPolicy.FILE
_IGNORE_STATE = 1
_BATCHES = ("BatchDataset", "ParallelBatchDataset")
UNKNOWN = -1
"""An unknown number of files or rows, where only integers can be exchanged."""


def is_by_file(dataset: Any) -> bool:
    """Return whether the user chose that each worker reads its own files."""
    if not isinstance(dataset, tf.data.Dataset):
        return False
    return bool(dataset.options().experimental_distribute.auto_shard_policy == _POLICY)


# What a worker reads, as TensorFlow decides it.


def shard(dataset: Any, part: Part) -> Any:
    """Return the pipeline on one worker's files; raises tf.errors.OpError if TensorFlow finds no files."""
    specs = [
        one if isinstance(one, tf.TensorSpec) else tf.TensorSpec([], tf.variant)
        for one in tf.nest.flatten(dataset.element_spec)
    ]
    variant = tf.raw_ops.AutoShardDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        num_workers=part.count,
        index=part.index,
        auto_shard_policy=_POLICY.value,
        num_replicas=part.count,
        output_types=[one.dtype for one in specs],
        output_shapes=[one.shape for one in specs],
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def count_files(sharded: Any) -> list[int] | None:
    """Return the length of each list of files that the workers share; None if it can't be known."""
    graph = tf.compat.v1.GraphDef.FromString(
        tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(sharded),
            external_state_policy=_IGNORE_STATE,
            strip_device_assignment=True,
        ).numpy()
    )
    inserted = [node for node in graph.node if node.op == "ShardDataset" and node.attr["require_non_empty"].b]
    lists = [_upstream(graph, node) for node in inserted]
    if any(int(one.cardinality()) == tf.data.INFINITE_CARDINALITY for one in lists):
        return None
    return [count_elements(one) for one in lists] or None


def files_of(lists: Sequence[int], part: Part) -> int:
    """Return how many files one worker reads: every n-th of each list."""
    return sum(len(range(part.index, files, part.count)) for files in lists)


def _upstream(graph: Any, node: Any) -> Any:
    """Return the data set that is sharded: usually the names of the files."""
    cut = tf.compat.v1.GraphDef()
    cut.CopyFrom(graph)
    (end,) = [one for one in cut.node if one.op == "_Retval"]
    end.input[0] = node.input[0]
    variant = tf.raw_ops.DatasetFromGraph(graph_def=cut.SerializeToString())
    types = node.attr["output_types"].list.type
    specs = tuple(tf.TensorSpec(None, tf.as_dtype(one)) for one in types)
    return tf.data.experimental.from_variant(variant, specs)


def count_rows(dataset: Any, part: Part, batch: int, rows_of: Callable[[Any], Any]) -> int:
    """Count the rows in one worker's files, without parsing or batching if the pipeline allows it.

    A full batch has `batch` rows; `rows_of` counts the rows of an element.
    """
    none = tf.constant(0, tf.int64)
    stage = equally_many(dataset)
    if type(stage).__name__.lstrip("_") not in _BATCHES:
        return int(shard(stage, part).reduce(none, as_written(lambda total, *one: total + rows_of(one))))
    records = equally_many(*stage._inputs())
    rows = count_elements(shard(records, part))
    drops_rest = tf.nest.flatten(stage.element_spec)[0].shape[0] is not None
    return rows - rows % batch if drops_rest else rows


def count_batches(dataset: Any, part: Part) -> int:
    """Count the batches that the pipeline makes of one worker's files."""
    return count_elements(shard(equally_many(dataset), part))


# Plans of the steps and batches of all workers.


@dataclass(frozen=True)
class Plan:
    """What a worker takes from its files in an epoch, or repeatedly.

    Attributes:
        steps: steps of an epoch; None if files are read repeatedly.
        sizes: rows that its devices take, one after the other; repeated if there are no steps. None if
            batches can't be joined; then each is cut into as many parts as all workers have devices.
        shares: the share of a step's rows for each of the sizes; None if all are equal.
    """

    steps: int | None
    sizes: Sequence[int] | None
    shares: Sequence[float] | None = None


def split(rows: int, parts: int) -> list[int]:
    """Split rows into parts as evenly as possible."""
    return [rows * (number + 1) // parts - rows * number // parts for number in range(parts)]


def plan_endless(batch: int, part: Part, devices: int) -> Plan:
    """Plan an endless stream: each device takes its part of each global batch of `batch` rows."""
    sizes = _of_replicas(batch, part.count * devices)
    own = sizes[part.index * devices : (part.index + 1) * devices]
    return _weighed(None, own, [sum(sizes)] * devices, part.count * devices)


def plan_epoch(rows: Sequence[int], batch: int, part: Part, devices: int) -> Plan:
    """Plan as many steps as the worker with the fewest rows has; its last may be smaller, and counts less.

    `rows` are the rows in each worker's files, at least 1; `batch` are those of a global batch; `devices` is
    their number per worker. Raises InvalidConfiguration if a worker has fewer rows than devices.
    """
    full = _of_replicas(batch, part.count * devices)
    takes = [sum(full[worker * devices : (worker + 1) * devices]) for worker in range(part.count)]
    steps = min(-(-have // take) for have, take in zip(rows, takes))
    last = [min(take, have - (steps - 1) * take) for have, take in zip(rows, takes)]
    if min(last) < devices:  # some devices would have no row
        steps, last = steps - 1, takes
    if steps == 0:
        fewest = min(rows)
        raise InvalidConfiguration(
            f"worker {list(rows).index(fewest)}'s files hold {fewest} rows, and each worker has {devices} "
            "devices: share the rows among the files more evenly"
        )
    own = full[part.index * devices : (part.index + 1) * devices]
    sizes = own * (steps - 1) + split(last[part.index], devices)
    totals = [sum(full)] * (devices * (steps - 1)) + [sum(last)] * devices
    return _weighed(steps, sizes, totals, part.count * devices)


def _of_replicas(batch: int, replicas: int) -> list[int]:
    return [max(1, size) for size in split(batch, replicas)]


def _weighed(steps: int | None, sizes: Sequence[int], totals: Sequence[int], replicas: int) -> Plan:
    is_equal = all(size * replicas == total for size, total in zip(sizes, totals))
    return Plan(steps, sizes, None if is_equal else [size / total for size, total in zip(sizes, totals)])


@dataclass(frozen=True)
class Found:
    """What the workers find, one number per worker; all have the same numbers and so decide the same.

    Attributes:
        files: all files, as each worker counts them; `UNKNOWN` if it can't.
        reads: how many files each worker reads.
        counts: rows in each worker's files, or batches if these can't be joined; `UNKNOWN` if not counted.
        batch: rows of a global batch; None if batches can't be joined.
    """

    files: Sequence[int]
    reads: Sequence[int]
    counts: Sequence[int]
    batch: int | None

    def plan(self, part: Part, devices: int) -> Plan:
        """Return what a worker takes in training.

        Raises InvalidConfiguration if there are fewer files than workers, workers see different numbers of
        files, or a worker has no whole batch.
        """
        trouble = self.trouble()
        if trouble:
            raise InvalidConfiguration(trouble)
        is_counted = UNKNOWN not in self.counts
        if self.batch is None:
            return Plan(min(self.counts) * part.count if is_counted else None, None)
        if is_counted:
            return plan_epoch(self.counts, self.batch, part, devices)
        return plan_endless(self.batch, part, devices)

    def trouble(self) -> str | None:
        """Return why the files can't be shared, or None if they can."""
        workers, files = len(self.files), self.files[0]
        if len(set(self.files)) > 1:
            other = next(worker for worker, count in enumerate(self.files) if count != files)
            return (
                f"worker 0 finds {files} files of training data, and worker {other} finds "
                f"{self.files[other]}: each is to read its own of the same files; do all see the same volume?"
            )
        if 0 <= files < workers:
            return (
                f"the data lies in {files} file{'' if files == 1 else 's'}, and auto_shard_policy FILE gives "
                f"each of {workers} workers files of its own: write it to at least {workers} files, train "
                "with fewer workers, or leave the policy out; then each reads all of it and takes its rows"
            )
        if 0 in self.counts:
            rows = f" of {self.batch} rows" if self.batch else ""
            return (
                f"worker {list(self.counts).index(0)}'s files hold no batch{rows}, and auto_shard_policy "
                "FILE gives it no others: spread the rows more evenly, or leave the policy out"
            )
        return None

    def sentence(self, steps: int | None, *, reorders: bool) -> str:
        """Return the log line on what each worker reads; `steps` is None if files are read repeatedly."""
        workers, files = len(self.files), self.files[0]
        if files == UNKNOWN:
            read = f"each of {workers} workers reads files of its own"
        else:
            least, most = min(self.reads), max(self.reads)
            span = f"{least}" if least == most else f"{least} to {most}"
            read = f"each of {workers} workers reads {span} of {files} files"
        return f"training data: {read}; {self._epoch(steps, reorders=reorders)}"

    def _epoch(self, steps: int | None, *, reorders: bool) -> str:
        if steps is None:
            return "a worker that has read its own begins them again"
        least, most = min(self.counts), max(self.counts)
        if least == most:
            return f"an epoch is {steps:,} steps"
        rest = "another rest in each epoch" if reorders else "without a shuffle() the same rest in each epoch"
        return (
            f"they hold {least:,} to {most:,} {'rows' if self.batch else 'batches'} each, and an epoch is "
            f"{steps:,} steps, as many as the smallest part has; what larger parts have beyond that is left "
            f"out ({rest})"
        )


NO_FILES = (
    "auto_shard_policy is FILE, and TensorFlow finds no files in the data set (it knows TFRecordDataset, "
    "TextLineDataset and FixedLengthRecordDataset, in an interleave or flat_map too): leave the policy out; "
    "then each worker reads all of it and takes its rows"
)


# Batches for a worker's devices.


def joined(sharded: Any, plan: Plan, devices: int) -> Any:
    """Return batches of the plan's sizes, one element per device; pairs of batch and share if it has shares.

    `sharded` has batches of any size, with rows of one shape; the plan must have sizes.
    """
    source = sharded if plan.steps is not None else sharded.repeat()
    sizes = np.array(plan.sizes, np.int64)
    is_uniform = bool((sizes == sizes[0]).all())
    batches = source.rebatch(int(sizes[0]), drop_remainder=True) if is_uniform else source.rebatch(sizes)
    if plan.shares is not None:
        shares = tf.data.Dataset.from_tensor_slices(np.array(plan.shares, np.float32))
        batches = tf.data.Dataset.zip((batches, shares if plan.steps is not None else shares.repeat()))
    return batches if plan.steps is None else batches.take(plan.steps * devices)
