"""Jobs in a Kueue queue: they have pods only while Kueue admits them.

Kueue learns of a job by its Workload, which this controller writes and keeps true. The steps and conditions
are those of the jobs that Kueue itself integrates (its package `pkg/controller/jobframework`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from trainjob.api import ObjectMeta, TrainJob, TrainJobStatus
from trainjob.api.errors import mapping_at, objects_at
from trainjob.core import transitions
from trainjob.core.actions import Action, Create, Delete, Event, Patch, Plan, stop_pods
from trainjob.core.conditions import COMPLETE, QUEUED, RUNNING, SUCCESS_CRITERIA_MET, is_finished, is_true
from trainjob.core.delays import RECHECK
from trainjob.core.failure import describe_resume
from trainjob.core.integration import Integration, Kind, Placement
from trainjob.core.integrations.workload import (
    ADMITTED,
    EVICTED,
    FINALIZER,
    FINISHED,
    GROUP,
    INACTIVE,
    MULTIKUEUE,
    PODS_READY,
    PROVISIONING,
    QUOTA_RESERVED,
    REQUEUED,
    VISIBILITY_GROUP,
    Admission,
    QueueObjects,
    Workload,
    build_adoption,
    build_pod_sets,
    build_priority,
    build_workload,
    prebuilt_workload,
    read_admission,
    read_queue_objects,
    read_workload,
)
from trainjob.core.manifests import Manifest
from trainjob.core.names import PREBUILT, QUEUE_NAME, ObjectRef, replica_counts
from trainjob.core.observed import Observed, Refusal, Snapshot
from trainjob.core.policies.lifecycle import suspended
from trainjob.core.wording import quoted, reason_word
from trainjob_trainer.contract.replicas import EVALUATOR


@dataclass(frozen=True)
class QueueState:
    """What Kueue has of one job.

    Attributes:
        version: of Kueue's API; empty if this controller doesn't use Kueue.
        queue: that the job names; empty for none.
        workload: the job's own, or None.
        prebuilt_name: of the Workload that MultiKueue has made for the job; empty if it gets its own.
        prebuilt: that Workload while nobody owns it, or None.
        position: in the queue, from 1; None if that is unknown.
        objects: what else decides on jobs in queues.
    """

    version: str
    queue: str
    workload: Workload | None
    prebuilt_name: str
    prebuilt: Workload | None
    position: int | None
    objects: QueueObjects

    @cached_property
    def admission(self) -> Admission | None:
        """Return the admission by the queue; None while the job isn't admitted, or has no queue."""
        if not self.queue or self.workload is None:
            return None
        return read_admission(self.workload, self.objects)


def _state_of(observed: Observed) -> QueueState:
    state: QueueState = observed.integrated[Kueue.NAME]
    return state


_VERSIONS = ("v1beta2", "v1beta1")


def _workload_fields(workload: Manifest) -> Manifest:
    """Leave out the pod templates, of which the job has its own."""
    spec = mapping_at(workload, "spec")
    sets = [
        {key: pods[key] for key in ("name", "count", "topologyRequest") if key in pods}
        for _, pods in objects_at(spec, "podSets")
    ]
    return {"spec": {**spec, "podSets": sets}, "status": mapping_at(workload, "status")}


def _class_fields(found: Manifest) -> Manifest:
    return {key: found[key] for key in ("value", "globalDefault") if key in found}


