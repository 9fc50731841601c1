"""The TPU that the environment names, if there is one.

TensorFlow's resolver is asked only then: without a name it asks the metadata server of Google's machines, and
waits for it on all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from trainjob_trainer.errors import InvalidConfiguration, first_line

_OWN = "local"
"""TensorFlow's name for a TPU of this very machine."""


def named_tpu(env: Mapping[str, str]) -> str | None:
    """The name or address of this process's TPU.

    `KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS` and `TPU_NAME` are what TensorFlow's resolver reads, in this order; on
    GKE's nodes with TPUs of their own there is `TPU_WORKER_ID` instead.

    Raises:
        InvalidConfiguration: it is a slice of several machines.
    """
    for variable in ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME"):
        if env.get(variable):
            return env[variable]
    if not env.get("TPU_WORKER_ID"):
        return None
    hosts = [host for host in env.get("TPU_WORKER_HOSTNAMES", "").split(",") if host]
    if len(hosts) > 1:
        raise InvalidConfiguration(
            f"TPU_WORKER_HOSTNAMES: this is a TPU slice of {len(hosts)} machines, and TensorFlow trains on "
            "those of one machine; ask for a slice of a single host"
        )
    return _OWN


def build_tpu_strategy(name: str) -> Any:
    """Connect to the TPU and initialize it.

    Raises:
        InvalidConfiguration: no TPU answers to the name.
    """
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(name)
    except (ValueError, tf.errors.NotFoundError) as error:
        raise InvalidConfiguration(
            f"the environment names the TPU {name!r}, and none answers: {first_line(error)}"
        ) from error
    return tf.distribute.TPUStrategy(resolver)
