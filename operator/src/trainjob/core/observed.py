"""The input of the policies: one job and all that belongs to it, at one moment."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ValidationError

from trainjob.api import FieldError, InvalidTrainJob, ObjectMeta, TrainJob, TrainJobStatus, parse
from trainjob.api.errors import value_at
from trainjob.api.rules.spec import MUTABLE_IN_SPEC, MUTABLE_IN_WORKER
from trainjob.core.agent import AgentSource, agent_source, has_agent
from trainjob.core.agent_reports import AgentReport, Member, read_report
from trainjob.core.conditions import RUNNING, SUCCESS_CRITERIA_MET, is_true
from trainjob.core.delays import refusal_delay, time_left
from trainjob.core.integration import placed_job
from trainjob.core.manifests import Manifest
from trainjob.core.memory import with_limit
from trainjob.core.names import (
    JobKey,
    Replica,
    controller_uid,
    has_own_volumes,
    is_training,
    leader,
    replica_counts,
    training_replicas,
)
from trainjob.core.pods import Pod, PodEvent, PodState, last_reports, read_pod, read_pod_event
from trainjob.core.settings import Settings
from trainjob_trainer.contract.replicas import EVALUATOR
from trainjob_trainer.contract.reports import MEETING, STOPPING, Report
from trainjob_trainer.contract.restarts import RestartCounts


@dataclass(frozen=True)
class Snapshot:
    """One job and its objects at one moment, as Kubernetes has them.

    Attributes:
        job: the TrainJob itself, with its status.
        pods: every pod with this job's label, of any owner, terminating ones included.
        related: the other objects of the names that the job needs, of any owner, by kind: `Service`,
            `PersistentVolumeClaim`, `NetworkPolicy`, and those of its queue or its gang.
        progress: the latest progress report of each pod that has one, by pod name
            (the keys of a report are in `docs/contract.md`).
        agent_report: the latest report of the job's leading agent (its keys are in `docs/contract.md`), with
            `age`, the seconds since then, and `unreachableSeconds`, for how long it hasn't answered; None
            before any agent has answered.
        queue_position: the job's position in its queue, from 1; None if that is unknown.
        shared: the objects of the whole cluster that decide on this job.
        pod_events: the newest Event about pods that are slow to start, by pod name.
    """

    job: dict[str, Any]
    pods: Sequence[dict[str, Any]] = ()
    related: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    progress: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    agent_report: Mapping[str, Any] | None = None
    queue_position: int | None = None
    shared: Sequence[dict[str, Any]] = ()
    pod_events: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Dependent:
    """An object of a name that the job needs, such as its Service.

    Attributes:
        ours: whether this job owns it; not a claim that it created to be retained.
        uid: its uid.
        resource_version: of the version that was read.
        spec: its spec.
        api_version: its `apiVersion`.
    """

    name: str
    ours: bool
    uid: str = ""
    resource_version: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    api_version: str = ""


@dataclass(frozen=True)
class Refusal:
    """The cluster's refusal of the latest creation of an object for the job.

    Attributes:
        what: kind and name of the object.
        reason: Kubernetes' reason, such as `Forbidden` or `Invalid`.
        message: the cluster's own message.
        role: of the refused pod; empty for any other object.
        times: refusals in a row, this one included.
        at: the time, by the controller's clock.
    """

    what: str
    reason: str
    message: str
    role: str = ""
    times: int = 1
    at: datetime | None = None

    @property
    def permanent(self) -> bool:
        """Return whether only a change of the job can help: the API server never accepts its template."""
        return self.reason in ("Invalid", "BadRequest")

    def after(self, before: Refusal | None) -> Refusal:
        """Return this refusal as the next one in a row."""
        return replace(self, times=before.times + 1 if before else 1)

    def patience_left(self, now: datetime) -> timedelta:
        """Return how long to wait before the next attempt; 0 or less if it is due."""
        return time_left(self.at, refusal_delay(self.times), now) if self.at else timedelta(0)

    def next_attempt(self, now: datetime) -> timedelta:
        """Return the time until the next attempt or, if one is due now, until the one after it."""
        left = self.patience_left(now)
        return left if left > timedelta(0) else refusal_delay(self.times + 1)


def is_same_policy(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two specs of NetworkPolicies are the same once the API server has stored them."""
    return bool(_stored(one) == _stored(other))


