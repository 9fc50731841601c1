from __future__ import annotations

from typing import Any

import pytest

from trainjob.core.pods import PodState, read_pod

LABELS = {"trainjob.dev/role": "worker", "trainjob.dev/index": "1", "trainjob.dev/incarnation": "2"}
SCHEDULED = {"type": "PodScheduled", "status": "True"}


def pod(status: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "uid": "u", "labels": LABELS, **meta}, "spec": {}, "status": status}


def container(state: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "sidecar"}, {"name": "trainer", "state": state}], **status}


def test_an_agent_that_exits_with_0_has_finished_whatever_was_killed_for_memory_before() -> None:
    made = pod(container({"terminated": {"exitCode": 0, "reason": "OOMKilled"}}))
    made["spec"] = {**made.get("spec", {}), "volumes": [{"name": "trainjob-bundle", "projected": {}}]}
    read = read_pod(made)
    assert read is not None
    assert read.state is PodState.SUCCEEDED


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({}, PodState.PENDING),
        ({"conditions": [SCHEDULED]}, PodState.STARTING),
        (container({"waiting": {"reason": "ContainerCreating"}}, conditions=[SCHEDULED]), PodState.STARTING),
        (container({"running": {}}), PodState.RUNNING),
        (container({"terminated": {"exitCode": 0}}), PodState.SUCCEEDED),
        (container({"terminated": {"exitCode": 0}}, phase="Running"), PodState.SUCCEEDED),
        (container({"terminated": {"exitCode": 0, "reason": "OOMKilled"}}), PodState.FAILED),
        (container({"terminated": {"exitCode": 3}}), PodState.FAILED),
        ({"phase": "Failed", "reason": "Evicted"}, PodState.FAILED),
    ],
)
def test_the_training_container_decides(status: dict[str, Any], state: PodState) -> None:
    read = read_pod(pod(status))
    assert read is not None
    assert read.state is state


@pytest.mark.parametrize(
    ("status", "waiting"),
    [
        (container({"waiting": {"reason": "ContainerCreating"}}), None),
        (
            container({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
            ("ImagePullBackOff", "no such image"),
        ),
        (
            container({"waiting": {"reason": "CreateContainerError", "message": "no such\nfolder."}}),
            ("CreateContainerError", "no such folder"),
        ),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}
                ]
            },
            ("Unschedulable", "m"),
        ),
        ({}, None),
    ],
)
def test_what_keeps_a_pod_from_running(status: dict[str, Any], waiting: tuple[str, str] | None) -> None:
    read = read_pod(pod(status))
    assert read is not None
    assert read.waiting == waiting


SIDECAR = {"initContainers": [{"name": "mesh", "restartPolicy": "Always"}, {"name": "fetch"}]}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}
RUNS = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
SINCE = "has been running since 2026-01-01T00:00:00Z"
NO_IMAGE = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}


