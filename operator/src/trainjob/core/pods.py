"""A pod as the policies see it: what Kubernetes reports, without unknown parts.

The container `trainer` decides, not the pod's phase: a sidecar may outlive it, and on cgroup v1 a container
whose child was killed for memory ends with exit code 0 and the reason OOMKilled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

from trainjob.api import TRAINER_CONTAINER
from trainjob.api.errors import mapping_at, objects_at, trainer_of
from trainjob.core.agent import AgentSource, read_source
from trainjob.core.agent_reports import TerminationMessage, read_report, read_termination_message
from trainjob.core.delays import time_left
from trainjob.core.names import (
    AVOIDED_NODES,
    GROUP_NAME_ANNOTATION,
    GROUP_NAME_LABEL,
    LABEL_INCARNATION,
    LABEL_INDEX,
    LABEL_LIVE,
    LABEL_ROLE,
    Replica,
    training_world,
)
from trainjob.core.wording import last_line, quoted, utc
from trainjob_trainer.contract.reports import Report

_DISRUPTED_BY_CLUSTER = frozenset(
    [
        *("Evicted", "Preempting", "NodeLost", "NodeShutdown", "Terminated", "Shutdown"),
        # The kubelet's reasons when the scheduler was wrong about its node.
        *("NodeAffinity", "TopologyAffinityError", "UnexpectedAdmissionError"),
    ]
)
_NO_ROOM = "OutOf"
"""`OutOfcpu`, `OutOfnvidia.com/gpu`: reasons of the kubelet, too."""

DEADLINE_EXCEEDED = "DeadlineExceeded"
"""Kubernetes' reason for the end of a pod that has a deadline of its own."""

START_ERROR = "StartError"
"""containerd's reason for a container that it couldn't start."""

UNKNOWN_END = "ContainerStatusUnknown"
"""Kubernetes' reason for the end of a container that its node has lost."""


ENDED_AT_ONCE = 1
"""`activeDeadlineSeconds` of a pod that is told to end; it can be set on a running pod."""


