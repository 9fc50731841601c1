"""Objects that a job needs: what is there of a name, and what the cluster has refused to create."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from trainjob.api import FieldError, InvalidTrainJob, ObjectMeta, TrainJob, TrainJobStatus, parse
from trainjob.api.errors import value_at
from trainjob.core.agent import AgentSource, agent_source, has_agent
from trainjob.core.agent_reports import (
    MEETING,
    STOPPING,
    Gang,
    Ledger,
    Member,
    Report,
    read_gang,
    read_report,
)
from trainjob.core.conditions import RUNNING, is_true
from trainjob.core.names import (
    EVALUATOR,
    JobKey,
    Replica,
    controller_uid,
    has_own_volumes,
    is_training,
    leader,
    replica_counts,
    training_seats,
)
from trainjob.core.pods import Pod, PodState, last_words, read_pod
from trainjob.core.queueing import refusal_delay, time_left
from trainjob.core.settings import Settings


@dataclass(frozen=True)
class Dependent:
    """A Service or claim of a name that the job needs.

    Attributes:
        ours: whether this very job owns it (or created it to be retained).
        uid: its uid.
        resource_version: of the state that was read.
        spec: its spec.
    """

    name: str
    ours: bool
    uid: str = ""
    resource_version: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Refusal:
    """The cluster's answer to the latest attempt to create something for the job.

    Attributes:
        what: kind and name of the object.
        reason: Kubernetes' word, such as `Forbidden` or `Invalid`.
        message: the cluster's own sentence.
        role: of the pod that was refused; empty for anything else.
        times: refusals in a row, this one included.
        at: when, by the controller's clock.
    """

    what: str
    reason: str
    message: str
    role: str = ""
    times: int = 1
    at: datetime | None = None

    @property
    def permanent(self) -> bool:
        """Tell whether only a change of the job can help: a template that the API server can't accept."""
        return self.reason in ("Invalid", "BadRequest")

    def after(self, before: Refusal | None) -> Refusal:
        """Return this refusal as the next one in a row."""
        return replace(self, times=before.times + 1 if before else 1)

    def patience_left(self, now: datetime) -> timedelta:
        """Return how long not to ask again; 0 or less when it is time to."""
        return time_left(self.at, refusal_delay(self.times), now) if self.at else timedelta(0)

    def next_attempt(self, now: datetime) -> timedelta:
        """Return when to look again: for the next attempt, or if it is due now, for the one after it."""
        left = self.patience_left(now)
        return left if left > timedelta(0) else refusal_delay(self.times + 1)


