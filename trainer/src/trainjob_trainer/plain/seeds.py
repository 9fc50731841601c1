"""Random numbers that are the same in every replica of a job, unless the user seeds them.

Every worker cuts its share out of the same global batches, and the evaluator holds out the same examples;
both need one order of the data. Replicas that draw a shuffle or a split from seeds of their own would
train on some examples twice, on some never, and score those they were trained on.
"""

from __future__ import annotations

import os
import zlib
from typing import Any


def job_seed() -> int:
    """A number that all replicas of a job share, in every attempt.

    It comes from the job's name, not from its UID: a job that is created anew and goes on from the checkpoint
    of the one before must hold out the same examples as that one did.
    """
    return zlib.crc32(os.environ.get("TRAINJOB_NAME", "").encode())


def seed_tensorflow(context: Any) -> None:
    """Seed TensorFlow's operations, if the user has not.

    Args:
        context: the module `tensorflow.python.eager.context`.
    """
    if context.global_seed() is None:
        context.set_global_seed(job_seed())


def is_seeded_by_user(context: Any) -> bool:
    """Whether the user has chosen the seed, and with it Keras's order of examples."""
    return context.global_seed() not in (None, job_seed())
