"""Initial values of variables that are the same on all workers, by one agreement for many variables.

TensorFlow broadcasts the initial value of each variable from the first worker when it is created: one
collective for each, of six types, and workers that create other numbers of variables wait for each other.
Here each worker takes the value that it computes itself. Before the values are used, the workers compare one
hash. If it differs, the first worker's values of the variables that differ are broadcast.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from trainjob_trainer.checkpoint.snapshot import local_components, variable_name
from trainjob_trainer.distribution.collective import gather_all
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.task import Task


class InitialValues:
    """The initial values of the variables of one MultiWorkerMirroredStrategy of several workers."""

    def __init__(self, strategy: Any, task: Task) -> None:
        self._strategy, self._task = strategy, task
        self._pending: list[Any] = []
        self._computed = self._runs = 0
        self._broadcast_value = strategy.extended._get_variable_creator_initial_value

    def install(self) -> None:
        """Replace the strategy's creation of variables, and agree before they are used."""
        strategy, extended = self._strategy, self._strategy.extended
        run, scope, create = strategy.run, strategy.scope, extended._create_variable

        # Its module stays TensorFlow's: autograph does not convert it, but converts the step passed to it.
        @functools.wraps(run)
        def running(*args: Any, **kwargs: Any) -> Any:
            self.agree()
            self._runs += 1
            try:
                return run(*args, **kwargs)
            finally:
                self._runs -= 1

        @contextlib.contextmanager
        def agreeing() -> Iterator[Any]:
            with scope() as entered:
                yield entered
            self.agree()  # not after an error, which may be this worker's alone

        def creating(next_creator: Any, **kwargs: Any) -> Any:
            before = self._computed
            variable = create(next_creator, **kwargs)
            self._pending += [variable] if self._computed > before else []
            return variable

        strategy.run, strategy.scope, extended._create_variable = running, agreeing, creating
        extended._get_variable_creator_initial_value = self._initial_value

    def agree(self) -> None:
        """Make the values of all new variables the same; all workers call it at the same point.

        Raises InvalidConfiguration if they have created other numbers of variables since they last did.
        """
        if not self._pending or (
            tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        ):
            return
        pending, self._pending = self._pending, []
        with tf.init_scope():  # a step may be in the middle of its tracing
            values = (local_components(one)[0].numpy() for one in pending)
            hashes = [_hash(f"{one.shape} {one.dtype}".encode() + one.tobytes()) for one in values]
            mine = [len(pending), _hash(repr(hashes).encode())]
            found, names = gather_all(self._strategy, self._task, mine), self._task.trainees
            for name, (count, _) in zip(names, found):
                if count != found[0][0]:
                    raise InvalidConfiguration(
                        f"{name} has created {count} variables where {names[0]} has created {found[0][0]} "
                        f"(the newest here is {variable_name(pending[-1])}): all workers need the same "
                        "model, created in the same order"
                    )
            if any(one != found[0] for one in found):
                for variable, *seen in zip(pending, *gather_all(self._strategy, self._task, hashes)):
                    if len(set(seen)) > 1:
                        self._take_first_workers(variable)

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

    def _take_first_workers(self, variable: Any) -> None:
        mine = local_components(variable)[0].numpy()
        words = np.frombuffer(
            mine.tobytes() + bytes(-mine.nbytes % 8), np.int64
        )  # of a type that TensorFlow takes
        device = self._strategy.extended.worker_devices[0]
        received = self._broadcast_value(0, device, None, initial_value=words, dtype=tf.int64)().numpy()
        value = np.frombuffer(received.tobytes(), mine.dtype, mine.size).reshape(mine.shape)
        for component in local_components(variable):
            component.assign(value)


def _hash(content: bytes) -> int:
    """Return 48 bits: the collective sums numbers over a worker's devices, in 64 bits."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=6).digest(), "big")
