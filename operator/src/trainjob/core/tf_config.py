"""Addresses, and TF_CONFIG in TensorFlow's documented form.

Source: https://www.tensorflow.org/guide/distributed_training#TF_CONFIG
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainjob.api import PORT, TrainJob
from trainjob.core.names import Replica, hostname
from trainjob.core.topology import replica_counts


def address(job: TrainJob, replica: Replica) -> str:
    """Return `host:port` of a replica, the same for every pod that takes this seat."""
    meta = job.metadata
    return f"{hostname(meta.name, replica)}.{meta.name}.{meta.namespace}.svc:{PORT}"


def cluster_map(job: TrainJob) -> dict[str, list[str]]:
    """Return every replica's address by role; the evaluator is listed, workers don't wait for it."""
    return {
        role: [address(job, Replica(role, i)) for i in range(count)]
        for role, count in replica_counts(job.spec).items()
    }


def build_tf_config(job: TrainJob, replica: Replica) -> str:
    """Return the value of TF_CONFIG for one replica, as compact JSON."""
    config = {
        "cluster": cluster_map(job),
        "task": {"type": replica.role, "index": replica.index},
    }
    return json.dumps(config, separators=(",", ":"))


def training_world(tf_config: str) -> Mapping[str, int] | None:
    """Return how many replicas each training role has in this TF_CONFIG, or None if it isn't ours."""
    try:
        cluster: Any = json.loads(tf_config)["cluster"]
        return {role: len(addresses) for role, addresses in cluster.items() if role != "evaluator"}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