def over(code: int, **how: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", **how}}


STARTED = {"name": "mesh", "state": RUNS, "started": True}


@pytest.mark.parametrize(
    ("init", "waiting", "activity"),
    [
        (
            [{"name": "fetch", "state": NO_IMAGE}],
            ("ImagePullBackOff", "init container fetch: no such image"),
            "",
        ),
        ([STARTED, {"name": "fetch", "state": RUNS}], None, f"init container fetch {SINCE}"),
        ([{"name": "fetch", "state": over(0)}], None, ""),
        (
            [{"name": "mesh", "state": RUNS, "started": False}],
            None,
            f"init container mesh {SINCE} and hasn't passed its startup probe",
        ),
        (
            [{"name": "mesh", "state": BACK_OFF, "lastState": over(3, message="a\nno certificate\n")}],
            ("CrashLoopBackOff", "init container mesh ended with exit code 3: no certificate"),
            "",
        ),
        (
            [{"name": "mesh", "state": BACK_OFF, "lastState": over(137, reason="OOMKilled")}],
            ("CrashLoopBackOff", "init container mesh ended with OOMKilled, exit code 137"),
            "",
        ),
        ([STARTED, {"name": "fetch", "state": {"waiting": {"reason": "PodInitializing"}}}], None, ""),
    ],
)
def test_what_runs_before_the_training_container(
    init: list[dict[str, Any]], waiting: tuple[str, str] | None, activity: str
) -> None:
    manifest = pod(container({"waiting": {"reason": "PodInitializing"}}, initContainerStatuses=init))
    read = read_pod({**manifest, "spec": SIDECAR})
    assert read is not None
    assert (read.waiting, read.activity, read.failed_at_start) == (waiting, activity, False)


def test_a_sidecar_that_fails_beside_the_training_container_keeps_nobody() -> None:
    init = [{"name": "mesh", "state": BACK_OFF, "lastState": over(3), "started": False}]
    read = read_pod({**pod(container(RUNS, initContainerStatuses=init)), "spec": SIDECAR})
    assert read is not None
    assert (read.state, read.waiting, read.activity) == (PodState.RUNNING, None, "")


def test_a_sidecar_that_ends_with_the_pod_has_not_failed_it() -> None:
    init = [{"name": "mesh", "state": over(143)}, {"name": "fetch", "state": over(1)}]
    read = read_pod({**pod({"phase": "Failed", "initContainerStatuses": init}), "spec": SIDECAR})
    assert read is not None
    assert read.init_failure is not None
    assert (read.init_failure.name, read.failed_at_start) == ("fetch", True)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
        (
            container(
                {"terminated": {"exitCode": 143}},
                conditions=[
                    {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
                ],
            ),
            "PreemptionByScheduler",
        ),
        (
            {
                "phase": "Failed",
                "conditions": [
                    {"type": "TerminatedByKueue", "status": "True", "reason": "UnschedulableOnAssignedNode"}
                ],
            },
            "UnschedulableOnAssignedNode",
        ),
    ],
)
def test_what_the_cluster_does_is_not_the_programs_fault(status: dict[str, Any], reason: str) -> None:
    read = read_pod(pod(status))
    assert read is not None
    assert read.disrupted
    assert read.reason == reason


ENDED = {"exitCode": 0, "reason": "Completed"}
GOES_ON = {"name": "log-shipper", "state": {"running": {}}}


def ended(*others: dict[str, Any], **status: Any) -> dict[str, Any]:
    statuses = [{"name": "trainer", "state": {"terminated": ENDED}}, *others]
    return {"phase": "Running", "containerStatuses": statuses, **status}


@pytest.mark.parametrize(
    ("status", "deadline", "outlived"),
    [
        (ended(GOES_ON), None, True),
        (ended(GOES_ON), 3600, True),
        (ended({"name": "log-shipper", "state": {"waiting": {"reason": "ImagePullBackOff"}}}), None, True),
        (ended(GOES_ON), 1, False),
        (ended(GOES_ON, phase="Failed", reason="Evicted"), None, False),
        (ended({"name": "log-shipper", "state": {"terminated": ENDED}}), None, False),
        (ended(initContainerStatuses=[{"name": "istio-proxy", "state": {"running": {}}}]), None, False),
        (container({"running": {}}, phase="Running"), None, False),
    ],
)
def test_a_container_that_outlives_the_training_container(
    status: dict[str, Any], deadline: int | None, outlived: bool
) -> None:
    read = read_pod({**pod(status), "spec": {"activeDeadlineSeconds": deadline}})
    assert read is not None
    assert read.outlived is outlived


@pytest.mark.parametrize(("code", "state"), [(0, PodState.SUCCEEDED), (3, PodState.FAILED)])
def test_a_pod_that_was_told_to_end_is_what_its_training_container_says(code: int, state: PodState) -> None:
    late = "Pod was active on the node longer than the specified deadline"
    status = container(
        {"terminated": {"exitCode": code}}, phase="Failed", reason="DeadlineExceeded", message=late
    )
    read = read_pod({**pod(status), "spec": {"activeDeadlineSeconds": 1}})
    assert read is not None
    assert (read.state, read.reason, read.message, read.disrupted) == (state, "", "", False)


@pytest.mark.parametrize(
    "labels", [{}, {**LABELS, "trainjob.dev/index": "x"}, {"trainjob.dev/role": "worker"}]
)
def test_a_pod_without_a_replica_is_no_pod_of_the_job(labels: dict[str, str]) -> None:
    assert read_pod(pod({}, labels=labels)) is None


def test_a_terminating_pod_is_deleting() -> None:
    read = read_pod(pod({}, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert read is not None
    assert read.deleting
    assert not read.ended
