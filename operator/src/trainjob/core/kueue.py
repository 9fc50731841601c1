"""Jobs that wait in a Kueue queue: all their pods are admitted together, as one pod group.

Source: https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/#running-a-group-of-pods-to-be-admitted-together
"""

from __future__ import annotations

from trainjob.api import TrainJob
from trainjob.core.topology import desired_replicas

QUEUE_NAME = "kueue.x-k8s.io/queue-name"
GROUP_NAME = "kueue.x-k8s.io/pod-group-name"
GROUP_SIZE = "kueue.x-k8s.io/pod-group-total-count"


def queue_labels(job: TrainJob) -> dict[str, str]:
    """Return the labels by which Kueue finds the job's pods; none for a job without a queue's name."""
    queue = job.metadata.labels.get(QUEUE_NAME)
    return {QUEUE_NAME: queue, GROUP_NAME: job.metadata.name} if queue else {}


def queue_annotations(job: TrainJob) -> dict[str, str]:
    """Return how many pods Kueue is to wait for; nothing for a job without a queue's name."""
    return {GROUP_SIZE: str(len(desired_replicas(job.spec)))} if QUEUE_NAME in job.metadata.labels else {}
