"""The distribution strategy of a replica: its choice by the role, and its construction."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

import tensorflow as tf

from trainjob_trainer.distribution.first_worker import bear_pauses, explained, wait_for_first_worker
from trainjob_trainer.distribution.first_worker import listens as is_listening
from trainjob_trainer.distribution.initial_values import create_locally
from trainjob_trainer.environment import is_from_agent
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.reporting.progress import ProgressFile, announce
from trainjob_trainer.task import Task


class Kind(Enum):
    """A strategy, by TensorFlow's name if it has one."""

    SINGLE = "one device"
    EVALUATOR = "one device for evaluation"
    MIRRORED = "MirroredStrategy"
    MULTI_WORKER = "MultiWorkerMirroredStrategy"
    COORDINATED = "ParameterServerStrategy"


def choose_kind(task: Task, *, devices: int) -> Kind:
    """Choose by the replica's role and devices.

    A cluster of one is MultiWorkerMirrored too, so that growing a job changes nothing. The evaluator has one
    device: a second one would need padded batches, and unweighted metrics would count the padding.
    `devices` counts the GPUs, or the logical CPUs. Replicas that serve a chief do not call this.
    """
    if task.is_evaluator:
        return Kind.EVALUATOR
    if task.is_coordinator:
        return Kind.COORDINATED
    if task.is_distributed:
        return Kind.MULTI_WORKER
    return Kind.MIRRORED if devices > 1 else Kind.SINGLE


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


_multi_worker: list[tuple[Task, Any]] = []
"""The strategy of several workers, once it is built: TensorFlow builds one in a process."""


def build_strategy(task: Task, *, progress: ProgressFile | None = None) -> Any:
    """Build the strategy before any TensorFlow operation runs; workers wait here for each other.

    `progress` says so meanwhile. Raises InvalidConfiguration and PortInUse, as `explained` does.
    """
    kind = choose_kind(task, devices=len(_devices()))
    if kind is Kind.MULTI_WORKER and _multi_worker and _multi_worker[-1][0] == task:
        return _multi_worker[-1][1]
    waits = kind is Kind.COORDINATED or (kind is Kind.MULTI_WORKER and task.num_workers > 1)
    if progress is not None and waits:
        progress.update(state="waiting")
    if kind is not Kind.COORDINATED:
        wait_for_first_worker(task)
    bear_pauses(has_agent=is_from_agent(os.environ))
    with explained(task):
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # processes share a GPU on a laptop
        strategy = _build(kind, task)
    if progress is not None and waits:
        progress.update(state="starting")
    if kind is Kind.MULTI_WORKER:
        create_locally(strategy, task)
        _multi_worker.append((task, strategy))
    return strategy


def _build(kind: Kind, task: Task) -> Any:
    if kind is Kind.COORDINATED:
        # Otherwise a call to a dead worker waits for its return, instead of being sent to another worker.
        os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
        wait_for_servers(task)
        # Variables are not sharded over the servers: Keras 3 can't take the gradient of a sharded one.
        strategy = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                training_cluster(task), task_type=task.type, task_id=task.index, rpc_layer="grpc"
            )
        )
        if strategy.num_replicas_in_sync > 1:
            raise InvalidConfiguration(
                f"each worker has {strategy.num_replicas_in_sync} GPUs, and with parameter servers a worker "
                "takes its steps on one: ask for one GPU a worker, and for more workers"
            )
        return strategy
    if kind is Kind.MULTI_WORKER:
        return tf.distribute.MultiWorkerMirroredStrategy()
    if kind is Kind.MIRRORED:
        return tf.distribute.MirroredStrategy(_devices())
    if kind is Kind.EVALUATOR:
        return tf.distribute.OneDeviceStrategy(_devices()[0])
    return tf.distribute.get_strategy()


def _devices() -> list[str]:
    """Return the names of the logical GPUs, or else CPUs; this does not start TensorFlow's runtime."""
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    divided = tf.config.get_logical_device_configuration
    count = sum(len(divided(one) or [one]) for one in tf.config.list_physical_devices(kind))
    return [f"{kind}:{number}" for number in range(count)]
