"""One job as every command sees it: its spec, its status, and its replicas where they run here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, ValidationError

from trainjob.api import API_VERSION, KIND, Evaluation, Progress, TrainJobStatus
from trainjob.client.request import Request, read_request
from trainjob.cluster.protocol import PostedEvent
from trainjob.core.agent_reports import (
    AgentReport,
    EvaluationResult,
    evaluation_of,
    merge_notices,
    read_report,
)
from trainjob.core.conditions import COMPLETE, FAILED, is_true
from trainjob.core.names import Replica
from trainjob.core.pods import Pod, PodState, read_pod, read_time
from trainjob.core.script import is_smoke_test
from trainjob_trainer.contract.replicas import EVALUATOR
from trainjob_trainer.contract.reports import Report

if TYPE_CHECKING:
    from trainjob.cluster import Snapshot


class Outcome(Enum):
    """Whether a job has finished, and how."""

    GOING_ON = "going on"
    COMPLETE = "complete"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """Of a run on this machine that has ended before the job; the same command continues the job."""


@dataclass(frozen=True)
class ReplicaView:
    """One replica, such as `worker-0`: its state in a few words, its latest report, and its pod, if any.

    Once it has ended it has an exit code, and perhaps a termination message.
    """

    name: str
    state: str = "pending"
    report: Annotated[Report, PlainSerializer(Report.to_json), PlainValidator(read_report)] = field(
        default_factory=Report
    )
    pod: str | None = None
    exit_code: int | None = None
    message: str = ""

    @property
    def is_evaluator(self) -> bool:
        """Return whether it evaluates checkpoints."""
        return self.name.startswith(f"{EVALUATOR}-")

    @property
    def has_failed(self) -> bool:
        """Return whether it has ended with an exit code other than 0."""
        return bool(self.exit_code)

    @property
    def is_stepping(self) -> bool:
        """Return whether it takes steps; in other states the figures of the last one are out of date."""
        return self.state in ("training", "saving", "evaluating")


@dataclass(frozen=True)
class Figures:
    """How far training is; None means unknown. Texts among the metrics are those of a status."""

    step: int | None = None
    total_steps: int | None = None
    epoch: int | None = None
    total_epochs: int | None = None
    examples_per_second: float | None = None
    metrics: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JobView:
    """The parts of a job that commands use.

    Attributes:
        uid: distinguishes it from earlier and later jobs of its name.
        created_at: by the API server's clock.
        deleting: its deletion has been requested.
        request: what was asked for; of a run here, with the caller's environment and the code's files.
        elapsed: the time from its start to its end; of a run here, until now.
        evaluation: the latest result of the evaluator.
        checkpoint_step: the step of the newest reported checkpoint.
        replicas: of a run here, in display order; empty for a job in a cluster.
        folder: of a run here, its output folder; empty for a job in a cluster.
        interrupted: of a run here, whether it has ended before the job.
        events: of a run here, oldest first; empty for a job in a cluster.
    """

    name: str
    namespace: str = "default"
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    status: TrainJobStatus = field(default_factory=TrainJobStatus)
    created_at: datetime | None = None
    deleting: bool = False
    request: Annotated[Request, Field(exclude=True)] = field(default_factory=Request)  # the record has it
    elapsed: timedelta | None = None
    evaluation: Evaluation | EvaluationResult | None = None
    checkpoint_step: int | None = None
    replicas: tuple[ReplicaView, ...] = ()
    folder: str = ""
    interrupted: bool = False
    events: tuple[PostedEvent, ...] = ()

    @property
    def in_place(self) -> bool:
        """Return whether its training restarts in the existing pods."""
        return self.spec.get("restartStrategy") != "Recreate"

    @property
    def is_smoke_test(self) -> bool:
        """Return whether it takes one step of everything, to try it."""
        return is_smoke_test(self.spec)

    @property
    def outcome(self) -> Outcome:
        """Return whether it has finished, and how."""
        if is_true(self.status, COMPLETE):
            return Outcome.COMPLETE
        if is_true(self.status, FAILED):
            return Outcome.FAILED
        return Outcome.INTERRUPTED if self.interrupted else Outcome.GOING_ON

    @property
    def is_over(self) -> bool:
        """Return whether it has finished, or nothing of it runs any more."""
        return self.outcome is not Outcome.GOING_ON

    @property
    def state(self) -> str:
        """Return its state in one word."""
        if self.outcome is Outcome.INTERRUPTED:
            return "Interrupted"
        return self.status.state or "Pending"

    @property
    def message(self) -> str:
        """Return its state in one sentence, or an empty string."""
        return self.status.message or ""

    @property
    def last_evaluation(self) -> Evaluation | EvaluationResult | None:
        """Return the latest result of the evaluator, also while none of its processes reports it."""
        return self.evaluation or self.status.evaluation

    @property
    def resumed_from(self) -> int | None:
        """Return the step that training resumed from, or None if it started at the beginning."""
        steps = (replica.report.resumed_from for replica in self.replicas)
        return next((step for step in steps if step), None)

    @property
    def lead(self) -> ReplicaView | None:
        """Return the replica whose steps are the job's; None for a job in a cluster."""
        trained = (each for each in self.replicas if not each.is_evaluator)
        return next((each for each in trained if each.report.step is not None), None)

    @property
    def figures(self) -> Figures:
        """Return how far training is: of a run here its replicas' reports are newer than the status."""
        progress, lead = self.status.progress or Progress(), self.lead
        if lead is None:
            p = progress
            return Figures(p.step, p.total_steps, p.epoch, None, p.examples_per_second, dict(p.metrics))
        r = lead.report
        loss = {} if r.loss is None else {"loss": r.loss}
        metrics: dict[str, float | str] = {**loss, **progress.metrics, **loss, **(r.metrics or {})}
        return Figures(r.step, r.total_steps, r.epoch, r.total_epochs, r.examples_per_second, metrics)


