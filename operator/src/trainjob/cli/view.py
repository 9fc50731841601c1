"""The view of a job: data only, so that every display shows the same."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from trainjob.api import TrainJobStatus
from trainjob.cluster import Snapshot
from trainjob.core.agent_reports import AgentReport, EvaluationResult, Report
from trainjob.core.names import EVALUATOR, Replica
from trainjob.core.pods import Pod, PodState, read_pod


@dataclass(frozen=True)
class ReplicaView:
    """One replica.

    Attributes:
        name: such as `worker-0`.
        state: one or a few words.
        report: its latest report, or an empty one.
        pod: the name of its pod, or None.
        exit_code: its exit code once it has ended, or None.
        message: its termination message, or an empty string.
    """

    name: str
    state: str = "pending"
    report: Report = field(default_factory=Report)
    pod: str | None = None
    exit_code: int | None = None
    message: str = ""

    @property
    def has_failed(self) -> bool:
        """Return whether it has ended with an exit code other than 0."""
        return bool(self.exit_code)


@dataclass(frozen=True)
class JobView:
    """The whole job.

    Attributes:
        elapsed: the time since the start.
        evaluation: the latest result of the evaluator, or None.
        checkpoint_step: the step of the newest reported checkpoint, or None.
    """

    name: str
    status: TrainJobStatus
    elapsed: timedelta
    replicas: tuple[ReplicaView, ...]
    evaluation: EvaluationResult | None = None
    checkpoint_step: int | None = None

    @property
    def state(self) -> str:
        """Return the job's state in one word."""
        return self.status.state or "Pending"

    @property
    def message(self) -> str:
        """Return the job's state in one sentence."""
        return self.status.message or ""

    @property
    def restarts(self) -> int:
        """Return how often training was restarted, for any reason."""
        return self.status.restarts.charged + self.status.restarts.uncharged


def build_view(snapshot: Snapshot, replicas: Iterable[Replica], *, since: datetime, now: datetime) -> JobView:
    """Return the view of a job.

    Args:
        snapshot: the job and all objects that belong to it.
        replicas: every replica of the job, in display order.
        since: the start time of the run.
        now: the current time.
    """
    pods = _newest(snapshot.pods)
    report = AgentReport.model_validate(snapshot.agent_report or {})
    shown = tuple(_replica_view(each, pods.get(each), snapshot.progress, report) for each in replicas)
    scored = (view.report.evaluation for view in shown if view.name.startswith(f"{EVALUATOR}-"))
    return JobView(
        name=snapshot.job["metadata"]["name"],
        status=TrainJobStatus.model_validate(snapshot.job.get("status") or {}),
        elapsed=now - since,
        replicas=shown,
        evaluation=next((evaluation for evaluation in scored if evaluation), None),
        checkpoint_step=_newest_checkpoint(snapshot),
    )


def _newest_checkpoint(snapshot: Snapshot) -> int | None:
    # Deleted pods count too: their checkpoints still exist.
    steps = [Report.model_validate(raw).checkpoint_step for raw in snapshot.progress.values()]
    steps.append(((snapshot.job.get("status") or {}).get("output") or {}).get("checkpointStep"))
    return max((step for step in steps if step is not None), default=None)


def _newest(manifests: Iterable[Mapping[str, Any]]) -> dict[Replica, Pod]:
    newest: dict[Replica, Pod] = {}
    for pod in filter(None, map(read_pod, manifests)):
        if pod.replica not in newest or newest[pod.replica].incarnation < pod.incarnation:
            newest[pod.replica] = pod
    return newest


def _replica_view(
    replica: Replica, pod: Pod | None, progress: Mapping[str, Mapping[str, Any]], agent_report: AgentReport
) -> ReplicaView:
    if pod is None:
        return ReplicaView(replica.name)
    report = Report.model_validate(progress[pod.name]) if pod.name in progress else Report()
    return ReplicaView(
        name=replica.name,
        state=_state(pod, report, agent_report),
        report=report,
        pod=pod.name,
        exit_code=pod.exit_code,
        message=pod.message,
    )


def _state(pod: Pod, report: Report, agent_report: AgentReport) -> str:
    if pod.state is PodState.SUCCEEDED:
        return "finished"
    if pod.state is PodState.FAILED:
        return f"failed ({pod.exit_code})"
    if pod.deleting:
        return "stopping"
    if pod.state is PodState.RUNNING:
        return _state_by_agents(pod, agent_report) or report.state or "running"
    return "starting"


def _state_by_agents(pod: Pod, agent_report: AgentReport) -> str | None:
    """Return why a pod's training process isn't running, or None while it runs."""
    member = agent_report.members.get(pod.replica)
    if member is None or member.pod != pod.name:
        return None
    return {"idle": "waiting", "stopping": "stopping"}.get(member.state)