def _stored(value: Any, name: str = "") -> Any:
    if isinstance(value, Mapping):
        fields = {key: _stored(each, key) for key, each in value.items()}
        if name in ("podSelector", "namespaceSelector"):
            fields = {key: each for key, each in fields.items() if each != {}}
        return {key: each for key, each in fields.items() if each is not None and each != []}
    if isinstance(value, list | tuple):
        if name == "ports":
            value = [{"protocol": "TCP", **port} for port in value]
        return [_stored(each) for each in value]
    return value


# The observed job.


FIRST_ANSWER = timedelta(seconds=20)
"""How long after their start agents may take for their first report."""


@dataclass(frozen=True)
class Observed:
    """The input of `plan`.

    Attributes:
        meta: the job's metadata, also of a job with an invalid spec.
        parsed: the typed job, or None when the spec is invalid.
        errors: why it is invalid.
        manager: `spec.managedBy`, also of a job with an invalid spec.
        status: as last written.
        pods: the pods that this job owns, in order of replica and incarnation.
        related: the objects of the names that the job needs, by kind.
        reports: by pod name.
        refusal: the refusal of the latest creation, or None.
        pods_of_others: pods of another owner (an earlier job of this name) that the job's Service would
            select, or that may write into the job's output.
        settings: settings for all jobs.
        agent_report: the agent report; None before the first one, and for a job without agents.
        integrated: what each integration has read, by its name.
        restored: uids of objects that this controller has restored.
        pod_events: the newest event about pods that are slow to start, by pod name.
    """

    meta: ObjectMeta
    parsed: TrainJob | None
    errors: tuple[FieldError, ...] = ()
    status: TrainJobStatus = field(default_factory=TrainJobStatus)
    pods: tuple[Pod, ...] = ()
    related: Mapping[str, Dependent] = field(default_factory=dict)
    reports: Mapping[str, Report] = field(default_factory=dict)
    refusal: Refusal | None = None
    manager: str | None = None
    pods_of_others: tuple[Pod, ...] = ()
    settings: Settings = field(default_factory=Settings)
    agent_report: AgentReport | None = None
    integrated: Mapping[str, Any] = field(default_factory=dict)
    restored: frozenset[str] = frozenset()
    pod_events: Mapping[str, PodEvent] = field(default_factory=dict)

    @cached_property
    def effective_job(self) -> TrainJob:
        """Return the typed job as it can be now; only for policies after `invalid` in the chain.

        It has as many workers as its queue admits and can share the global batch, and in its templates what
        its queue and its gang add to pods.

        Raises:
            LookupError: the job is invalid.
        """
        job = self.sized_job
        for integration in self.settings.integrations:
            job = placed_job(job, integration.placements(self))
        return job

    @cached_property
    def sized_job(self) -> TrainJob:
        """Return the typed job with as many workers as it can have now, and their memory.

        Raises:
            LookupError: the job is invalid.
        """
        if self.parsed is None:
            raise LookupError(f"{self.key} is invalid and has no spec to go by")
        job = self.parsed
        if (size := self._size(job)) != job.spec.worker.replicas:
            worker = job.spec.worker.model_copy(update={"replicas": size})
            job = job.model_copy(update={"spec": job.spec.model_copy(update={"worker": worker})})
        memory = self.status.worker.memory if self.status.worker else ""
        return with_limit(job, memory) if memory else job

    @cached_property
    def gang_size(self) -> int | None:
        """Return how many of the job's pods get nodes together; None if they are placed one by one."""
        sizes = (integration.gang_size(self) for integration in self.settings.integrations)
        return next((size for size in sizes if size is not None), None)

    @cached_property
    def integrated_dependents(self) -> tuple[Manifest, ...]:
        """Return the objects of integrations that must exist before pods are created."""
        integrations = self.settings.integrations
        return tuple(manifest for each in integrations for manifest in each.dependents(self))

    @property
    def waits_for_gang(self) -> bool:
        """Return whether no pod of the job's gang has a node yet: then they hold nothing."""
        if self.gang_size is None or is_true(self.status, SUCCESS_CRITERIA_MET):
            return False
        return all(p.state is PodState.PENDING for p in self.training_pods)

    def _size(self, job: TrainJob) -> int:
        """Return how many workers training can have: the previous number if these can't share the batch."""
        asked, most = job.spec.worker.replicas, self.limit[0] if self.limit is not None else None
        wanted = asked if most is None else min(asked, most)
        size = self.status.worker.size if self.status.worker else None
        if size is None or wanted == size or self._divides_batch(job, wanted):
            return wanted
        if most is None or size <= most:
            return size
        return next((n for n in range(wanted, 0, -1) if self._divides_batch(job, n)), wanted)

    @cached_property
    def limit(self) -> tuple[int, str] | None:
        """Return how many workers the job may have, and who says so; None without a limit."""
        limits = (integration.limit(self) for integration in self.settings.integrations)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def key(self) -> JobKey:
        """Return the job's namespace and name."""
        return JobKey(self.meta.namespace, self.meta.name)

    @cached_property
    def training_replicas(self) -> tuple[Replica, ...]:
        """Return the training replicas, except the workers that training continues without."""
        without = self.status.worker.unavailable if self.status.worker else ()
        return tuple(r for r in training_replicas(self.effective_job.spec) if r.name not in without)

    @property
    def in_place(self) -> bool:
        """Return whether pods outlive their training processes, so that each pod is replaced alone."""
        return self.parsed is not None and has_agent(self.parsed.spec)

    @cached_property
    def agent_source(self) -> AgentSource:
        """Return where the agents of new pods come from: the same source as those of the living pods.

        So a job keeps its agent version as long as one of its pods lives, also under a newer controller.
        """
        present = agent_source(self.meta, self.settings.bundle)
        living = [p.source for p in (*self.training_pods, *self.pods) if p.source is not None and not p.ended]
        if not living or not living[0].secret:
            return present
        if living[0].secret == present.secret:
            return replace(present, digest=living[0].digest)
        return living[0]

    @cached_property
    def spec_digest(self) -> str:
        """Return a digest of all that can't change in the job's spec, by which a later job knows its output.

        It is empty on one machine, where the program may change while the spec stays.
        """
        if self.parsed is None or not self.settings.bundle.digest:
            return ""
        spec, worker = _fields_of(self.parsed.spec), _fields_of(self.parsed.spec.worker)
        fixed = {name: value for name, value in spec.items() if name not in MUTABLE_IN_SPEC}
        fixed["worker"] = {name: value for name, value in worker.items() if name not in MUTABLE_IN_WORKER}
        text = json.dumps(
            fixed, sort_keys=True, default=_fields_of
        )  # pydantic's own isn't for deep templates
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def is_fenced(self) -> bool:
        """Return whether a writer that outlives its pod's deletion can't harm its successor's output.

        Agents bring the library that fences writers. Without agents, the image may not have it, and only a
        volume of each pod's own is safe.
        """
        return self.parsed is not None and (self.in_place or has_own_volumes(self.parsed))

    @cached_property
    def attempt(self) -> int:
        """Return the current attempt, from 1.

        A pod may be of a later attempt than the status: the job was read before that attempt was recorded.
        Agents start attempts of their own.
        """
        incarnations = (p.incarnation for p in self.pods if is_training(p.replica))
        agents = (counts.attempt for counts in self.agents_counts)
        return max([self.status.attempt or 1, *agents, *incarnations])

    @property
    def agents_counts(self) -> tuple[RestartCounts, ...]:
        """Return the agents' restart counts, from the agent report and from termination messages."""
        left = tuple(p.termination.restart_counts for p in self.pods if p.termination is not None)
        return left if self.agent_report is None else (self.agent_report.restart_counts, *left)

    @cached_property
    def training_pods(self) -> tuple[Pod, ...]:
        """Return the training pods of the current attempt; in place, the newest pod of each replica."""
        return tuple(p for p in self.pods if is_training(p.replica) and self._takes_part(p))

    @cached_property
    def stale_pods(self) -> tuple[Pod, ...]:
        """Return the training pods that are left of earlier attempts, or are being replaced."""
        return tuple(p for p in self.pods if is_training(p.replica) and not self._takes_part(p))

    def _takes_part(self, pod: Pod) -> bool:
        if not self.in_place:
            return pod.incarnation == self.attempt
        if not pod.live or pod.name in self.status.restarts.replaced_pods:
            return False
        if pod.failed_at_start and pod.incarnation < self.attempt:
            return False  # the restart since its creation replaces it too, and is counted once
        wanted = pod.replica.index < self._counts.get(pod.replica.role, 0)
        return wanted and pod.incarnation == self._newest[pod.replica]

    @cached_property
    def _counts(self) -> Mapping[str, int]:
        return replica_counts(self.effective_job.spec)

    @cached_property
    def _newest(self) -> Mapping[Replica, int]:
        newest: dict[Replica, int] = {}
        for pod in self.pods:
            newest[pod.replica] = max(pod.incarnation, newest.get(pod.replica, 0))
        return newest

    @property
    def evaluator_pods(self) -> tuple[Pod, ...]:
        """Return all pods of the evaluator, of every incarnation."""
        return tuple(p for p in self.pods if not is_training(p.replica))

    @property
    def unfinished_pods(self) -> tuple[Pod, ...]:
        """Return the pods whose training container may still run."""
        return tuple(p for p in self.pods if not p.ended)

    def report_of(self, replica: Replica) -> Report | None:
        """Return the newest report of this replica; a training replica's only of the current attempt."""
        pods = [p for p in self.pods if p.replica == replica and p.name in self.reports]
        if is_training(replica):
            pods = [p for p in pods if self._takes_part(p)]
        return self.reports[max(pods, key=lambda p: p.incarnation).name] if pods else None

    @property
    def training_refusal(self) -> Refusal | None:
        """Return the refusal if it keeps the training from starting; a refused evaluator doesn't."""
        return self.refusal if self.refusal is not None and self.refusal.role != EVALUATOR else None

    @property
    def global_batch(self) -> int | None:
        """Return the examples per step, as training has reported them, or None."""
        known = self.status.progress.global_batch if self.status.progress else None
        return next((r.global_batch for r in self.reports.values() if r.global_batch), known)

    @property
    def size_refusal(self) -> str:
        """Return why training can't use the requested number of workers, or an empty text."""
        if self.parsed is None or self.effective_job.spec.worker.replicas == self.parsed.spec.worker.replicas:
            return ""
        asked = self.parsed.spec.worker.replicas
        if self.limit is not None and self.limit[0] < asked:
            most, whose = self.limit
            return (
                f"{whose} admits {most} of {asked} workers; to request all of them, suspend and resume the "
                "job"
            )
        batch = f"the global batch of {self.global_batch} isn't divisible by {asked}"
        return f"can't continue with {asked} workers: {batch}"

    def divides_batch(self, workers: int) -> bool:
        """Return whether this number of workers can share the global batch, as far as it is known."""
        return self._divides_batch(self.effective_job, workers)

    def _divides_batch(self, job: TrainJob, workers: int) -> bool:
        if job.spec.ps is not None:
            return True  # each batch belongs to one worker
        sharing = workers + int(job.spec.chief is not None)
        return self.global_batch is None or self.global_batch % sharing == 0

    def trains(self, replicas: Iterable[Replica], now: datetime) -> bool:
        """Return whether training runs in all of these replicas, by their agents' report."""
        if not self.is_running(replicas):
            return False
        if not self.in_place or all(p.ended for p in self.training_pods):
            return True
        report = self.agent_report
        if report is None or not self.is_current(report):
            # A controller that has just started knows only the recorded condition; one that can't reach the
            # pods, such as one on a laptop, knows only that they run.
            return is_true(self.status, RUNNING) or self.first_answer_left(now) <= timedelta(0)
        wanted = dict(Counter(replica.role for replica in self.training_replicas))
        return report.phase not in (MEETING, STOPPING) and report.world in ({}, wanted)

    def first_answer_left(self, now: datetime) -> timedelta:
        """Return how long to wait for the agents' first report, 0 or less once the wait is over."""
        started = max((p.started_at for p in self.training_pods if p.started_at), default=None)
        return time_left(started, FIRST_ANSWER, now) if started is not None else timedelta(0)

    def is_current(self, report: AgentReport) -> bool:
        """Return whether this report is from the agent of the pod that leads now."""
        replica = leader(self.effective_job.spec)
        reporter = report.members.get(replica, Member()).pod
        return any(p.name == reporter for p in self.training_pods if p.replica == replica)

    def is_running(self, replicas: Iterable[Replica]) -> bool:
        """Return whether each of these replicas has a current pod that runs or has succeeded."""
        good = {p.replica for p in self.training_pods if p.state in (PodState.RUNNING, PodState.SUCCEEDED)}
        return all(replica in good for replica in replicas)