def read_job(manifest: Mapping[str, Any]) -> JobView:
    """Return the job; an invalid status, as after an edit by hand, counts as empty."""
    meta = manifest.get("metadata") or {}
    annotations, spec = meta.get("annotations"), manifest.get("spec")
    try:
        status = TrainJobStatus.model_validate(manifest.get("status") or {})
    except ValidationError:
        status = TrainJobStatus()
    start, end = status.start_time, status.completion_time
    return JobView(
        name=str(meta.get("name", "")),
        namespace=str(meta.get("namespace") or "default"),
        uid=str(meta.get("uid", "")),
        annotations=annotations if isinstance(annotations, Mapping) else {},
        spec=spec if isinstance(spec, Mapping) else {},
        status=status,
        created_at=read_time(meta.get("creationTimestamp")),
        deleting=bool(meta.get("deletionTimestamp")),
        request=read_request(manifest),
        elapsed=end - start if start and end else None,
        evaluation=status.evaluation,
        checkpoint_step=status.output.checkpoint_step if status.output else None,
    )


def manifest_of(job: JobView) -> dict[str, Any]:
    """Return a job of this machine in the form in which a cluster has it."""
    metadata: dict[str, Any] = {"name": job.name, "namespace": job.namespace, "uid": job.uid}
    if job.annotations:
        metadata["annotations"] = dict(job.annotations)
    if job.created_at is not None:
        metadata["creationTimestamp"] = job.created_at.isoformat()
    status = job.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": dict(job.spec),
        "status": status,
    }


def read_run(
    snapshot: Snapshot,
    replicas: Iterable[Replica],
    *,
    since: datetime,
    now: datetime,
    events: tuple[PostedEvent, ...] = (),
) -> JobView:
    """Return the job of a run on this machine, which began at `since`, with its replicas in this order."""
    job = read_job(snapshot.job)
    reports = {pod: read_report(raw) for pod, raw in snapshot.progress.items()}
    pods = sorted(filter(None, map(read_pod, snapshot.pods)), key=lambda pod: pod.incarnation)
    newest = {pod.replica: pod for pod in pods}
    agents = AgentReport.model_validate(snapshot.agent_report or {})
    shown = tuple(_read_replica(each, newest.get(each), reports, agents) for each in replicas)
    scored = (evaluation_of(each.report) for each in shown if each.is_evaluator)
    # Deleted pods count too: their checkpoints still exist.
    steps = [job.checkpoint_step, *(report.checkpoint_step for report in reports.values())]
    notices = merge_notices(job.status.notices, agents.notices, *(r.notices or () for r in reports.values()))
    return replace(
        job,
        status=job.status.model_copy(update={"notices": notices}),
        elapsed=now - since,
        evaluation=next((evaluation for evaluation in scored if evaluation), None),
        checkpoint_step=max((step for step in steps if step is not None), default=None),
        replicas=shown,
        events=events,
    )