class PodState(Enum):
    """The state of the pod's training container."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class InitFailure(NamedTuple):
    """The end of an init container that failed its pod."""

    name: str
    exit_code: int | None
    reason: str
    message: str
    text: str


@dataclass(frozen=True)
class Pod:
    """One pod of a job.

    Attributes:
        incarnation: the number of the replica's pod, from 1.
        live: whether the job's Service selects it.
        ready: whether the kubelet reports it as ready.
        waiting: (reason, message) of what keeps it from running, or None.
        activity: what runs in it before its training container, and since when; empty if that is unknown.
        init_failure: the end of the init container that has failed it, or None.
        exit_code: of the training container, once it has ended.
        reason: Kubernetes' reason for the end, such as `OOMKilled` or `Evicted`.
        message: the termination message: what the trainer wrote, or its last log lines.
        disrupted: whether the cluster disrupted it (eviction, preemption, a lost node).
        explanation: Kubernetes' own sentence about the end, such as which resource the node was low on.
        created_at: by the API server's clock.
        deleted_at: when its deletion was requested, or None.
        due_at: when the grace period of its deletion ends, or None.
        placed_at: when it got its node, or None.
        started_at: when the training container started, if the kubelet reports it.
        finished_at: when the training container, or the init container that failed, ended; or None.
        world: the number of replicas of each training role in its TF_CONFIG.
        termination: its agent's termination message after a failure, or None.
        source: where its agent comes from, or None if it has no agent.
        avoided: the nodes that were lost when it was created.
        group: the name of its PodGroup; empty if it has none.
        memory: the memory limit that its training container has; empty for none.
        memory_asked: the one in its spec, which a resize has changed before the container has it.
        resize_refusal: why its node can't resize it now; empty if it can, or needn't.
        outlived: whether another container runs on after the training container, and the pod isn't told to
            end. Native sidecars don't count: the kubelet ends them.
    """

    name: str
    uid: str
    replica: Replica
    incarnation: int
    state: PodState
    live: bool = True
    ready: bool = False
    node: str = ""
    waiting: tuple[str, str] | None = None
    activity: str = ""
    init_failure: InitFailure | None = None
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    disrupted: bool = False
    explanation: str = ""
    created_at: datetime | None = None
    deleted_at: datetime | None = None
    due_at: datetime | None = None
    placed_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    world: Mapping[str, int] | None = None
    termination: TerminationMessage | None = None
    source: AgentSource | None = None
    avoided: frozenset[str] = frozenset()
    group: str = ""
    outlived: bool = False
    memory: str = ""
    memory_asked: str = ""
    resize_refusal: str = ""

    @property
    def deleting(self) -> bool:
        """Return whether its deletion was requested, by any client."""
        return self.deleted_at is not None

    @property
    def deleted(self) -> bool:
        """Return whether it was deleted before it ended: the way it ends is then not its own failure."""
        if self.deleted_at is None:
            return False
        return self.finished_at is None or self.finished_at >= self.deleted_at

    @property
    def ended(self) -> bool:
        """Return whether its training container has succeeded or failed."""
        return self.state in (PodState.SUCCEEDED, PodState.FAILED)

    @property
    def failed_at_start(self) -> bool:
        """Return whether it has failed by itself before its training container ran."""
        began = self.exit_code is not None and self.reason != START_ERROR
        return self.state is PodState.FAILED and not (began or self.disrupted or self.deleted)


def read_pod(manifest: Mapping[str, Any]) -> Pod | None:
    """Return the pod, or None if its labels don't name a replica and an incarnation."""
    meta = manifest.get("metadata", {})
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    found = read_replica_labels(labels)
    if found is None:
        return None
    replica, incarnation = found
    spec, status = manifest.get("spec") or {}, manifest.get("status") or {}
    container = container_state(status)
    ended = container.get("terminated")
    told_to_end = ended and spec.get("activeDeadlineSeconds") == ENDED_AT_ONCE
    if told_to_end:  # what the kubelet then says of the pod isn't about its training
        status = {name: value for name, value in status.items() if name not in ("reason", "message")}
    source = read_source(spec)
    state = _state(status, container, has_agent=source is not None)
    disrupted = _is_disrupted(status)
    is_overdue = not told_to_end and _is_overdue(spec, status, ended)
    has_begun = bool(ended) or "running" in container  # then no init container keeps it
    init = _current_init(spec, status) if not has_begun else ({}, False)
    init_failed = _failed_init(spec, status) if not has_begun else None
    message = (ended or {}).get("message") or status.get("message") or ""
    due_at = read_time(meta.get("deletionTimestamp"))
    asked, pending = memory_limit(trainer_of(spec)), _condition(status, "PodResizePending")
    return Pod(
        name=meta["name"],
        uid=meta.get("uid", ""),
        replica=replica,
        incarnation=incarnation,
        state=state,
        live=labels.get(LABEL_LIVE) == "true",
        ready=any(
            c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ()
        ),
        node=spec.get("nodeName", ""),
        waiting=_init_waiting(*init) or waiting_reason(status, container),
        activity=_activity(*init),
        init_failure=_read_init_failure(init_failed) if init_failed else None,
        exit_code=ended.get("exitCode") if ended else None,
        reason=DEADLINE_EXCEEDED if is_overdue else _end_reason(status, ended, disrupted),
        message=message,
        disrupted=disrupted,
        explanation=status.get("message") or "",
        created_at=read_time(meta.get("creationTimestamp")),
        deleted_at=_deleted_at(meta, due_at),
        due_at=due_at,
        placed_at=_placed_at(status),
        started_at=read_time((ended or container.get("running") or {}).get("startedAt")),
        finished_at=read_time((ended or (_ended(init_failed) if init_failed else {})).get("finishedAt")),
        world=_world(spec),
        termination=read_termination_message(read_json(message)) if state is PodState.FAILED else None,
        source=source,
        avoided=frozenset(filter(None, annotations.get(AVOIDED_NODES, "").split(","))),
        group=labels.get(GROUP_NAME_LABEL)
        or annotations.get(GROUP_NAME_ANNOTATION)
        or mapping_at(spec, "schedulingGroup").get("podGroupName")
        or "",
        memory=memory_limit(_container_status(status)) or asked,
        memory_asked=asked,
        resize_refusal=_clause(f"{pending.get('reason')}: {pending.get('message') or ''}") if pending else "",
        outlived=bool(ended) and not told_to_end and _others_run(status),
    )


SLOW_START = timedelta(seconds=30)
"""How long a pod may take from its node to its training container before people read what it does."""


def is_slow_to_start(pod: Pod, now: datetime) -> bool:
    """Return whether it has had a node for long, and nothing in its status says why it doesn't run."""
    left = slow_start_left(pod, now)
    return left is not None and left <= timedelta(0)


def slow_start_left(pod: Pod, now: datetime) -> timedelta | None:
    """Return the time until its start is slow, or None if it isn't starting."""
    if pod.state is not PodState.STARTING or pod.waiting is not None or pod.deleting:
        return None
    return time_left(pod.placed_at or pod.created_at or now, SLOW_START, now)


def read_replica_labels(labels: Mapping[str, str]) -> tuple[Replica, int] | None:
    """Return the replica and incarnation that a pod's labels name, or None."""
    try:
        return Replica(labels[LABEL_ROLE], int(labels[LABEL_INDEX])), int(labels[LABEL_INCARNATION])
    except (KeyError, ValueError):
        return None


