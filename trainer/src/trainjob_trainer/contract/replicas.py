"""The replicas of a job: their roles, and names such as `worker-1`."""

from __future__ import annotations

import re
from collections.abc import Mapping

TRAINING_ROLES = ("chief", "worker", "ps")
"""In order of creation; the evaluator comes last and takes no part in training."""

EVALUATOR = "evaluator"

ROLES = (*TRAINING_ROLES, EVALUATOR)

NAME = re.compile(rf"({'|'.join(ROLES)})-(0|[1-9][0-9]{{0,5}})")
"""Of one replica: its role and its index."""


def replicas_of(world: Mapping[str, int]) -> list[str]:
    """Return the names of all replicas of a world, which has the number of each role."""
    return [f"{role}-{index}" for role, count in world.items() for index in range(count)]