def with_stopped(before: JobView, after: JobView) -> JobView:
    """Return the view `after` a stop was requested, with the last figures of replicas that are gone since."""
    known = {each.name: each for each in before.replicas}
    replicas = [
        replace(known[each.name], state="stopped") if each.pod is None and known[each.name].pod else each
        for each in after.replicas
    ]
    return replace(after, replicas=tuple(replicas), evaluation=after.evaluation or before.evaluation)


RESTARTS = ("Restarting", "Restarted", "EvaluatorRestarted", "Resized", "StartTimeout")
"""Reasons of the events about a restart."""


class Resumptions:
    """Adds to each restart the step from which training continued.

    The event has it only if a checkpoint had been reported before the failure, and that may not be the last
    one: workers that stop for a restart save once more. The next start's report has it in any case.
    """

    def __init__(self) -> None:
        self._steps: dict[datetime, int] = {}

    def complete(self, job: JobView) -> JobView:
        """Return the view with completed events; call it with each view."""
        restarts = [each.at for each in job.events if each.reason in RESTARTS]
        for each in job.replicas if restarts else ():
            if each.report.resumed_from and (each.report.time or 0.0) > restarts[-1].timestamp():
                self._steps[restarts[-1]] = each.report.resumed_from
                break
        return replace(job, events=tuple(map(self._completed, job.events)))

    def _completed(self, event: PostedEvent) -> PostedEvent:
        step = self._steps.get(event.at)
        if step is None or event.reason not in RESTARTS:
            return event
        before, separator, action = event.message.rpartition("; ")
        if " from " not in action:
            return event._replace(message=f"{event.message}; resumed from step {step}")
        action = re.sub(r" from step \d+", f" from step {step}", action)
        return event._replace(message=f"{before}{separator}{action}")


def _read_replica(
    replica: Replica, pod: Pod | None, reports: Mapping[str, Report], agents: AgentReport
) -> ReplicaView:
    if pod is None:
        return ReplicaView(replica.name)
    report = reports.get(pod.name) or Report()
    member = agents.members.get(replica)
    waits = {"idle": "waiting", "stopping": "stopping"}
    by_agent = waits.get(member.state) if member is not None and member.pod == pod.name else None
    reported = "importing TensorFlow" if report.state == "importing" else report.state
    state = describe_pod(pod, by_agent or reported or "running")
    return ReplicaView(replica.name, state, report, pod.name, pod.exit_code, pod.message)


def describe_pod(pod: Pod, running: str = "running") -> str:
    """Return a pod's state in one or a few words: `running` while its container runs."""
    if pod.state is PodState.SUCCEEDED:
        return "finished"
    if pod.state is PodState.FAILED:
        return f"failed ({pod.exit_code if pod.exit_code is not None else pod.reason or 'unknown'})"
    if pod.deleting:
        return "stopping"
    return running if pod.state is PodState.RUNNING else why_no_log(pod).partition(":")[0]


def why_no_log(pod: Pod) -> str:
    """Return why its container has no log."""
    if pod.state is PodState.FAILED:
        return f"failed before it started ({pod.reason or pod.message or 'the cluster does not say why'})"
    if pod.waiting is not None:
        reason, message = pod.waiting
        return f"{reason}: {message}" if message else reason
    return "waiting for a node" if pod.state is PodState.PENDING else "starting"


def current_metrics(job: JobView) -> dict[str, float]:
    """Return the latest metrics of training, and the evaluator's as `val_` and their names."""
    scores = job.evaluation.metrics if job.evaluation else {}
    found = {**job.figures.metrics, **{f"val_{name}": value for name, value in scores.items()}}
    return {name: number for name, value in found.items() if (number := as_number(value)) is not None}


def as_number(value: object) -> float | None:
    """Return the number that a metric has, in a status as text; None for other texts."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
