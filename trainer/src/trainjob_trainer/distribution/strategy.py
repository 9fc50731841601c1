"""The distribution strategy of a replica: its choice by the role, and its construction."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainjob_trainer.distribution.first_worker import bear_pauses, explained
from trainjob_trainer.distribution.first_worker import listens as is_listening
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.patches import prepare
from trainjob_trainer.reporting.progress import ProgressFile, announce
from trainjob_trainer.task import Task


def is_mirrored(strategy: Any) -> bool:
    """Return whether variables are mirrored on all devices, of one process or of several."""
    return "MirroredExtended" in {kind.__name__ for kind in type(strategy.extended).__mro__}


_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_BETWEEN_LINES = 30.0


def training_cluster(task: Task) -> Any:
    """Return TF_CONFIG's cluster without the evaluator: no replica waits for it."""
    return tf.train.ClusterSpec(
        {role: list(a) for role, a in task.cluster.items() if role != "evaluator" and a}
    )


def wait_for_servers(
    task: Task,
    listens: Callable[[str], bool] = is_listening,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
    tell: Callable[[str], None] = announce,
) -> None:
    """Return when all workers and parameter servers listen.

    TensorFlow would wait too, but ignore SIGTERM. There is no deadline: the job's controller decides about a
    missing replica, since it knows the state of the pod.
    """
    servers = [
        (f"{role}-{index}", address)
        for role in ("ps", "worker")
        for index, address in enumerate(task.cluster.get(role, ()))
    ]
    told_at = clock()
    for name, address in servers:
        while not listens(address):
            if clock() - told_at >= _SECONDS_BETWEEN_LINES:
                told_at = clock()
                tell(f"waiting for {name} at {address}")
            sleep(_SECONDS_BETWEEN_LOOKS)


def build_strategy(task: Task, *, progress: ProgressFile | None = None) -> Any:
    """Build the strategy before any TensorFlow operation runs; workers wait here for each other.

    A cluster of one is MultiWorkerMirrored too, so that growing a job changes nothing, and all that ask for
    this strategy have one (`keras/strategy.py`). The evaluator has one device: a second one would need padded
    batches, and unweighted metrics would count the padding. Replicas that serve a chief do not call this.
    `progress` says that a chief waits. Raises InvalidConfiguration and PortInUse, as `explained` does.
    """
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # processes share a GPU on a laptop
    devices = _devices()
    if task.is_evaluator:
        return tf.distribute.OneDeviceStrategy(devices[0])
    if task.is_coordinator:
        return _build_coordinated(task, progress or ProgressFile(None))
    if task.is_distributed:
        prepare(importlib.import_module("tensorflow.python.distribute.collective_all_reduce_strategy"))
        return tf.distribute.MultiWorkerMirroredStrategy()
    return tf.distribute.MirroredStrategy(devices) if len(devices) > 1 else tf.distribute.get_strategy()


def _build_coordinated(task: Task, progress: ProgressFile) -> Any:
    # Otherwise a call to a dead worker waits for its return, instead of being sent to another worker.
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    bear_pauses(has_agent=bool(os.environ.get("TRAINJOB_STATE_DIR")))
    progress.update(state="waiting")
    wait_for_servers(task)
    # Variables are not sharded over the servers: Keras 3 can't take the gradient of a sharded one.
    with explained(task):
        strategy = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                training_cluster(task), task_type=task.type, task_id=task.index, rpc_layer="grpc"
            )
        )
    if strategy.num_replicas_in_sync > 1:
        raise InvalidConfiguration(
            f"each worker has {strategy.num_replicas_in_sync} GPUs, and with parameter servers a worker "
            "takes its steps on one: request one GPU per worker, and more workers"
        )
    progress.update(state="starting")
    return strategy


def _devices() -> list[str]:
    """Return the names of the logical GPUs, or else CPUs; this does not start TensorFlow's runtime."""
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    divided = tf.config.get_logical_device_configuration
    count = sum(len(divided(one) or [one]) for one in tf.config.list_physical_devices(kind))
    return [f"{kind}:{number}" for number in range(count)]
