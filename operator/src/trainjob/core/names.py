"""Names and labels of what belongs to a job (design: "what a pod can rely on")."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

LABEL_JOB = "trainjob.dev/job"
LABEL_ROLE = "trainjob.dev/role"
LABEL_INDEX = "trainjob.dev/index"
LABEL_INCARNATION = "trainjob.dev/incarnation"
LABEL_LIVE = "trainjob.dev/live"
"""On the pods that the job's Service may name; taken off a pod before its successor is created."""

LABEL_PROGRAM = "trainjob.dev/agent-program"
"""On the ConfigMaps with the agent's program."""

MANAGER = "trainjob"

CONTROLLER_LABELS = {"app.kubernetes.io/name": MANAGER, "app.kubernetes.io/component": "controller"}
"""On the controller's own pods."""


@dataclass(frozen=True, order=True)
class Replica:
    """One seat of a job: pods come and go in it."""

    role: str
    index: int

    @property
    def name(self) -> str:
        """`worker-0`: in logs, rows and file names."""
        return f"{self.role}-{self.index}"

    @property
    def title(self) -> str:
        """`worker 0`: in sentences."""
        return f"{self.role} {self.index}"


def hostname(job: str, replica: Replica) -> str:
    """Return the pod's hostname, the same for every pod that takes this seat."""
    return f"{job}-{replica.name}"


def pod_name(job: str, uid: str, replica: Replica, incarnation: int) -> str:
    """Return a name that no other job or incarnation uses, so that a lost pod never blocks its successor."""
    digest = hashlib.sha256(f"{uid}/{replica.name}/{incarnation}".encode()).hexdigest()
    return f"{hostname(job, replica)}-{digest[:8]}"


def job_labels(job: str) -> dict[str, str]:
    """Return the labels on everything that belongs to the job."""
    return {
        "app.kubernetes.io/name": "trainjob",
        "app.kubernetes.io/instance": job,
        "app.kubernetes.io/managed-by": MANAGER,
        LABEL_JOB: job,
    }


def pod_labels(job: str, replica: Replica, incarnation: int) -> dict[str, str]:
    """Return the labels of one pod."""
    return {
        **job_labels(job),
        "app.kubernetes.io/component": replica.role,
        LABEL_ROLE: replica.role,
        LABEL_INDEX: str(replica.index),
        LABEL_INCARNATION: str(incarnation),
        LABEL_LIVE: "true",
    }
