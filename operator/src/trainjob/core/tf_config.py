"""Addresses, and TF_CONFIG in TensorFlow's documented form.

Source: https://www.tensorflow.org/guide/distributed_training#TF_CONFIG
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from trainjob.api import PORT, TrainJob
from trainjob.core.names import Replica, hostname
from trainjob.core.topology import replica_counts

_TASK = ',"task":'
_WORLD = "world"


def address(job: TrainJob, replica: Replica) -> str:
    """Return `host:port` of a replica, the same for every pod that takes this seat."""
    return f"{host(job, replica)}:{PORT}"


def build_tf_config(job: TrainJob, replica: Replica) -> str:
    """Return the value of TF_CONFIG for one replica, as compact JSON."""
    counts = tuple(replica_counts(job.spec).items())
    cluster = _cluster_text(job.metadata.namespace, job.metadata.name, counts)
    task = _dump({"type": replica.role, "index": replica.index})
    return f'{{"cluster":{cluster}{_TASK}{task}}}'


def host(job: TrainJob, replica: Replica) -> str:
    """Return the DNS name of a replica, the same for every pod that takes this seat."""
    return _host(job.metadata.namespace, job.metadata.name, replica)


def _host(namespace: str, job: str, replica: Replica) -> str:
    return f"{hostname(job, replica)}.{job}.{namespace}.svc"


@lru_cache(maxsize=16)
def _cluster_text(namespace: str, job: str, counts: tuple[tuple[str, int], ...]) -> str:
    """Return every replica's address by role; the evaluator is listed, workers don't wait for it.

    It is the same text for all of a job's pods: written anew for each of 2,000 it takes ten seconds.
    """
    return _dump(
        {
            role: [f"{_host(namespace, job, Replica(role, i))}:{PORT}" for i in range(count)]
            for role, count in counts
        }
    )


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def training_world(tf_config: str) -> Mapping[str, int] | None:
    """Return how many replicas each training role has in this TF_CONFIG, or None if it isn't ours."""
    cluster, task, _ = tf_config.rpartition(_TASK)
    world = _read_world(f"{cluster}}}") if task else None  # the same text in all of a job's pods
    return world if world is not None else _read_world(tf_config)


def shorten_tf_config(tf_config: str) -> str:
    """Return a text in which `training_world` reads the same, with no addresses."""
    return _dump({_WORLD: training_world(tf_config)})


@lru_cache(maxsize=64)
def _read_world(text: str) -> Mapping[str, int] | None:
    try:
        read: Any = json.loads(text)
        if _WORLD in read:
            return {role: count for role, count in read[_WORLD].items() if isinstance(count, int)}
        return {role: len(addresses) for role, addresses in read["cluster"].items() if role != "evaluator"}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
