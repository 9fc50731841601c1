"""A job with every field, and hundreds of damaged copies of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from support.world.changes import REMOVED, change_job, walk_values
from support.world.jobs import build_job
from trainjob.api.errors import format_path

WRONG_VALUES: tuple[Any, ...] = (
    "two",
    "",
    "x" * 5000,
    "{{ 7*7 }}",
    "a: b\n- c",
    -1,
    0,
    1.5,
    2**31,
    10**40,
    1e308,
    True,
    None,
    [],
    [None],
    [[]],
    {},
    {"": None},
    {"a": {"b": [1]}},
    REMOVED,
)

FULL = build_job(
    evaluator={"replicas": 1, "env": [{"name": "A", "value": "1"}], "completionTimeoutSeconds": 60},
    worker={
        "replicas": 2,
        "minReplicas": 1,
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "resources": {"limits": {"cpu": "1"}},
        "priorityClassName": "batch",
    },
    chief={"replicas": 1},
    ps={"replicas": 1, "affinity": {}},
    output={
        "claim": {
            "size": "10Gi",
            "storageClassName": "nfs",
            "accessModes": ["ReadWriteMany"],
            "retain": True,
        },
        "mountPath": "/output",
        "resume": "Auto",
    },
    suspend=False,
    activeDeadlineSeconds=3600,
    ttlSecondsAfterFinished=60,
    managedBy="kueue.x-k8s.io/multikueue",
    maxRestarts=3,
    restartStrategy="InPlace",
    warmStandby=True,
    code={"configMap": "digits-code-1", "digest": "0" * 64},
    startTimeoutSeconds=600,
    stallTimeoutSeconds=60,
)


def mutations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each field of a full job with each wrong value, and each object with an unknown field."""
    for steps, value in walk_values(FULL):
        path = format_path(steps)
        if not steps:
            continue
        for wrong in WRONG_VALUES:
            yield (
                f"{path}={'removed' if wrong is REMOVED else repr(wrong)[:20]}",
                change_job({path: wrong}, FULL),
            )
        if isinstance(value, dict):
            yield f"{path}.unknown", change_job({f"{path}.unknown": 1}, FULL)
