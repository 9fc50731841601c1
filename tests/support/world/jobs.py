"""Builders of jobs: a good one by default, changed by what the test is about."""

from __future__ import annotations

from copy import deepcopy
from typing import Any


def build_job(
    *,
    name: str = "digits",
    namespace: str = "default",
    uid: str = "",
    workers: int = 2,
    evaluator: bool | dict[str, Any] = True,
    metadata: dict[str, Any] | None = None,
    container: dict[str, Any] | None = None,
    pod: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a TrainJob as JSON; `container` and `pod` add to the template, `spec` to the spec."""
    trainer = {"name": "trainer", "image": "example.com/digits:1", "command": ["python", "train.py"]}
    body: dict[str, Any] = {
        "worker": {"replicas": workers},
        "evaluator": {"replicas": int(evaluator)} if isinstance(evaluator, bool) else evaluator,
        "output": {"claim": {"claimName": "training"}},
        "template": {"spec": {"containers": [{**trainer, **(container or {})}], **(pod or {})}},
    }
    body.update(deepcopy(spec))
    meta: dict[str, Any] = {"name": name, "namespace": namespace, **(metadata or {})}
    if uid:
        meta["uid"] = uid
    return {"apiVersion": "trainjob.dev/v1alpha1", "kind": "TrainJob", "metadata": meta, "spec": body}


def build_plain_job(**changes: Any) -> dict[str, Any]:
    """Return a job without agents: its worker group is restarted as a whole, by the controller."""
    return build_job(**{"restartStrategy": "Recreate", **changes})
