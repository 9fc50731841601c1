"""Initial values of variables that are the same on all workers, by one agreement for many variables.

TensorFlow broadcasts the initial value of each variable from the first worker when it is created: one
collective for each variable of a model and its optimizer. Here each worker takes the value that it computes
itself. Before the values are used, the workers compare one hash. If it differs, the first worker's values of
the variables that differ are broadcast.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainjob_trainer.checkpoint.snapshot import local_components, variable_name
from trainjob_trainer.distribution.collective import gather_all, is_collective
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.task import Task

_WORD = 8
"""Bytes of the integers that are broadcast: a broadcast supports few types."""


def create_locally(strategy: Any, task: Task) -> None:
    """Make a newly built MultiWorkerMirroredStrategy create variables without a broadcast for each.

    A strategy of another kind, or of one worker, is not changed.
    """
    if "run" in vars(strategy):  # already done: both the library and the support for plain scripts call this
        return
    if is_collective(strategy):
        InitialValues(strategy, task).install()


def refuse_other_counts(counts: Sequence[int], names: Sequence[str], last: Any) -> None:
    """Refuse different counts of new variables: the workers would wait for each other.

    Counts, since the last agreement, and names are by rank; `last` is the newest variable of this worker.
    """
    other = next((rank for rank, count in enumerate(counts) if count != counts[0]), None)
    if other is not None:
        raise InvalidConfiguration(
            f"{names[other]} has created {counts[other]} variables where {names[0]} has created {counts[0]} "
            f"(the newest here is {variable_name(last)}): all workers need the same model, created in the "
            "same order"
        )


class InitialValues:
    """The initial values of the variables of one MultiWorkerMirroredStrategy of several workers."""

    def __init__(self, strategy: Any, task: Task) -> None:
        self._strategy = strategy
        self._task = task
        self._pending: list[Any] = []
        self._runs = 0
        self._computed = 0
        self._broadcast_value = strategy.extended._get_variable_creator_initial_value

    def install(self) -> None:
        """Replace the strategy's creation of variables, and agree before they are used."""
        strategy, extended = self._strategy, self._strategy.extended
        extended._get_variable_creator_initial_value = self._initial_value
        extended._create_variable = self._creating(extended._create_variable)
        strategy.run = self._running(strategy.run)
        scope = strategy.scope

        @functools.wraps(scope)
        @contextlib.contextmanager
        def agreeing() -> Iterator[Any]:
            with scope() as entered:
                yield entered
            self.agree()  # not after an error, which may be this worker's alone

        strategy.scope = agreeing

    def agree(self) -> None:
        """Make the values of all new variables the same; all workers call it at the same point."""
        if not self._pending or (
            tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        ):
            return
        pending, self._pending = self._pending, []
        with tf.init_scope():  # a step may be in the middle of its tracing
            hashes = [_hash(variable) for variable in pending]
            told = gather_all(self._strategy, self._task, [len(pending), _hash_of(repr(hashes).encode())])
            refuse_other_counts([count for count, _ in told], self._task.trainees, pending[-1])
            if len({total for _, total in told}) == 1:
                return
            by_variable = zip(*gather_all(self._strategy, self._task, hashes), strict=True)
            for variable, seen in zip(pending, by_variable, strict=True):
                if len(set(seen)) > 1:
                    self._take_first_workers(variable)

    def _creating(self, create: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(create)
        def creating(next_creator: Any, **kwargs: Any) -> Any:
            before = self._computed
            variable = create(next_creator, **kwargs)
            if self._computed > before:
                self._pending.append(variable)
            return variable

        return creating

    def _initial_value(self, replica_id: int, device: Any, primary_var: Any, **kwargs: Any) -> Any:
        """Return a function that returns the value, in place of TensorFlow's own and with its arguments.

        A variable that is created within a step is used at once, and one without a fixed size is no number:
        TensorFlow broadcasts these as usual.
        """
        broadcast = functools.partial(self._broadcast_value, replica_id, device, primary_var)
        if replica_id > 0:
            return broadcast(**kwargs)

        def compute() -> Any:
            if self._runs or not tf.executing_eagerly():
                return broadcast(**kwargs)()
            with tf.device(device):
                value = kwargs["initial_value"]
                value = value() if callable(value) else value
                value = getattr(value, "wrapped_value", value)  # of a checkpoint that is being restored
                value = tf.convert_to_tensor(value, dtype=kwargs.get("dtype"))
            if value.dtype in (tf.string, tf.resource, tf.variant):
                return broadcast(**{**kwargs, "initial_value": value})()
            self._computed += 1
            return value

        return compute

    def _running(self, run: Callable[..., Any]) -> Callable[..., Any]:
        # Its module stays TensorFlow's: autograph does not convert it, but converts the step passed to it.
        @functools.wraps(run)
        def running(*args: Any, **kwargs: Any) -> Any:
            self.agree()
            self._runs += 1
            try:
                return run(*args, **kwargs)
            finally:
                self._runs -= 1

        return running

    def _take_first_workers(self, variable: Any) -> None:
        mine = local_components(variable)[0].numpy()
        own = mine.tobytes()
        words = np.frombuffer(own + bytes(-len(own) % _WORD), np.int64)
        device = self._strategy.extended.worker_devices[0]
        received = self._broadcast_value(0, device, None, initial_value=words, dtype=tf.int64)().numpy()
        value = np.frombuffer(received.tobytes(), mine.dtype, mine.size).reshape(mine.shape)
        for component in local_components(variable):
            component.assign(value)


def _hash(variable: Any) -> int:
    """Return a hash of shape, type and value."""
    value = local_components(variable)[0].numpy()
    return _hash_of(f"{value.shape} {value.dtype}".encode() + value.tobytes())


def _hash_of(content: bytes) -> int:
    """Return 48 bits: the collective sums numbers over a worker's devices, in 64 bits."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=6).digest(), "big")
