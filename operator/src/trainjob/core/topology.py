"""Which replicas a job has."""

from __future__ import annotations

from trainjob.api import TrainJobSpec
from trainjob.core.names import Replica

TRAINING_ROLES = ("chief", "worker", "ps")
"""In the order in which they are created; the evaluator comes last and is no part of the training."""

EVALUATOR = "evaluator"


def replica_counts(spec: TrainJobSpec) -> dict[str, int]:
    """Return how many replicas each role has, roles without any left out, in order of creation."""
    counts = {
        "chief": spec.chief.replicas if spec.chief else 0,
        "worker": spec.worker.replicas,
        "ps": spec.ps.replicas if spec.ps else 0,
        EVALUATOR: spec.evaluator.replicas,
    }
    return {role: count for role, count in counts.items() if count}


def desired_replicas(spec: TrainJobSpec) -> tuple[Replica, ...]:
    """Return every seat of the job, in order of creation."""
    return tuple(Replica(role, i) for role, count in replica_counts(spec).items() for i in range(count))


def training_seats(spec: TrainJobSpec) -> tuple[Replica, ...]:
    """Return every seat that takes part in the training itself, in order of creation."""
    return tuple(replica for replica in desired_replicas(spec) if is_training(replica))


def training_counts(spec: TrainJobSpec) -> dict[str, int]:
    """Return how many replicas each training role has."""
    return {role: count for role, count in replica_counts(spec).items() if role != EVALUATOR}


def is_training(replica: Replica) -> bool:
    """Tell whether the replica takes part in the training itself."""
    return replica.role != EVALUATOR


def leader(spec: TrainJobSpec) -> Replica:
    """Return the replica that writes checkpoints and whose progress is the job's."""
    return Replica("chief" if spec.chief else "worker", 0)


def finishing_roles(spec: TrainJobSpec) -> tuple[str, ...]:
    """Return the roles whose exit 0 ends the training; parameter servers serve until stopped."""
    if spec.ps and spec.chief:
        return ("chief",)
    return ("chief", "worker")
