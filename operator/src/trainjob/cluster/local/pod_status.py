"""The status of a pod, in the words of a kubelet."""

from datetime import UTC, datetime
from typing import Any

from trainjob.api import TRAINER_CONTAINER

Status = dict[str, Any]


def format_time(moment: datetime) -> str:
    """Return a time as Kubernetes writes it, with microseconds: they tell which replica failed first."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def pending_status(image: str) -> Status:
    """Return the status of a pod that has a place and does not run yet."""
    state = {"waiting": {"reason": "ContainerCreating"}}
    return {"phase": "Pending", **_conditions(ready=False), **_containers(image, state)}


def running_status(image: str, started: datetime) -> Status:
    """Return the status of a pod whose process runs."""
    state = {"running": {"startedAt": format_time(started)}}
    return {
        "phase": "Running",
        "startTime": format_time(started),
        **_conditions(ready=True),
        **_containers(image, state, ready=True),
    }


def terminated_status(
    image: str, *, exit_code: int, signal: int | None, started: datetime, finished: datetime, message: str
) -> Status:
    """Return the status of a pod whose process has ended.

    Args:
        image: as the manifest has it.
        exit_code: 0 to 255; 128+n for a death by signal n.
        signal: that signal, or None.
        started: when the process started.
        finished: when it ended.
        message: the termination message.
    """
    ended: dict[str, Any] = {
        "exitCode": exit_code,
        "reason": "Error" if exit_code else "Completed",
        "startedAt": format_time(started),
        "finishedAt": format_time(finished),
    }
    if signal is not None:
        ended["signal"] = signal
    if message:
        ended["message"] = message
    return {
        "phase": "Failed" if exit_code else "Succeeded",
        "startTime": format_time(started),
        **_conditions(ready=False),
        **_containers(image, {"terminated": ended}),
    }


def _conditions(*, ready: bool) -> Status:
    states = {"PodScheduled": True, "Initialized": True, "ContainersReady": ready, "Ready": ready}
    return {"conditions": [{"type": kind, "status": str(value)} for kind, value in states.items()]}


def _containers(image: str, state: dict[str, Any], *, ready: bool = False) -> Status:
    container = {
        "name": TRAINER_CONTAINER,
        "image": image,
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
        "lastState": {},
    }
    return {"containerStatuses": [container]}
