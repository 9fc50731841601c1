"""The chief's connection to its workers and parameter servers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from trainjob_trainer.distribution.listening import listens as is_listening
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.reporting.lines import announce
from trainjob_trainer.task import Task

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_BETWEEN_LINES = 30.0


def build_coordinated_strategy(task: Task) -> Any:
    """Connect to all workers and parameter servers, as soon as they are there.

    Variables are spread over the servers one by one. They are not cut into parts: Keras 3 can't take the
    gradient of a variable that is.

    Raises:
        InvalidConfiguration: a worker has several GPUs.
    """
    # Otherwise a call of a worker that has died waits for it to come back, instead of being taken elsewhere.
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    wait_for_servers(server_addresses(task))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        training_cluster(task), task_type=task.type, task_id=task.index, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    if strategy.num_replicas_in_sync > 1:
        raise InvalidConfiguration(
            f"each worker has {strategy.num_replicas_in_sync} GPUs, and with parameter servers a worker "
            "takes its steps on one: ask for one GPU a worker, and for more workers"
        )
    return strategy


def training_cluster(task: Task) -> Any:
    """TF_CONFIG's cluster without the evaluator, which nobody waits for."""
    return tf.train.ClusterSpec(
        {role: list(a) for role, a in task.cluster.items() if role != "evaluator" and a}
    )


def server_addresses(task: Task) -> list[tuple[str, str]]:
    """Name and `host:port` of everybody whom the chief needs."""
    return [
        (f"{role}-{index}", address)
        for role in ("ps", "worker")
        for index, address in enumerate(task.cluster.get(role, ()))
    ]


def wait_for_servers(
    servers: Iterable[tuple[str, str]],
    listens: Callable[[str], bool] | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
    tell: Callable[[str], None] = announce,
) -> None:
    """Return when all of them listen.

    TensorFlow would wait too, but deaf to SIGTERM. There is no deadline: who is missing is for the job to
    judge, which knows what has become of the pod.

    Args:
        servers: name and `host:port` of each.
        listens: whether somebody listens there.
        clock: seconds; replaced by tests, as the next ones.
        sleep: for so many seconds.
        tell: prints a line.
    """
    ask = listens or is_listening
    told_at = clock()
    for name, address in servers:
        while not ask(address):
            if clock() - told_at >= _SECONDS_BETWEEN_LINES:
                told_at = clock()
                tell(f"waiting for {name} at {address}")
            sleep(_SECONDS_BETWEEN_LOOKS)