def _fields_of(part: BaseModel) -> dict[str, Any]:
    """Return the fields without their defaults: those that a later version adds change no digest."""
    return {
        field.alias or name: value
        for name, field in type(part).model_fields.items()
        if (value := getattr(part, name)) != field.get_default(call_default_factory=True)
    }


def read_observed(
    snapshot: Snapshot,
    settings: Settings | None = None,
    *,
    refusal: Refusal | None = None,
    restored: frozenset[str] = frozenset(),
) -> Observed:
    """Read a job's objects into the input of the policies; an invalid job carries its errors."""
    job = snapshot.job
    meta = ObjectMeta.model_validate(job.get("metadata") or {})
    errors: tuple[FieldError, ...] = ()
    parsed: TrainJob | None = None
    try:
        parsed = parse(job, has_begun=bool(value_at(job, "status", "startTime")))
    except InvalidTrainJob as invalid:
        errors = invalid.errors
    pods = [(controller_uid(one) == meta.uid, pod) for one in snapshot.pods if (pod := read_pod(one))]
    own = [pod for ours, pod in pods if ours]
    said, settings = snapshot.agent_report, settings or Settings()
    report = AgentReport.model_validate(said) if said is not None else None
    observed = Observed(
        meta=meta,
        parsed=parsed,
        errors=errors,
        status=parsed.status if parsed else _status(job),
        pods=tuple(sorted(own, key=lambda p: (p.replica, p.incarnation, p.name))),
        related={kind: _dependent(one, meta.uid) for kind, one in snapshot.related.items()},
        reports=_reports(own, report, snapshot.progress),
        refusal=refusal,
        manager=value_at(job, "spec", "managedBy"),
        settings=settings,
        agent_report=report,
        integrated={each.NAME: each.read(snapshot, meta) for each in settings.integrations},
        restored=restored,
        pod_events={name: read_pod_event(event) for name, event in snapshot.pod_events.items()},
    )
    foreign = [pod for ours, pod in pods if not ours and not pod.ended]
    pods_of_others = tuple(p for p in foreign if p.live or _may_write(p, observed))
    return replace(observed, pods_of_others=pods_of_others)