class Kueue(Integration):
    """Kueue and, for jobs that it runs in another cluster, MultiKueue."""

    NAME = "kueue"
    HELP = "Use Kueue for jobs that name a queue; without it such jobs wait."
    MISSING = (
        f"Kueue's API isn't served in {' or '.join(_VERSIONS)}: jobs that name a queue wait. After "
        "installing it, restart the controller"
    )
    KINDS = (
        Kind(
            GROUP,
            _VERSIONS,
            "workloads",
            "Workload",
            keep=_workload_fields,
            unlabeled=True,
            strict=False,  # its schema of pod templates may be older than the cluster's
            finalizer=FINALIZER,
        ),
        Kind(
            GROUP,
            _VERSIONS,
            "resourceflavors",
            "ResourceFlavor",
            keep=lambda found: {"spec": mapping_at(found, "spec")},
            of_jobs=False,
        ),
        Kind(
            GROUP,
            _VERSIONS,
            "workloadpriorityclasses",
            "WorkloadPriorityClass",
            keep=_class_fields,
            of_jobs=False,
        ),
        Kind(
            "scheduling.k8s.io",
            ("v1",),
            "priorityclasses",
            "PriorityClass",
            keep=_class_fields,
            of_jobs=False,
        ),
    )
    KEPT_METADATA = (PREBUILT, PROVISIONING)
    POSITIONS = Kind(VISIBILITY_GROUP, _VERSIONS, "localqueues", "LocalQueue")

    def names(self, metadata: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the name of the Workload that MultiKueue has made for the job, if it has."""
        name = prebuilt_workload(metadata)
        return {"Workload": name} if name else {}

    def shares(self, metadata: Mapping[str, Any]) -> bool:
        """Return whether the job names a queue."""
        return QUEUE_NAME in mapping_at(metadata, "labels")

    def queue_of(self, manifest: Manifest) -> str | None:
        """Return the queue of a Workload that asks for quota and has none."""
        spec = mapping_at(manifest, "spec")
        settled = any(
            condition.get("type") in (QUOTA_RESERVED, FINISHED) and condition.get("status") == "True"
            for _, condition in objects_at(mapping_at(manifest, "status"), "conditions")
        )
        if settled or not spec.get("active", True) or "deletionTimestamp" in manifest["metadata"]:
            return None
        return str(spec.get("queueName", ""))

    def read_positions(self, document: Mapping[str, Any]) -> Mapping[str, int]:
        """Return the positions of Workloads, from 1, out of what Kueue says of a queue."""
        places = (
            (mapping_at(item, "metadata").get("name"), item.get("positionInLocalQueue", 0))
            for _, item in objects_at(document, "items")
        )
        return {name: before + 1 for name, before in places if name and isinstance(before, int)}

    def read(self, snapshot: Snapshot, meta: ObjectMeta) -> QueueState:
        """Return what Kueue has of the job."""
        workload = snapshot.related.get("Workload")
        return QueueState(
            version=self.kinds[0].versions[0] if self.kinds else "",
            queue=meta.labels.get(QUEUE_NAME, ""),
            workload=read_workload(workload, meta.uid),
            prebuilt_name=prebuilt_workload(snapshot.job["metadata"]),
            prebuilt=read_workload(workload, None),
            position=snapshot.queue_position,
            objects=read_queue_objects(snapshot.shared),
        )

    def held(self, observed: Observed, now: datetime) -> Plan | None:
        """Hold a job that isn't admitted, and take its pods away when Kueue evicts it."""
        waits = is_true(observed.status, QUEUED)
        if not _is_held(observed):
            return _admitted(observed, now) if waits else None
        refusal = _workload_refusal(observed)
        if refusal is not None and refusal.permanent:
            message = f"the cluster refuses {refusal.what}: {quoted(refusal.message)}"
            return Plan(transitions.target_failure(observed, "InvalidTemplate", message, now))
        reason, message = _why_held(observed)
        if not waits and observed.status.start_time is not None:
            message += f"; {describe_resume(observed)} once it is admitted again"
        event = Event("Warning", reason, message) if reason == EVICTED else Event("Normal", "Queued", message)
        return Plan(
            transitions.queue(observed, reason, message, now),
            stop_pods(observed, observed.unfinished_pods),
            () if waits else (event,),
            _recheck(observed, now),
        )

    def delegates(self, observed: Observed) -> bool:
        """Return whether MultiKueue runs the job: this controller writes its Workload."""
        state = _state_of(observed)
        is_ready = observed.parsed is not None and state.queue and state.version
        return observed.manager == MULTIKUEUE and bool(is_ready)

    def held_here(self, observed: Observed, now: datetime) -> Plan | None:
        """Hold a job that MultiKueue will run in another cluster, from where it then copies the status."""
        if is_finished(observed.status):
            return None
        return suspended(observed, now) or (self.held(observed, now) if _is_held(observed) else None)

    def limit(self, observed: Observed) -> tuple[int, str] | None:
        """Return how many workers the queue admits.

        Quota of workers that was given back can't be taken again before the next admission.
        """
        state = _state_of(observed)
        admission, workload = state.admission, state.workload
        if admission is None or workload is None or is_true(observed.status, SUCCESS_CRITERIA_MET):
            return None
        left = workload.counts.get("worker", 0) - workload.reclaimable.get("worker", 0)
        return min(admission.counts.get("worker", 0), left), f"queue {state.queue}"

    def placements(self, observed: Observed) -> Mapping[str, Placement]:
        """Return what the admission adds to pods: the labels of the flavor's nodes, above all."""
        admission = _state_of(observed).admission
        return admission.placements if admission is not None else {}

    def actions(self, observed: Observed, status: TrainJobStatus, now: datetime) -> tuple[Action, ...]:
        """Return the next write that makes the job's Workload fit this status; none if it does."""
        state = _state_of(observed)
        if not state.version:
            return ()
        found, ends = state.workload, is_finished(status)
        if found is None:
            return () if ends or not state.queue else _creation(observed, now)
        ref = _ref(observed, found)
        if found.deleting or (ends and found.is_true(FINISHED)):
            keeps = found.deleting and state.queue and not ends and observed.unfinished_pods
            finalizers = [name for name in found.finalizers if name != FINALIZER]
            if keeps or len(finalizers) == len(found.finalizers):
                return ()
            return (Patch(ref, found.resource_version, {"metadata": {"finalizers": finalizers}}),)
        if not ends and not state.queue:
            return (Delete(ref),)
        if observed.parsed is None and not ends:
            return ()
        if not ends and (changes := _spec_changes(observed, found)):
            return (Patch(ref, found.resource_version, changes),)
        if changes := _end(found, status, now) if ends else _status_changes(observed, found, status, now):
            return (Patch(ref, found.resource_version, {"status": changes}, "status"),)
        return ()


# The policy: whether the job may have pods.


def _is_held(observed: Observed) -> bool:
    state = _state_of(observed)
    if not state.queue:
        return False
    if not state.version:
        # A controller that was installed again without Kueue leaves running jobs alone.
        return observed.status.start_time is None or is_true(observed.status, QUEUED)
    return state.admission is None


def _admitted(observed: Observed, now: datetime) -> Plan:
    state = _state_of(observed)
    message = f"admitted by queue {state.queue}" if state.queue else "taken out of its queue"
    if observed.status.attempt:
        message += f"; {describe_resume(observed)}"
    return Plan(transitions.admit(observed, message, now), events=(Event("Normal", "Admitted", message),))


def _why_held(observed: Observed) -> tuple[str, str]:
    """Return the reason, and a sentence for it."""
    state = _state_of(observed)
    found, waiting = state.workload, f"waiting in queue {state.queue}"
    if not state.version:
        return "NoKueue", f"{waiting}, but this controller doesn't use Kueue: upgrade its release with Kueue"
    if (refusal := _workload_refusal(observed)) is not None:
        return "CreationRefused", f"{waiting}: the cluster refuses {refusal.what}: {quoted(refusal.message)}"
    if found is None and state.prebuilt_name:
        return "Created", f"{waiting}{_not_adopted(observed)}"
    if found is None:
        return "Created", f"{waiting}{_missing_class(observed)}"
    if found.deleting:
        return "WorkloadDeleted", f"{waiting}: its Workload {found.name} was deleted"
    if found.inactive:
        return "Created", waiting  # it was suspended, and is about to be activated
    if found.is_true(EVICTED) and (found.holds_quota or not found.active):
        evicted = found.condition(EVICTED)
        clause = quoted(evicted.get("message") or "")
        return EVICTED, f"evicted by Kueue ({evicted.get('reason')}): {clause}"
    if not found.active:
        return "Deactivated", f"{waiting}: its Workload {found.name} was deactivated (spec.active)"
    if found.holds_quota:
        pending = (check for check in found.checks if check.get("state") != "Ready")
        checks = "; ".join(
            f"{check['name']}: {quoted(check.get('message') or 'pending')}" for check in pending
        )
        rest = "its flavors are unknown" if found.admitted else "its admission is pending"
        return "AdmissionChecks", f"{waiting}, which has quota for it: {checks or rest}"
    if state.position is not None:
        waiting += f" at position {state.position}"
    held = found.condition(FINISHED) if found.is_true(FINISHED) else found.condition(QUOTA_RESERVED)
    message = quoted(held.get("message") or "")
    return reason_word(held.get("reason"), "Created"), f"{waiting}: {message}" if message else waiting


def _workload_refusal(observed: Observed) -> Refusal | None:
    refusal = observed.refusal
    return refusal if refusal is not None and refusal.what.startswith("Workload ") else None


def _missing_class(observed: Observed) -> str:
    """Return `: ` and which priority class doesn't exist, or an empty text."""
    state = _state_of(observed)
    try:
        build_priority(observed.effective_job, state.version, state.objects)
    except LookupError as error:
        return f": {error}"
    return ""


def _not_adopted(observed: Observed) -> str:
    """Return `: ` and why the prebuilt Workload can't be the job's, or an empty text."""
    state = _state_of(observed)
    found, name = state.prebuilt, state.prebuilt_name
    if found is None or found.deleting:
        return f": its Workload {name} doesn't exist, or another object owns it"
    if observed.parsed is not None and found.counts != replica_counts(observed.parsed.spec):
        return f": its Workload {name} is for other pods than the job's"
    return ""


def _recheck(observed: Observed, now: datetime) -> timedelta | None:
    """Return when to look again for what no event reports: a refusal's end, a priority class, a flavor."""
    state = _state_of(observed)
    refusal, found = _workload_refusal(observed), state.workload
    if refusal is not None:
        return refusal.next_attempt(now)
    if found is not None:
        lacks = found.admitted and state.admission is None
    else:
        lacks = bool(_not_adopted(observed) if state.prebuilt_name else _missing_class(observed))
    return RECHECK if lacks else None


# The Workload, which follows each decision.


def _ref(observed: Observed, workload: Workload) -> ObjectRef:
    api_version = f"{GROUP}/{_state_of(observed).version}"
    return ObjectRef("Workload", observed.meta.namespace, workload.name, workload.uid, api_version)


_AT_ONCE = ("Preempted", "NodeFailures")
"""Reasons of evictions after which Kueue may admit the job again at once."""


def _creation(observed: Observed, now: datetime) -> tuple[Action, ...]:
    state = _state_of(observed)
    refusal = _workload_refusal(observed)
    waits = refusal is not None and refusal.patience_left(now) > timedelta(0)
    if observed.parsed is None or observed.effective_job.spec.suspend or waits:
        return ()
    if state.prebuilt_name:
        return _adoption(observed, observed.parsed)
    if _missing_class(observed):
        return ()
    kueue = state.version
    return (Create(build_workload(observed.parsed, kueue, state.objects)),)


def _adoption(observed: Observed, job: TrainJob) -> tuple[Action, ...]:
    state = _state_of(observed)
    found = state.prebuilt
    if found is None or _not_adopted(observed):
        return ()
    ref = _ref(observed, found)
    return (Patch(ref, found.resource_version, build_adoption(job)),)


def _spec_changes(observed: Observed, found: Workload) -> dict[str, Any]:
    """Return a patch of what the job asks for; Kueue allows most of it only without quota.

    MultiKueue deletes job and Workload if what it has asked for is changed.
    """
    state = _state_of(observed)
    if state.prebuilt_name:
        return {}
    job = observed.effective_job
    spec: dict[str, Any] = {}
    inactive = "suspended" if job.spec.suspend else ""
    changes: dict[str, Any] = {}
    if inactive != found.inactive:
        changes["metadata"] = {"annotations": {INACTIVE: inactive or None}}
        spec["active"] = not inactive
    if not found.holds_quota and observed.parsed is not None:
        if found.queue != state.queue:
            spec["queueName"] = state.queue
        if found.counts != replica_counts(observed.parsed.spec):
            spec["podSets"] = build_pod_sets(observed.parsed)
        if not _missing_class(observed):
            wanted = build_priority(job, state.version, state.objects)
            if found.priority != wanted:
                spec |= {**dict.fromkeys(found.priority), **wanted}
    return {**changes, **({"spec": spec} if spec else {})}


def _end(found: Workload, status: TrainJobStatus, now: datetime) -> dict[str, Any]:
    reason = "Succeeded" if is_true(status, COMPLETE) else "Failed"
    return _with_conditions(found, now, (FINISHED, True, reason, status.message or ""))


def _status_changes(
    observed: Observed, found: Workload, status: TrainJobStatus, now: datetime
) -> dict[str, Any]:
    if found.is_true(EVICTED) and found.holds_quota:
        return {} if observed.unfinished_pods else _give_back(found, status, now)
    if not found.admitted or observed.manager == MULTIKUEUE:
        return {}
    changes: dict[str, Any] = {}
    ready = is_true(status, RUNNING) or is_true(status, SUCCESS_CRITERIA_MET)
    if ready != found.is_true(PODS_READY):
        again = found.condition(PODS_READY).get("reason") == _RECOVERY
        reason = _RECOVERY if not ready else "Recovered" if again else "Started"
        message = "the training replicas run" if ready else "waiting for the training replicas"
        changes |= _with_conditions(found, now, (PODS_READY, ready, reason, message))
    if (free := _reclaimable(observed, found, status)) != found.reclaimable:
        changes["reclaimablePods"] = [{"name": role, "count": count} for role, count in free.items()]
    return changes


_RECOVERY = "WaitForRecovery"


def _give_back(found: Workload, status: TrainJobStatus, now: datetime) -> dict[str, Any]:
    """Return the changes after which Kueue gives an evicted job's quota to others."""
    evicted = found.condition(EVICTED)
    reason, message = evicted.get("reason") or "Evicted", evicted.get("message") or ""
    conditions = [
        (QUOTA_RESERVED, False, "Pending", message),
        (ADMITTED, False, "NoReservation", "The workload has no reservation"),
        (REQUEUED, reason in _AT_ONCE, reason, message),
    ]
    if found.is_true(PODS_READY):
        conditions.append((PODS_READY, False, "WaitForStart", "the job was evicted"))
    changes = {"admission": None, **_with_conditions(found, now, *conditions)}
    return changes if is_true(status, SUCCESS_CRITERIA_MET) else {**changes, "reclaimablePods": []}


def _reclaimable(observed: Observed, found: Workload, status: TrainJobStatus) -> Mapping[str, int]:
    """Return how many pods of each role need no quota any more; Kueue lets these numbers only grow."""
    state = _state_of(observed)
    wanted = replica_counts(observed.effective_job.spec)
    assigned = state.admission.counts if state.admission is not None else {}
    free: dict[str, int] = {}
    for role, count in found.counts.items():
        needed = wanted.get(role, 0)
        if role != EVALUATOR and is_true(status, SUCCESS_CRITERIA_MET):
            needed = sum(pod.replica.role == role for pod in observed.unfinished_pods)
        is_less = needed < min(count, assigned.get(role, count))
        free[role] = max(count - needed if is_less else 0, found.reclaimable.get(role, 0))
    return {role: number for role, number in free.items() if number}


def _with_conditions(found: Workload, now: datetime, *changed: tuple[str, bool, str, str]) -> dict[str, Any]:
    """Return all conditions with these changed: a merge patch replaces the whole list."""
    conditions = {str(c["type"]): dict(c) for c in found.conditions}
    for kind, value, reason, message in changed:
        text, before = str(value), conditions.get(kind, {})
        since = before.get("lastTransitionTime") if before.get("status") == text else None
        conditions[kind] = {
            "type": kind,
            "status": text,
            "reason": reason,
            "message": message[:_LONGEST_MESSAGE],
            "lastTransitionTime": since or now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "observedGeneration": found.generation,
        }
    return {"conditions": list(conditions.values())}


_LONGEST_MESSAGE = 32_768
