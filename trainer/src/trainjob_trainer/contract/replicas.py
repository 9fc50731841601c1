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


MOST_NAMED = 16
"""Replicas that a failure names."""


def read_names(value: object) -> tuple[str, ...]:
    """Return the names of replicas in a list of a message, at most `MOST_NAMED`; none of anything else."""
    listed = value if isinstance(value, (list, tuple)) else ()
    return tuple(one for one in listed if isinstance(one, str) and NAME.fullmatch(one))[:MOST_NAMED]


def replicas_of(world: Mapping[str, int]) -> list[str]:
    """Return the names of all replicas of a world, which has the number of each role."""
    return [f"{role}-{index}" for role, count in world.items() for index in range(count)]
