"""The workers' memory, which `spec.worker.maxAllowed` lets grow after out-of-memory kills.

A kill raises the limit of all workers by half, up to that bound: the pods that run are resized in place
(`pods/resize`, Kubernetes 1.33 and newer), and later ones start with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainjob.api import TrainJob
from trainjob.api.errors import mapping_at, trainer_of
from trainjob.api.fields import read_quantity
from trainjob.core.manifests import role_template
from trainjob.core.names import QUEUE_NAME
from trainjob.core.pods import memory_limit
from trainjob_trainer.contract.reports import OUT_OF_MEMORY

if TYPE_CHECKING:
    from trainjob.core.failure import Failure
    from trainjob.core.observed import Observed
    from trainjob.core.pods import Pod

_MIB = 1024**2
_MOST = 2**63 - 1


def bytes_of(quantity: object) -> int | None:
    """Return the bytes that a quantity of Kubernetes stands for, or None if it is none."""
    number = read_quantity(str(quantity))
    if number is None:
        return None
    return int(number) if number < _MOST else _MOST


def limit_of(job: TrainJob) -> str:
    """Return the memory limit of a worker's training container; empty for none."""
    container = trainer_of(role_template(job.spec, "worker")["spec"])
    return memory_limit(container)


def with_limit(job: TrainJob, limit: str) -> TrainJob:
    """Return the job with this memory limit for its workers; what they request keeps its share of it."""
    template = role_template(job.spec, "worker")
    resources = raised_resources(trainer_of(template["spec"]).get("resources") or {}, limit)
    worker = job.spec.worker.model_copy(update={"resources": resources})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"worker": worker})})


def raised_resources(resources: dict[str, Any], limit: str) -> dict[str, Any]:
    """Return a container's resources with another memory limit, and of the request the same share of it."""
    limits, requests = mapping_at(resources, "limits"), mapping_at(resources, "requests")
    before, request, after = bytes_of(limits.get("memory")), bytes_of(requests.get("memory")), bytes_of(limit)
    raised = {**resources, "limits": {**limits, "memory": limit}}
    if before and request is not None and after is not None:
        is_whole = request == before
        raised["requests"] = {**requests, "memory": limit if is_whole else _text(request * after // before)}
    return raised


def _text(size: int) -> str:
    """Return whole mebibytes as a quantity: 12Gi, 1536Mi."""
    mebibytes = max(1, size // _MIB)
    return f"{mebibytes}Mi" if mebibytes % 1024 else f"{mebibytes // 1024}Gi"


def next_limit(job: TrainJob) -> str | None:
    """Return the limit that is half more than the workers' own, at most the bound; None if it can't grow."""
    if job.spec.worker.max_allowed is None or QUEUE_NAME in job.metadata.labels:
        return None  # first, since each pass over a job asks
    most = job.spec.worker.max_allowed.memory
    limit, bound = bytes_of(limit_of(job)), bytes_of(most)
    if not limit or bound is None or limit >= bound:
        return None
    raised = _text(limit + limit // 2)
    return raised if limit < (bytes_of(raised) or 0) < bound else most


def has_less(observed: Observed, pod: Pod) -> bool:
    """Return whether a worker's container still has less memory than the workers' limit is now."""
    limit, has = bytes_of(limit_of(observed.effective_job)), bytes_of(pod.memory)
    return pod.replica.role == "worker" and limit is not None and has is not None and has < limit


def grows(observed: Observed) -> bool:
    """Return whether an out-of-memory kill of a worker doesn't count: its memory grows, or is about to."""
    if not observed.settings.limits_memory:
        return False
    resized = observed.status.worker is not None and bool(observed.status.worker.memory)
    return next_limit(observed.effective_job) is not None or (
        resized and any(has_less(observed, pod) for pod in observed.training_pods)
    )


def _is_short(observed: Observed, failure: Failure) -> bool:
    """Return whether a worker was killed because it reached its limit."""
    is_killed = failure.reason == OUT_OF_MEMORY and failure.replica.role == "worker"
    return is_killed and observed.settings.limits_memory


def raised_limit(observed: Observed, failure: Failure) -> str | None:
    """Return the workers' new limit after this failure; None if it isn't raised.

    A worker that was killed before an earlier raise has reached it is no reason for another: its pod may have
    been resized since. The kernel rounds limits down to whole pages.
    """
    if not _is_short(observed, failure):
        return None
    limit = bytes_of(limit_of(observed.effective_job)) or 0
    if failure.memory is not None and failure.memory // _MIB < limit // _MIB:
        return None
    if failure.memory is None and failure.pod is not None and has_less(observed, failure.pod):
        return None
    return next_limit(observed.effective_job)


def describe_memory(observed: Observed, failure: Failure) -> str:
    """Return the clause on the workers' memory after this failure; empty if it wasn't short of memory."""
    job = observed.effective_job
    limit, raised = limit_of(job), raised_limit(observed, failure)
    if not _is_short(observed, failure) or not limit:
        return ""
    if raised is not None:
        return f"; the memory of all workers is raised from {limit} to {raised}"
    if job.spec.worker.max_allowed is None:
        return f"; to let its memory grow from {limit}, set spec.worker.maxAllowed.memory"
    if QUEUE_NAME in job.metadata.labels:
        return f"; its memory stays {limit}, which its queue has admitted"
    return (
        f"; its memory is {limit}, the most that spec.worker.maxAllowed allows" if not grows(observed) else ""
    )