def _may_write(pod: Pod, observed: Observed) -> bool:
    """Return whether an earlier job's pod may write into this job's output, unless both jobs have agents."""
    if observed.parsed is None or has_own_volumes(observed.parsed) or not is_training(pod.replica):
        return False
    return not (observed.in_place and pod.source is not None)


def _reports(
    pods: list[Pod], report: AgentReport | None, progress: Mapping[str, Mapping[str, Any]]
) -> dict[str, Report]:
    """Return the latest report of each pod; a succeeded pod's termination message is always the latest.

    It has little room for curves: those that the agents have passed on of the same end are whole.
    """
    members = report.members.values() if report is not None else ()
    done = [p for p in pods if p.state is PodState.SUCCEEDED]
    known = {**last_reports(pods), **{m.pod: m.report for m in members if m.pod and m.report is not None}}
    for name, raw in progress.items():  # newer, but without the log, of which only an agent knows
        log_line = known[name].log_line if name in known else None
        known[name] = replace(read_report(raw), log_line=log_line)
    for name, last in last_reports(done).items():
        before = known[name]
        is_same = before.curves is not None and (before.state, before.step) == (last.state, last.step)
        known[name] = replace(last, curves=before.curves) if is_same else last
    return known


def _status(job: Mapping[str, Any]) -> TrainJobStatus:
    try:
        return TrainJobStatus.model_validate(job.get("status") or {})
    except ValidationError:
        return TrainJobStatus()  # damaged by a manual edit


def _dependent(manifest: Mapping[str, Any], uid: str) -> Dependent:
    meta = manifest["metadata"]
    return Dependent(
        meta["name"],
        ours=controller_uid(manifest) == uid,
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
        spec=manifest.get("spec") or {},
        api_version=manifest.get("apiVersion", ""),
    )
