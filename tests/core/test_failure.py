"""Which failure came first, and whose fault it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.golden import Golden
from support.world.jobs import build_job, build_plain_job
from trainjob.core.failure import Failure, first_failure
from trainjob.core.names import Replica
from trainjob.core.observed import Snapshot, read_observed
from trainjob_trainer.contract.exits import meaning_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEATS = [Replica("worker", 0), Replica("worker", 1)]


def pod(
    index: int, *, ended: float | None = None, deleted: float | None = None, **how: Any
) -> dict[str, Any]:
    """A pod that ended or was deleted so many seconds after a start; with 30 s of grace, as by default."""
    labels = {"role": "worker", "index": str(index), "incarnation": "1", "live": "true"}
    meta: dict[str, Any] = {
        "name": f"p{index}",
        "labels": {f"trainjob.dev/{name}": value for name, value in labels.items()},
        "ownerReferences": [{"uid": "u", "controller": True}],
    }
    if deleted is not None:
        meta["deletionTimestamp"] = (NOW + timedelta(seconds=deleted + 30)).isoformat()
        meta["deletionGracePeriodSeconds"] = 30
    state: dict[str, Any] = {"running": {}}
    if ended is not None:
        finished = (NOW + timedelta(seconds=ended)).isoformat()
        state = {"terminated": {"exitCode": 1, "finishedAt": finished, **how}}
    return {
        "metadata": meta,
        "spec": {},
        "status": {"containerStatuses": [{"name": "trainer", "state": state}]},
    }


def failure_of(*pods: dict[str, Any]) -> Failure | None:
    return first_failure(read_observed(Snapshot(build_plain_job(uid="u"), pods)), SEATS, NOW)


def test_a_pod_that_was_deleted_first_is_named_before_the_peer_that_crashed_for_it() -> None:
    failure = failure_of(pod(0, ended=5), pod(1, deleted=2))
    assert failure is not None
    assert (failure.replica.index, failure.reason, failure.cause.counted) == (1, "PodDeleted", False)


def test_a_pod_that_was_deleted_later_is_not() -> None:
    failure = failure_of(pod(0, ended=5), pod(1, deleted=8))
    assert failure is not None
    assert (failure.replica.index, failure.cause.counted) == (0, True)


@pytest.mark.parametrize("code", [0, 1, 143])
def test_how_a_deleted_pod_ends_is_not_its_fault(code: int) -> None:
    failure = failure_of(pod(0), pod(1, deleted=2, ended=4, exitCode=code))
    assert failure is not None
    assert (failure.replica.index, failure.reason, failure.cause.counted) == (1, "PodDeleted", False)


def test_a_crash_stays_a_crash_when_the_pod_is_deleted_afterwards() -> None:
    failure = failure_of(pod(0), pod(1, ended=2, deleted=4))
    assert failure is not None
    assert (failure.replica.index, failure.reason, failure.cause.counted) == (1, "Crashed", True)


def test_a_pod_that_ended_well_before_it_was_deleted_is_no_failure() -> None:
    assert failure_of(pod(0), pod(1, ended=2, deleted=4, exitCode=0)) is None


def test_a_pod_that_never_ran_says_so(golden: Golden) -> None:
    never = pod(1)
    never["status"] = {"phase": "Failed", "message": "init container failed"}
    failure = failure_of(pod(0), never)
    assert failure is not None
    golden(failure.sentence)


RUNC = "failed to create containerd task: runc create failed: unable to start container process: "
NO_PYTHON = f'{RUNC}error during container init: exec: "python3": executable file not found in $PATH: unknown'


def init(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    ended = {"exitCode": code, "reason": reason, "message": message}
    return {"phase": "Failed", "initContainerStatuses": [{"name": "fetch", "state": {"terminated": ended}}]}


@pytest.mark.parametrize(
    ("status", "counted"),
    [
        (init(1, message="connecting\npermission denied\n"), True),
        (init(137, "OOMKilled"), True),
        (init(128, "StartError", f'{RUNC}exec: "get": executable file not found in $PATH: unknown'), True),
        (init(137, "ContainerStatusUnknown", "The container could not be located"), False),
        ({**init(143), "reason": "Evicted", "message": "The node was low on resource: memory."}, False),
        ({"phase": "Failed", "reason": "SysctlForbidden", "message": "forbidden sysctl"}, True),
        ({**init(143), "reason": "DeadlineExceeded"}, True),
    ],
)
def test_what_fails_before_training(status: dict[str, Any], counted: bool, golden: Golden) -> None:
    failure = failure_of(pod(0), {**pod(1), "status": status})
    assert failure is not None
    assert failure.cause.counted == counted
    golden(failure.sentence)


BEGUN = {"startTime": NOW.isoformat()}
OVERDUE = {"phase": "Failed", "reason": "DeadlineExceeded"}


@pytest.mark.parametrize(
    ("seconds", "status", "reason"),
    [
        (5, OVERDUE, "DeadlineExceeded"),
        (5, {"phase": "Running", **BEGUN}, "DeadlineExceeded"),  # the kubelet says it later
        (6, {"phase": "Running", **BEGUN}, "Killed"),
        (6, {**OVERDUE, **BEGUN}, "Killed"),  # a sidecar ran on
        (1, {**OVERDUE, **BEGUN}, "Killed"),  # the controller has ended a sidecar
    ],
)
def test_a_deadline_of_the_pod_is_named_and_not_the_signal(
    seconds: int, status: dict[str, str], reason: str
) -> None:
    overdue = pod(1, ended=5, exitCode=143, reason="Error")
    overdue["status"] |= status
    failure = failure_of(pod(0), {**overdue, "spec": {"activeDeadlineSeconds": seconds}})
    assert failure is not None
    assert (failure.reason, failure.exit_code) == (reason, 143)


@pytest.mark.parametrize(
    ("strategy", "message", "is_told"),
    [
        ("InPlace", NO_PYTHON, True),
        ("InPlace", NO_PYTHON.replace("python3", "/opt/bin/python3.11"), True),
        ("InPlace", NO_PYTHON.replace("python3", "/train.sh"), False),
        ("InPlace", "executable file `python3` not found in $PATH: No such file or directory", True),  # CRI-O
        ("Recreate", NO_PYTHON, False),
    ],
)
def test_an_image_without_python_says_what_needs_it(
    strategy: str, message: str, is_told: bool, golden: Golden
) -> None:
    job = build_job(uid="u", restartStrategy=strategy)
    ended = pod(1, ended=0, exitCode=128, reason="StartError", message=message)
    failure = first_failure(read_observed(Snapshot(job, [pod(0), ended])), SEATS, NOW)
    assert failure is not None
    assert ("restartStrategy: Recreate" in failure.sentence) is is_told
    golden(failure.sentence)


@pytest.mark.parametrize(
    "reason", ["OutOfcpu", "OutOfnvidia.com/gpu", "NodeAffinity", "UnexpectedAdmissionError"]
)
def test_a_pod_that_its_node_turned_away_is_uncounted(reason: str) -> None:
    turned_away = pod(1)
    turned_away["status"] = {"phase": "Failed", "reason": reason, "message": "no room"}
    failure = failure_of(pod(0), turned_away)
    assert failure is not None
    assert not failure.cause.counted


@pytest.mark.parametrize(("code", "name"), [(1, "Crashed"), (137, "Killed"), (255, "Crashed")])
def test_what_an_exit_code_means(code: int, name: str) -> None:
    assert meaning_of(code).name == name


LOW = "The node was low on resource: memory. Threshold quantity: 12Gi, available: 11Gi."


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Failed", "reason": "Evicted", "message": LOW},
        {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
        {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]},
    ],
)
def test_what_the_cluster_did_is_said_with_its_reason_and_is_uncounted(
    status: dict[str, Any], golden: Golden
) -> None:
    gone = pod(1, ended=2, exitCode=86, message='{"agent": 1}')
    gone["spec"]["nodeName"] = "n"
    gone["status"] |= status
    failure = failure_of(pod(0), gone)
    assert failure is not None
    assert not failure.cause.counted
    golden(failure.sentence)
