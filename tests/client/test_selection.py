from __future__ import annotations

from typing import Any

import pytest

from support.cli.stored_jobs import RUNNING, ended, stored_pod
from trainjob.client.job_logs import (
    Wanted,
    describe_waits,
    earlier_pods,
    has_log,
    newest_pods,
    own_pods,
)
from trainjob.client.view import why_no_log
from trainjob.core.pods import Pod

UID = "uid-of-digits"


def own(*manifests: dict[str, Any]) -> tuple[Pod, ...]:
    return own_pods(manifests, UID)


def names(pods: tuple[Pod, ...]) -> list[str]:
    return [pod.name.removeprefix("digits-") for pod in pods]


PODS = (
    stored_pod("evaluator", 0, 1),
    stored_pod("worker", 1, 1),
    stored_pod("worker", 0, 2),
    stored_pod("worker", 0, 1),
    stored_pod("chief", 0, 1),
    stored_pod("worker", 2, 1, owner="uid-of-an-earlier-job"),
)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(), ["chief-0-1", "worker-0-2", "worker-1-1", "evaluator-0-1"]),
        (Wanted(role="worker"), ["worker-0-2", "worker-1-1"]),
        (Wanted(role="worker", index=1), ["worker-1-1"]),
        (Wanted(index=0), ["chief-0-1", "worker-0-2", "evaluator-0-1"]),
        (Wanted(role="ps"), []),
    ],
)
def test_the_newest_of_each_replica(wanted: Wanted, expected: list[str]) -> None:
    assert names(newest_pods(own(*PODS), wanted)) == expected


@pytest.mark.parametrize(
    ("pods", "attempt", "expected"),
    [
        ([("worker", 0, 1), ("worker", 0, 2)], 2, ["worker-0-1"]),
        ([("worker", 0, 1), ("worker", 0, 2), ("worker", 0, 3)], 3, ["worker-0-2"]),
        ([("worker", 0, 1)], 1, []),
        # Its successor has not been created yet.
        ([("worker", 0, 1)], 2, ["worker-0-1"]),
        # An evaluator lives through restarts of the training.
        ([("evaluator", 0, 1), ("worker", 0, 3)], 3, []),
        ([("evaluator", 0, 1), ("evaluator", 0, 2)], 3, ["evaluator-0-1"]),
        # In place each replica counts its own.
        ([("worker", 0, 1), ("worker", 1, 2)], None, []),
        ([("worker", 0, 1), ("worker", 1, 2), ("worker", 1, 4)], None, ["worker-1-2"]),
    ],
)
def test_what_was_before(pods: list[tuple[str, int, int]], attempt: int | None, expected: list[str]) -> None:
    assert names(earlier_pods(own(*(stored_pod(*pod) for pod in pods)), Wanted(), attempt)) == expected


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no nodes"}
SCHEDULED = {"type": "PodScheduled", "status": "True"}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (stored_pod(container=RUNNING), None),
        (stored_pod(container=ended(1)), None),
        (stored_pod(), "waiting for a node"),
        (stored_pod(conditions=[UNSCHEDULABLE]), "Unschedulable: no nodes"),
        (stored_pod(conditions=[SCHEDULED]), "starting"),
        (
            stored_pod(container={"waiting": {"reason": "ErrImagePull", "message": "no such image"}}),
            "ImagePullBackOff: no such image",
        ),
        (stored_pod(phase="Failed", reason="Evicted"), "failed before it started (Evicted)"),
    ],
)
def test_why_there_is_no_log(pod: dict[str, Any], expected: str | None) -> None:
    (read,) = own(pod)
    assert has_log(read) == (expected is None)
    if expected is not None:
        assert why_no_log(read) == expected


def test_causes_are_reported_together() -> None:
    waits = {f"worker {n}": "starting" for n in range(5)}
    assert describe_waits(waits) == "worker 0 and 4 more: starting"
    assert describe_waits({"worker 0": "a", "worker 1": "b", "worker 2": "a"}) == (
        "worker 0 and worker 2: a; worker 1: b"
    )
