"""What a `ps` or a `worker` does beside a chief: it serves, and trains nothing by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

import tensorflow as tf

from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.distribution.first_worker import is_gone
from trainjob_trainer.distribution.strategy import explained, training_cluster
from trainjob_trainer.edge import exit_now
from trainjob_trainer.errors import OutputUnwritable
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.progress import announce
from trainjob_trainer.task import Task

SECONDS_BETWEEN_LOOKS = 2.0
_LEAST_THREADS = 4


def serve(replica: Replica) -> NoReturn:
    """Serve until the chief has finished, and end the process with exit code 0.

    SIGTERM ends it at once, from the thread that listens for it: there is nothing to save here. Agents don't
    wait for its end: they end it when the chief's process has ended. Raises PortInUse if this replica's
    address is taken.
    """
    with explained(replica.task):
        server = start_server(replica.task)
    announce(f"{replica.task.replica} serves at {replica.task.address}")
    replica.progress.update(state="training")
    wait_for_end(lambda: _has_finished(replica.store), lambda: is_gone(replica.task.writer_address))
    del server
    replica.progress.update(state="finished")
    replica.progress.flush()
    exit_now(0)


def _has_finished(store: CheckpointStore) -> bool:
    try:
        return store.final() is not None
    except OutputUnwritable:
        return False  # it can't be read now: its chief's end is waited for anyway


def start_server(task: Task) -> Any:
    """Listen at this replica's address; the threads that serve are TensorFlow's own."""
    return tf.distribute.Server(
        training_cluster(task),
        job_name=task.type,
        task_index=task.index,
        protocol="grpc",
        config=_server_config(task),
    )


def wait_for_end(
    has_finished: Callable[[], bool],
    is_chief_gone: Callable[[], bool],
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Return once training has finished and the chief, who may still read the variables, has ended.

    The mark of the final checkpoint may be an earlier training's until the chief has come, so nothing is
    concluded before. The chief is gone when nobody listens at its address.
    """
    has_come = False
    while True:
        is_gone_now = is_chief_gone()
        if has_come and is_gone_now and has_finished():
            return
        has_come = has_come or not is_gone_now
        wait(SECONDS_BETWEEN_LOOKS)


def _server_config(task: Task) -> Any:
    """Parameter servers leave GPUs to the workers; requests wait for each other, so there must be threads."""
    config = tf.compat.v1.ConfigProto()
    config.gpu_options.allow_growth = True
    if task.type == "ps":
        config.device_count["GPU"] = 0
    config.inter_op_parallelism_threads = max(_LEAST_THREADS, task.num_workers + 1)
    return config
