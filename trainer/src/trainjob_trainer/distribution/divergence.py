"""Detection of weights that diverge on one worker: by faulty memory, a faulty device or a bug.

Every worker applies the same sums to the same values, so all hold the same bits after each step. Training
does not notice when they differ: gradients are still summed, and worker 0's weights are saved in any case.
So the workers compare a hash before each checkpoint.

The hash of large variables is computed on their devices, in pieces: nothing is copied to the host, and
little memory is needed. A single different bit always changes it, since each word is multiplied by an odd
number.
"""

from __future__ import annotations

import os
import platform
import zlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from trainjob_trainer.checkpoint.snapshot import VariableGroups, local_components, variable_name
from trainjob_trainer.distribution.collective import gather, gather_all
from trainjob_trainer.distribution.strategy import is_mirrored
from trainjob_trainer.errors import PeerLost, WeightsDiverged
from trainjob_trainer.reporting.progress import announce
from trainjob_trainer.task import Task

_PIECE = 1 << 18
"""Words of 8 bytes that are hashed at a time."""
_SMALL = 1 << 20
"""A variable of fewer bytes is copied to the host: there are hundreds of these."""
_32_BITS, _64_BITS = (1 << 32) - 1, (1 << 64) - 1
_FACTOR = 1_099_511_628_211
_NOT_WANTED = -1
_SHOWN = 4
_BITCAST = {"bfloat16", *(f"{kind}{bits}" for kind in ("float", "int", "uint") for bits in (8, 16, 32, 64))}


@dataclass(frozen=True)
class Apart:
    """The workers whose values differ from the others'.

    If more than half of the workers agree, those are certainly right. Otherwise it is unknown which are.
    """

    ranks: Sequence[int]
    is_certain: bool


def find_apart(hashes: Sequence[Hashable | None]) -> Apart | None:
    """Return the workers whose weights differ, None if all are the same.

    A worker's hash, by rank, is None if its own devices differ.
    """
    torn = [rank for rank, one in enumerate(hashes) if one is None]
    whole = Counter(one for one in hashes if one is not None)
    if len(whole) <= 1:
        return Apart(torn, is_certain=True) if torn else None
    ((most, count),) = whole.most_common(1)
    if 2 * count > len(hashes):
        return Apart([rank for rank, one in enumerate(hashes) if one != most], is_certain=True)
    return Apart(range(len(hashes)), is_certain=False)


def describe(apart: Apart, names: Sequence[str], variables: Sequence[str], step: int) -> str:
    """Return the message that names workers (of all `names`, by rank), step and the variables that differ."""
    listed = [f"{names[rank]}'s" for rank in apart.ranks]
    if len(listed) == 1:
        (whose,) = listed
    elif len(listed) <= _SHOWN:
        whose = f"{', '.join(listed[:-1])} and {listed[-1]}"
    else:
        whose = f"{', '.join(listed[:_SHOWN])} and {len(listed) - _SHOWN} more workers'"
    others = "the others'" if len(names) > len(apart.ranks) else "each other's"
    among = "between their devices" if others == "each other's" and apart.is_certain else f"from {others}"
    more = f" and {len(variables) - 1} more" if len(variables) > 1 else ""
    where = f" (variable {variables[0]}{more})" if variables else ""
    unknown = "" if apart.is_certain else "; no majority says whose are right"
    return (
        f"{whose} weights differ {among} at step {step}{where}{unknown}; they are not saved, and training "
        "goes back to the last checkpoint"
    )


class WeightsWatch:
    """Compares the weights of all workers, and of all devices of each, if it is `wanted` on every worker."""

    def __init__(self, strategy: Any, task: Task, *, wanted: bool = True) -> None:
        self._strategy = strategy
        self._task = task
        self._wanted = wanted
        self._is_on: bool | None = None
        self._compared: int | None = None

    def compare(self, groups: VariableGroups, step: int) -> None:
        """Compare the weights after `step`, before they are saved; all workers call it at the same steps.

        A second call at a step does nothing.

        Raises:
            WeightsDiverged: this worker's weights differ from the others', or it is unknown whose do.
            PeerLost: another worker's weights differ.
        """
        if step == self._compared:
            return
        if self._is_on is None:
            self._is_on = self._agreed()
        variables = mirrored(groups) if self._is_on else []
        if not variables:
            return
        self._compared = step
        own = [hash_of(components) for components in zip(*(local_components(one) for one in variables))]
        # In parts: a number is summed over a worker's devices before it is divided.
        parts = [own[0] >> shift & _32_BITS for shift in (0, 32, 64)]
        told = gather_all(self._strategy, self._task, [int(len(set(own)) > 1), *parts])
        apart = find_apart([None if is_torn else tuple(found) for is_torn, *found in told])
        if apart is None:
            return
        sums = [[_checksum(component) for component in local_components(one)] for one in variables]
        told = gather_all(self._strategy, self._task, [one[0] for one in sums])
        differ = [len({*(other[k] for other in told), *one}) > 1 for k, one in enumerate(sums)]
        names = [variable_name(one) for one, does in zip(variables, differ) if does]
        sentence = describe(apart, self._task.trainees, names, step)
        if self._task.rank in apart.ranks:
            raise WeightsDiverged(sentence, [self._task.trainees[rank] for rank in apart.ranks])
        raise PeerLost(f"{self._task.replica} can't continue with the others: {sentence}")

    def _agreed(self) -> bool:
        strategy, task = self._strategy, self._task
        if not is_mirrored(strategy) or strategy.num_replicas_in_sync == 1:
            return False
        kinds = gather(strategy, task, _machine() if self._wanted else _NOT_WANTED)
        if len(set(kinds)) > 1 and _NOT_WANTED not in kinds and task.is_writer:
            announce(
                "the workers differ in architecture, threads, GPUs or TensorFlow's version, and so may round "
                "differently: their weights are not compared"
            )
        return len(set(kinds)) == 1 and _NOT_WANTED not in kinds