def is_same_policy(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two specs of NetworkPolicies are the same once the API server has stored them."""
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


# What the rules look at: one job and all that belongs to it, at one moment.


FIRST_ANSWER = timedelta(seconds=20)
"""How long after their start agents may take to answer the controller for the first time."""


@dataclass(frozen=True)
class Observed:
    """The input of `plan`.

    Attributes:
        meta: the job's metadata, readable also when its spec is not.
        parsed: the typed job, or None when the spec is invalid.
        errors: why it is invalid.
        manager: `spec.managedBy`, readable also when the rest of the spec is not.
        status: as last written.
        pods: those that this very job owns, in order of seat and incarnation.
        service: of the job's name, or None.
        claim: of the name that the job would create, or None.
        reports: by pod name.
        refusal: set while the latest creation was refused.
        strangers: pods of another job of this name, gone by now, that our Service would name, or that may
            write into our output.
        network_policy: of the job's name, or None.
        settings: what holds for every job.
        gang: what the job's agents say; None while nobody has heard of them, or where there are none.
        refused_size: workers that were asked for and can't share the global batch, or 0; `parsed` has the
            number before that.
    """

    meta: ObjectMeta
    parsed: TrainJob | None
    errors: tuple[FieldError, ...] = ()
    status: TrainJobStatus = field(default_factory=TrainJobStatus)
    pods: tuple[Pod, ...] = ()
    service: Dependent | None = None
    claim: Dependent | None = None
    reports: Mapping[str, Report] = field(default_factory=dict)
    refusal: Refusal | None = None
    manager: str | None = None
    strangers: tuple[Pod, ...] = ()
    network_policy: Dependent | None = None
    settings: Settings = field(default_factory=Settings)
    gang: Gang | None = None
    refused_size: int = 0

    @property
    def job(self) -> TrainJob:
        """Return the typed job; only for policies that come after `invalid`.

        Raises:
            LookupError: the job is invalid.
        """
        if self.parsed is None:
            raise LookupError(f"{self.key} is invalid and has no spec to go by")
        return self.parsed

    @property
    def key(self) -> JobKey:
        """Return the job's namespace and name."""
        return JobKey(self.meta.namespace, self.meta.name)

    @cached_property
    def seats(self) -> tuple[Replica, ...]:
        """Return the seats that training goes on with: all, but for those that it has been going without."""
        without = self.status.worker.without if self.status.worker else ()
        return tuple(r for r in training_seats(self.job.spec) if r.name not in without)

    @property
    def in_place(self) -> bool:
        """Tell whether pods outlive the training processes in them: each is replaced for itself."""
        return self.parsed is not None and has_agent(self.parsed.spec)

    @cached_property
    def agent_source(self) -> AgentSource:
        """Return where the agents of new pods come from: from where those come that they are to speak with.

        So a job keeps its version as long as a pod of it lives, whichever controller looks after it by then.
        """
        present = agent_source(self.meta, self.settings.bundle)
        living = [p.source for p in (*self.training_pods, *self.pods) if p.source is not None and not p.ended]
        if not living or not living[0].secret:
            return present
        if living[0].secret == present.secret:
            return replace(present, digest=living[0].digest)
        return living[0]

    @property
    def is_fenced(self) -> bool:
        """Tell whether a writer that outlives its pod's deletion can't harm what its successor writes.

        Agents bring the library that makes sure of it. Without them only the image's author knows whether it
        is there, and a volume of each pod's own alone is safe.
        """
        return self.parsed is not None and (self.in_place or has_own_volumes(self.parsed))

    @cached_property
    def attempt(self) -> int:
        """Return the current attempt, from 1.

        A pod of a later one than the status knows was created by its record: the job was read before that.
        Agents begin attempts of their own.
        """
        incarnations = (p.incarnation for p in self.pods if is_training(p.replica))
        agents = (ledger.attempt for ledger in self.ledgers)
        return max([self.status.attempt or 1, *agents, *incarnations])

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """Return what agents know of the job's restarts: what they say, and what ended ones have left."""
        left = tuple(p.words.ledger for p in self.pods if p.words is not None)
        return left if self.gang is None else (self.gang.ledger, *left)

    @cached_property
    def training_pods(self) -> tuple[Pod, ...]:
        """Return the pods that take part in training: the current attempt's, or in place each seat's last."""
        return tuple(p for p in self.pods if is_training(p.replica) and self._takes_part(p))

    @cached_property
    def stale_pods(self) -> tuple[Pod, ...]:
        """Return what is left of earlier attempts, and what is being replaced."""
        return tuple(p for p in self.pods if is_training(p.replica) and not self._takes_part(p))

    def _takes_part(self, pod: Pod) -> bool:
        if not self.in_place:
            return pod.incarnation == self.attempt
        if not pod.live or pod.name in self.status.restarts.replaced:
            return False
        wanted = pod.replica.index < self._counts.get(pod.replica.role, 0)
        return wanted and pod.incarnation == self._newest[pod.replica]

    @cached_property
    def _counts(self) -> Mapping[str, int]:
        return replica_counts(self.job.spec)

    @cached_property
    def _newest(self) -> Mapping[Replica, int]:
        newest: dict[Replica, int] = {}
        for pod in self.pods:
            newest[pod.replica] = max(pod.incarnation, newest.get(pod.replica, 0))
        return newest

    @property
    def evaluator_pods(self) -> tuple[Pod, ...]:
        """Return every pod that the evaluator's seats have had and that is still there."""
        return tuple(p for p in self.pods if not is_training(p.replica))

    @property
    def unfinished_pods(self) -> tuple[Pod, ...]:
        """Return the pods whose training container may still run."""
        return tuple(p for p in self.pods if not p.ended)

    def report_of(self, replica: Replica) -> Report | None:
        """Return the newest report of this seat: a training one's of this attempt, an evaluator's of any."""
        pods = [p for p in self.pods if p.replica == replica and p.name in self.reports]
        if is_training(replica):
            pods = [p for p in pods if self._takes_part(p)]
        return self.reports[max(pods, key=lambda p: p.incarnation).name] if pods else None

    @property
    def gang_refusal(self) -> Refusal | None:
        """Return the refusal if it keeps the training from starting: the evaluator's doesn't."""
        return self.refusal if self.refusal is not None and self.refusal.role != EVALUATOR else None

    @property
    def global_batch(self) -> int | None:
        """Return the examples a step, as the training has reported them."""
        known = self.status.progress.global_batch if self.status.progress else None
        return next((r.global_batch for r in self.reports.values() if r.global_batch), known)

    @property
    def size_refusal(self) -> str:
        """Return why training can't go on with as many workers as were asked for, or nothing."""
        if not self.refused_size:
            return ""
        batch = f"the global batch of {self.global_batch} can't be divided by them"
        return f"can't go on with {self.refused_size} workers: {batch}"

    def divides_batch(self, workers: int) -> bool:
        """Tell whether so many workers can share the global batch, as far as it is known."""
        if self.job.spec.ps is not None:
            return True  # each batch is one worker's
        sharing = workers + int(self.job.spec.chief is not None)
        return self.global_batch is None or self.global_batch % sharing == 0

    def trains(self, replicas: Iterable[Replica], now: datetime) -> bool:
        """Tell whether training goes on in all of these seats, as far as their agents say."""
        if not self.is_running(replicas):
            return False
        if not self.in_place or all(p.ended for p in self.training_pods):
            return True
        if self.gang is None or not self.is_current(self.gang):
            # A controller that has just begun knows no better than the record; one that can't reach pods, on
            # somebody's laptop, learns no more than that they run.
            return is_true(self.status, RUNNING) or self.first_answer_left(now) <= timedelta(0)
        wanted = dict(Counter(seat.role for seat in self.seats))
        return self.gang.phase not in (MEETING, STOPPING) and self.gang.world in ({}, wanted)

    def first_answer_left(self, now: datetime) -> timedelta:
        """Return how long to wait for the agents' first word, 0 or less for no longer."""
        started = max((p.started_at for p in self.training_pods if p.started_at), default=None)
        return time_left(started, FIRST_ANSWER, now) if started is not None else timedelta(0)

    def is_current(self, gang: Gang) -> bool:
        """Tell whether this was said by the agent of the pod that leads now."""
        seat = leader(self.job.spec)
        said_by = gang.members.get(seat, Member()).pod
        return any(p.name == said_by for p in self.training_pods if p.replica == seat)

    def is_running(self, replicas: Iterable[Replica]) -> bool:
        """Tell whether each of these seats has a pod of the current attempt that runs, or has ended well."""
        good = {p.replica for p in self.training_pods if p.state in (PodState.RUNNING, PodState.SUCCEEDED)}
        return all(replica in good for replica in replicas)


def read_observed(
    *,
    job: Mapping[str, Any],
    pods: Iterable[Mapping[str, Any]] = (),
    service: Mapping[str, Any] | None = None,
    claim: Mapping[str, Any] | None = None,
    progress: Mapping[str, Mapping[str, Any]] | None = None,
    network_policy: Mapping[str, Any] | None = None,
    refusal: Refusal | None = None,
    settings: Settings | None = None,
    gang: Mapping[str, Any] | None = None,
) -> Observed:
    """Read Kubernetes objects into what the rules look at; a job that can't be read carries its errors."""
    meta = ObjectMeta.model_validate(job.get("metadata") or {})
    errors: tuple[FieldError, ...] = ()
    parsed: TrainJob | None = None
    try:
        parsed = parse(job, has_begun=bool(value_at(job, "status", "startTime")))
    except InvalidTrainJob as invalid:
        errors = invalid.errors
    read = [(controller_uid(manifest) == meta.uid, pod) for manifest in pods if (pod := read_pod(manifest))]
    own = [pod for ours, pod in read if ours]
    agents = read_gang(gang) if gang is not None else None
    observed = Observed(
        meta=meta,
        parsed=parsed,
        errors=errors,
        status=parsed.status if parsed else _status(job),
        pods=tuple(sorted(own, key=lambda p: (p.replica, p.incarnation, p.name))),
        service=_dependent(service, meta.uid),
        claim=_dependent(claim, meta.uid),
        network_policy=_dependent(network_policy, meta.uid),
        reports=_reports(own, agents, progress or {}),
        refusal=refusal,
        manager=value_at(job, "spec", "managedBy"),
        settings=settings or Settings(),
        gang=agents,
    )
    foreign = [pod for ours, pod in read if not ours and not pod.ended]
    strangers = tuple(p for p in foreign if p.live or _may_write(p, observed))
    return _without_bad_size(replace(observed, strangers=strangers))


def _may_write(stranger: Pod, observed: Observed) -> bool:
    """Tell whether an earlier job's pod may write into this job's output: two agents' writers are fenced."""
    if observed.parsed is None or has_own_volumes(observed.parsed) or not is_training(stranger.replica):
        return False
    return not (observed.in_place and stranger.source is not None)


def _without_bad_size(observed: Observed) -> Observed:
    """Return the job as it was before it was scaled to what its global batch can't be divided by."""
    size = observed.status.worker.size if observed.status.worker else None
    if observed.parsed is None or size is None:
        return observed
    wanted = observed.parsed.spec.worker.replicas
    if wanted == size or observed.divides_batch(wanted):
        return observed
    worker = observed.parsed.spec.worker.model_copy(update={"replicas": size})
    spec = observed.parsed.spec.model_copy(update={"worker": worker})
    return replace(observed, parsed=observed.parsed.model_copy(update={"spec": spec}), refused_size=wanted)


def _reports(
    pods: list[Pod], gang: Gang | None, progress: Mapping[str, Mapping[str, Any]]
) -> dict[str, Report]:
    """Return the latest report of each pod; what one that has done its work left behind is its last."""
    members = gang.members.values() if gang is not None else ()
    done = [p for p in pods if p.state is PodState.SUCCEEDED]
    return {
        **last_words(pods),
        **{m.pod: m.report for m in members if m.pod and m.report is not None},
        **{name: read_report(raw) for name, raw in progress.items()},
        **last_words(done),
    }


def _status(job: Mapping[str, Any]) -> TrainJobStatus:
    try:
        return TrainJobStatus.model_validate(job.get("status") or {})
    except ValidationError:
        return TrainJobStatus()  # damaged by somebody's hand


def _dependent(manifest: Mapping[str, Any] | None, uid: str) -> Dependent | None:
    if manifest is None:
        return None
    meta = manifest["metadata"]
    return Dependent(
        meta["name"],
        ours=controller_uid(manifest) == uid,
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
        spec=manifest.get("spec") or {},
    )