def container_state(status: Mapping[str, Any], name: str = TRAINER_CONTAINER) -> Mapping[str, Any]:
    """Return the state of a container in a pod's status; empty before there is one."""
    return mapping_at(_container_status(status, name), "state")


def _container_status(status: Mapping[str, Any], name: str = TRAINER_CONTAINER) -> Mapping[str, Any]:
    return next((c for _, c in objects_at(status, "containerStatuses") if c.get("name") == name), {})


def memory_limit(holder: Mapping[str, Any]) -> str:
    """Return the memory limit in a container's spec, or in its status: what the kubelet has given it."""
    return str(mapping_at(holder, "resources", "limits").get("memory") or "")


def read_json(message: str) -> Mapping[str, Any]:
    """Return the JSON object in a termination message, or an empty one if it is other text."""
    try:
        value = json.loads(message) if message.startswith("{") else None
    except (ValueError, RecursionError):
        return {}  # the user's program wrote it
    return value if isinstance(value, dict) else {}


def read_time(text: object) -> datetime | None:
    """Return a Kubernetes time stamp as a time with zone, or None if there is none."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _deleted_at(meta: Mapping[str, Any], over: datetime | None) -> datetime | None:
    """Return when the deletion was requested: `deletionTimestamp` is the end of its grace period."""
    return over - timedelta(seconds=meta.get("deletionGracePeriodSeconds") or 0) if over else None


def _placed_at(status: Mapping[str, Any]) -> datetime | None:
    scheduled = _condition(status, "PodScheduled")
    return read_time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None


def _state(status: Mapping[str, Any], container: Mapping[str, Any], *, has_agent: bool) -> PodState:
    ended = container.get("terminated")
    if ended:
        # Without an agent nobody knows which process was killed; an agent knows that its last one was not.
        good = ended.get("exitCode") == 0 and (has_agent or ended.get("reason") != "OOMKilled")
        return PodState.SUCCEEDED if good else PodState.FAILED
    if status.get("phase") == "Failed":
        return PodState.FAILED  # an eviction before the container's end was reported
    if "running" in container:
        return PodState.RUNNING
    return (
        PodState.STARTING if _condition(status, "PodScheduled").get("status") == "True" else PodState.PENDING
    )


def _others_run(status: Mapping[str, Any]) -> bool:
    """Return whether a container of the pod hasn't ended; the pod holds its GPUs until all have."""
    containers = status.get("containerStatuses") or ()
    has_ended = status.get("phase") in ("Succeeded", "Failed")
    return not has_ended and any("terminated" not in (c.get("state") or {}) for c in containers)


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next((c for c in status.get("conditions") or () if c.get("type") == kind), {})
    return found