def has_gpus() -> bool:
    """Return whether this process computes on a GPU."""
    return bool(tf.config.list_logical_devices("GPU"))


def mirrored(groups: VariableGroups) -> list[Any]:
    """Return the variables that hold the same bits on all devices."""
    weights: list[Any] = []
    optimizers: list[Any] = []
    for name, group in groups.items():
        (optimizers if name == "optimizer" or name.startswith("optimizer.") else weights).extend(group)
    # Rows that a GPU gathers from all devices: the sums of equal ones depend on their order, which changes.
    # The optimizer's variables of these shapes are updated in the same way.
    gathered = {tuple(one.shape) for one in weights if getattr(one, "is_gathered", False) and has_gpus()}
    same = [one for one in weights if _is_same_everywhere(one, False, gathered)]
    return same + [one for one in optimizers if _is_same_everywhere(one, True, gathered)]


def _is_same_everywhere(variable: Any, by_optimizer: bool, gathered: set[Any]) -> bool:
    """Return whether all devices hold the same bits of a Keras or TensorFlow variable of fixed shape.

    An optimizer updates its variables, and weights, by the summed gradients. This excludes what each device's
    own forward pass assigns: moving statistics, random states, counters.
    """
    inner = variable
    while not hasattr(inner, "values") and hasattr(inner, "value") and not callable(inner.value):
        inner = inner.value
    is_number = inner.dtype not in (tf.string, tf.resource, tf.variant)
    if not (is_number and hasattr(inner, "values") and inner.shape.is_fully_defined()):
        return False
    if inner.synchronization == tf.VariableSynchronization.ON_READ:
        return False  # each device has its own part, and a read returns their sum or mean
    if getattr(variable, "overwrite_with_gradient", False):
        return False  # its "gradient" is its new value, each device's own: a scale of 8-bit numbers
    if tuple(variable.shape) in gathered:
        return False
    # Freezing a layer changes Keras's variable alone; TensorFlow's stays as it was created.
    is_weight = bool(inner.trainable) and hasattr(variable, "path")
    is_aggregated = inner.aggregation != tf.VariableAggregation.NONE
    return by_optimizer or is_weight or is_aggregated


def _machine() -> int:
    """Return a number for what rounding depends on: a long sum has one partial sum for each thread."""
    details = tf.config.experimental.get_device_details
    gpus = {str(details(one).get("device_name")) for one in tf.config.list_physical_devices("GPU")}
    chosen = tf.config.threading.get_intra_op_parallelism_threads() or os.environ.get(
        "TF_NUM_INTRAOP_THREADS"
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return zlib.crc32(f"{platform.machine()} {tf.__version__} {chosen or cores} {sorted(gpus)}".encode())


def _checksum(component: Any, so_far: int = 0) -> int:
    return zlib.crc32(np.ascontiguousarray(component.numpy()).tobytes(), so_far)


def hash_of(components: Sequence[Any]) -> int:
    """Return a 96-bit number that changes with any bit of any of one device's TensorFlow variables."""
    crc, total = 0, tf.constant(0, tf.int64)
    for one in components:
        if one.shape.num_elements() * one.dtype.size < _SMALL:
            crc = _checksum(one, crc)
            continue
        with tf.device(one.device):
            # The value's bits, without a copy.
            flat = tf.reshape(one.read_value(), [-1])
            if flat.dtype.name not in _BITCAST:
                flat = tf.cast(flat, tf.float32 if flat.dtype.is_floating else tf.int32)
            data = tf.reshape(tf.bitcast(flat, tf.uint8), [-1])
            whole = data.shape[0] // 8 * 8
            words = tf.bitcast(tf.reshape(data[:whole], [-1, 8]), tf.int64)
            total = total * _FACTOR + _hash_of_words(one.device)(words)
            crc = _checksum(data[whole:], crc)
    return crc | (int(total.numpy()) & _64_BITS) << 32


@cache
def _hash_of_words(device: str) -> Any:
    """Traced once for each device, for vectors of any length."""
    numbers = np.arange(_PIECE, dtype=np.uint64)
    factors = tf.constant((numbers * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)).view(np.int64))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)])  # type: ignore[untyped-decorator,unused-ignore]
    def of_words(words: Any) -> Any:
        with tf.device(device):
            pieces = tf.size(words) // _PIECE

            def add(number: Any, so_far: Any) -> tuple[Any, Any]:
                piece = tf.slice(words, [number * _PIECE], [_PIECE])
                return number + 1, so_far * _FACTOR + tf.reduce_sum(piece * factors)

            # One piece at a time: parallel pieces would need memory for all of them.
            begin = (tf.constant(0), tf.constant(0, tf.int64))
            _, total = tf.while_loop(lambda number, _: number < pieces, add, begin, parallel_iterations=1)
            rest = words[pieces * _PIECE :]
            return total * _FACTOR + tf.reduce_sum(rest * factors[: tf.size(rest)])

    return of_words
