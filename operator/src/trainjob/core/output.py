"""Where a job writes: the volume behind `spec.output` and the folders in it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from trainjob.api import TrainJob
from trainjob.core.names import Replica
from trainjob.core.topology import EVALUATOR

VOLUME = "trainjob-output"


@dataclass(frozen=True)
class OutputFolders:
    """The folders that a replica is told of.

    Attributes:
        own: where this replica may write.
        checkpoints: where worker 0 writes checkpoints and everybody reads them.
        logs: where this replica writes its TensorBoard logs.
    """

    own: str
    checkpoints: str
    logs: str


def folder_name(job: TrainJob) -> str:
    """Return the job's folder within its output: a new one for each job where `resume` is `Never`."""
    if job.spec.output.resume == "Never":
        return f"{job.metadata.name}-{hashlib.sha256(job.metadata.uid.encode()).hexdigest()[:8]}"
    return job.metadata.name


def root_folder(job: TrainJob) -> str:
    """Return the job's whole output folder, as a path in the container or a `gs://` address."""
    output = job.spec.output
    return f"{(output.uri or output.mount_path).rstrip('/')}/{folder_name(job)}"


def reported_checkpoint(job: TrainJob) -> int | None:
    """Return the step of the newest checkpoint that was reported, where a new pod has to find it again.

    A volume that comes and goes with its pod may be empty, and so may another folder than the one it was
    reported for.
    """
    output, known = job.spec.output, job.status.output
    if known is None or known.path != root_folder(job):
        return None
    is_the_pods_own = output.empty_dir is not None or output.ephemeral is not None
    return None if is_the_pods_own else known.checkpoint_step


def output_folders(job: TrainJob, replica: Replica) -> OutputFolders:
    """Return the folders of one replica; the evaluator's own lies apart: it can't harm the training."""
    root = root_folder(job)
    if replica.role == EVALUATOR:
        return OutputFolders(f"{root}/{EVALUATOR}", f"{root}/checkpoints", f"{root}/{EVALUATOR}/logs")
    return OutputFolders(root, f"{root}/checkpoints", f"{root}/logs/train")


def has_own_volumes(job: TrainJob) -> bool:
    """Tell whether each pod has an output of its own, which ends with it."""
    return job.spec.output.empty_dir is not None or job.spec.output.ephemeral is not None


def claim_name(job: TrainJob) -> str | None:
    """Return the name of the claim that holds the output, the user's own or the one created for the job."""
    claim = job.spec.output.claim
    if claim is None:
        return None
    return claim.claim_name or f"{job.metadata.name}-output"