def waiting_reason(status: Mapping[str, Any], container: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return reason and message of what keeps a pod from running, or None.

    Args:
        status: of the pod.
        container: the state of the container that counts.
    """
    waiting = container.get("waiting")
    if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        # The kubelet reports the two reasons in turns for the same problem.
        reason = "ImagePullBackOff" if waiting["reason"] == "ErrImagePull" else waiting["reason"]
        return _clause(reason), _clause(waiting.get("message") or "")
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason"):
        return _clause(scheduled["reason"]), _clause(scheduled.get("message") or "")
    return None


# What runs before the training container: init containers, and those that restart (sidecars) until they have
# started.


def _restartable(spec: Mapping[str, Any]) -> set[str]:
    containers = spec.get("initContainers") or ()
    return {c.get("name", "") for c in containers if c.get("restartPolicy") == "Always"}


def _current_init(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the status of the init container that the others wait for, and whether it restarts."""
    restartable = _restartable(spec)
    for init in status.get("initContainerStatuses") or ():
        restarts = init.get("name") in restartable
        is_done = init.get("started") is True if restarts else _ended(init).get("exitCode") == 0
        if not is_done:
            return init, restarts
    return {}, False


def _failed_init(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the status of the init container that has failed the pod; one that restarts never does."""
    if status.get("phase") != "Failed":
        return None
    restartable = _restartable(spec)
    ended = (init for init in status.get("initContainerStatuses") or () if init["name"] not in restartable)
    return next((init for init in ended if _ended(init).get("exitCode")), None)


def _ended(container: Mapping[str, Any], state: str = "state") -> Mapping[str, Any]:
    found: Mapping[str, Any] = (container.get(state) or {}).get("terminated") or {}
    return found


def _read_init_failure(init: Mapping[str, Any]) -> InitFailure:
    ended = _ended(init)
    message = ended.get("message") or ""
    return InitFailure(
        init["name"], ended.get("exitCode"), ended.get("reason") or "", message, _describe_end(ended)
    )


def _init_waiting(init: Mapping[str, Any], restarts: bool) -> tuple[str, str] | None:
    state = init.get("state") or {}
    ended = _ended(init) or _ended(init, "lastState")
    if restarts and ended:  # also in the seconds in which it runs again
        return "CrashLoopBackOff", f"init container {init['name']} ended with {_describe_end(ended)}"
    waiting = waiting_reason({}, state)
    return (waiting[0], f"init container {init['name']}: {waiting[1]}".rstrip(": ")) if waiting else None


def _activity(init: Mapping[str, Any], restarts: bool) -> str:
    since = read_time(((init.get("state") or {}).get("running") or {}).get("startedAt"))
    if since is None:
        return ""
    probe = " and hasn't passed its startup probe" if restarts else ""
    return f"init container {init['name']} has been running since {utc(since)}{probe}"


def _describe_end(ended: Mapping[str, Any]) -> str:
    """Return `exit code 1: permission denied`, with Kubernetes' reason if it says more than that."""
    reason, message = ended.get("reason"), start_error(ended.get("message") or "")
    known = "" if reason in (None, "", "Error", "Completed") else f"{quoted(reason)}, "
    return f"{known}exit code {ended.get('exitCode')}" + (f": {last_line(message)}" if message else "")


_RUNTIME = re.compile(r".*(?:container init|container process): ", re.DOTALL)


def start_error(message: str) -> str:
    """Return a container runtime's message without the names of its layers."""
    return _RUNTIME.sub("", message).removesuffix(": unknown")


def _clause(sentence: str) -> str:
    """Return a message of the cluster without its period, so that a sentence can continue after it."""
    return quoted(sentence).rstrip(".")


def _is_disrupted(status: Mapping[str, Any]) -> bool:
    reason = str(status.get("reason"))
    if reason in _DISRUPTED_BY_CLUSTER or reason.startswith(_NO_ROOM):
        return True
    return bool(_disruption(status))


def _disruption(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition of a pod that the cluster takes away; Kueue has its own for one without a node."""
    conditions = (_condition(status, kind) for kind in ("DisruptionTarget", "TerminatedByKueue"))
    return next((found for found in conditions if found.get("status") == "True"), {})


def _is_overdue(spec: Mapping[str, Any], status: Mapping[str, Any], ended: Mapping[str, Any] | None) -> bool:
    """Return whether the pod's own deadline has ended it; the kubelet may say so later than the container."""
    begun, end = read_time(status.get("startTime")), read_time((ended or {}).get("finishedAt"))
    allowed = spec.get("activeDeadlineSeconds")
    if ended and begun and end and isinstance(allowed, int):
        return bool(ended.get("exitCode")) and (end - begun).total_seconds() >= allowed
    return status.get("reason") == DEADLINE_EXCEEDED


def _end_reason(status: Mapping[str, Any], ended: Mapping[str, Any] | None, disrupted: bool) -> str:
    if disrupted:
        return status.get("reason") or _disruption(status).get("reason") or "Disrupted"
    return (ended or {}).get("reason") or status.get("reason") or ""


def _world(spec: Mapping[str, Any]) -> Mapping[str, int] | None:
    for variable in trainer_of(spec).get("env") or ():
        if variable.get("name") == "TF_CONFIG":
            return training_world(variable.get("value") or "")
    return None


# Events about pods: what the kubelet reports nowhere else, such as a volume that isn't there.


class PodEvent(NamedTuple):
    """The newest event about a pod."""

    at: datetime
    is_warning: bool
    reason: str
    message: str


def read_pod_event(event: Mapping[str, Any]) -> PodEvent:
    """Return an event about a pod."""
    message = _clause(str(event.get("message") or ""))
    return PodEvent(event_time(event), event.get("type") == "Warning", str(event.get("reason")), message)


def event_time(event: Mapping[str, Any]) -> datetime:
    """Return when an Event of any component last happened; the year 1970 where it doesn't say."""
    times = (event.get(each) for each in ("lastTimestamp", "eventTime", "firstTimestamp"))
    created = (event.get("metadata") or {}).get("creationTimestamp")
    return next(filter(None, map(read_time, (*times, created))), datetime.fromtimestamp(0, UTC))


# Last reports of training processes, from termination messages.


def last_reports(pods: Iterable[Pod]) -> dict[str, Report]:
    """Return the last report in each pod's termination message, by pod name: its own or its agent's."""
    reports: dict[str, Report] = {}
    for pod in pods:
        if pod.state is PodState.SUCCEEDED and (report := read_json(pod.message)):
            reports[pod.name] = read_report(report)
        elif pod.termination is not None and pod.termination.report is not None:
            reports[pod.name] = pod.termination.report
    return reports
