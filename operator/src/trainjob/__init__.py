"""Fault-tolerant distributed TensorFlow, on Kubernetes and on your laptop.

    from trainjob import Trainer, Job, jobs

    Trainer(train, kwargs={"epochs": 5}, workers=2).run()              on this machine
    job = Trainer("train.py", workers=4, image=...).submit()           in a cluster
    job.wait(), job.logs(follow=True), job.metrics, job.history(), job.model("./model")
    Job.attach("digits"), jobs()

Each name is imported when it is first used: `import trainjob` loads neither TensorFlow nor kopf.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainjob.client.function import CannotPack
    from trainjob.client.job import Job, JobFailed, jobs
    from trainjob.client.problems import ClusterProblem, NoCluster, NoJob
    from trainjob.client.trainer import Trainer

__all__ = ["CannotPack", "ClusterProblem", "Job", "JobFailed", "NoCluster", "NoJob", "Trainer", "jobs"]

_MODULES = {
    "CannotPack": "trainjob.client.function",
    "ClusterProblem": "trainjob.client.problems",
    "Job": "trainjob.client.job",
    "JobFailed": "trainjob.client.job",
    "NoCluster": "trainjob.client.problems",
    "NoJob": "trainjob.client.problems",
    "Trainer": "trainjob.client.trainer",
    "jobs": "trainjob.client.job",
}


def __getattr__(name: str) -> Any:
    """Import a name's module on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
