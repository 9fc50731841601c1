"""The parts of a plan: writes to the job's objects, events for its user, and the target of its agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from trainjob.api import TrainJob, TrainJobStatus
from trainjob.core.agent import AgentSource, agent_source, has_agent, secret_name
from trainjob.core.agent_reports import restart_counts
from trainjob.core.conditions import FAILURE_TARGET, QUEUED, SUCCESS_CRITERIA_MET, is_finished, is_true
from trainjob.core.manifests import build_pod, build_program, build_token_secret
from trainjob.core.memory import grows
from trainjob.core.names import LABEL_LIVE, ObjectRef, Replica, pod_name, training_counts, training_replicas
from trainjob.core.observed import Observed
from trainjob.core.pods import ENDED_AT_ONCE, Pod
from trainjob_trainer.contract.targets import Target

# Writes to the job's objects, and events for its user.


@dataclass(frozen=True)
class Create:
    """Create this object; if it exists already, the job is observed again.

    Attributes:
        may_exist: whether an existing object will do: its name can't be guessed, or the cluster checks it.
    """

    manifest: dict[str, Any]
    may_exist: bool = False

    @property
    def kind(self) -> str:
        """Return the object's kind."""
        return str(self.manifest["kind"])

    @property
    def name(self) -> str:
        """Return the object's name."""
        return str(self.manifest["metadata"]["name"])

    @property
    def role(self) -> str:
        """Return the role of a pod; empty for other objects."""
        return ""

    def build(self) -> dict[str, Any]:
        """Return the object."""
        return self.manifest

    def __str__(self) -> str:
        return f"create {self.kind} {self.name}"


@dataclass(frozen=True)
class CreatePod:
    """Create the pod of one replica.

    The manifest is built when it is sent. So a plan for a thousand pods is small, and only a few manifests
    exist at a time.
    """

    job: TrainJob
    replica: Replica
    incarnation: int
    attempt: int
    source: AgentSource | None = None
    avoided: frozenset[str] = frozenset()
    spec_digest: str = ""
    kind: Literal["Pod"] = "Pod"
    may_exist: Literal[False] = False

    @property
    def name(self) -> str:
        """Return the pod's name."""
        return pod_name(self.job.metadata.name, self.job.metadata.uid, self.replica, self.incarnation)

    @property
    def role(self) -> str:
        """Return the replica's role."""
        return self.replica.role

    def build(self) -> dict[str, Any]:
        """Return the pod."""
        return build_pod(
            self.job,
            role=self.replica.role,
            index=self.replica.index,
            incarnation=self.incarnation,
            attempt=self.attempt,
            source=self.source,
            avoided=self.avoided,
            spec_digest=self.spec_digest,
        )

    def __str__(self) -> str:
        return f"create {self.kind} {self.name}"


@dataclass(frozen=True)
class Delete:
    """Delete this object; if it is gone already, that is no error."""

    ref: ObjectRef

    def __str__(self) -> str:
        return f"delete {self.ref.kind} {self.ref.name}"


@dataclass(frozen=True)
class Label:
    """Set labels, or remove those that are None."""

    ref: ObjectRef
    labels: tuple[tuple[str, str | None], ...]

    def __str__(self) -> str:
        return f"label {self.ref.kind} {self.ref.name}"


@dataclass(frozen=True)
class Replace:
    """Restore an object of the job; the manifest has the uid and resourceVersion of what it replaces."""

    manifest: dict[str, Any]

    def __str__(self) -> str:
        return f"replace {self.manifest['kind']} {self.manifest['metadata']['name']}"


@dataclass(frozen=True)
class Patch:
    """Merge a patch into the version of an object that was read; one that has changed since is read again.

    Attributes:
        resource_version: that version; empty if any will do.
    """

    ref: ObjectRef
    resource_version: str
    patch: Mapping[str, Any]
    subresource: str = ""

    def __str__(self) -> str:
        return f"patch {self.ref.kind} {self.ref.name}{self.subresource and f'/{self.subresource}'}"


Creation = Create | CreatePod
Action = Creation | Delete | Label | Replace | Patch


@dataclass(frozen=True)
class Event:
    """An event for the user, posted once."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """What to do, in this order: write the status if it differs, post the events, execute the actions.

    The status comes first so that a decision (a new attempt, a failure) is recorded before it is executed: a
    controller that dies in between continues from the record. If a new job's plan only creates objects, these
    come before the status: when many jobs arrive at once, their pods don't wait for each other's status. If
    that fails, what its pods need still comes before the status: nothing shows whether they have their token.

    What a finished job no longer needs is deleted before its end is recorded: no later pass looks for it.

    Attributes:
        beforehand: deletions before the status write; a refused one doesn't delay it.
        requeue: the time until the next pass if nothing changes, or None.
        target: the agent target for the job's leading agent, or None.
    """

    status: TrainJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue: timedelta | None = None
    target: dict[str, Any] | None = None
    beforehand: tuple[Delete, ...] = ()

    @property
    def creates(self) -> bool:
        """Return whether an action creates an object."""
        return any(isinstance(action, Creation) for action in self.actions)

    @property
    def only_creates(self) -> bool:
        """Return whether there are actions and all of them create objects."""
        return bool(self.actions) and all(isinstance(action, Creation) for action in self.actions)


def pod_ref(observed: Observed, pod: Pod) -> ObjectRef:
    """Return the reference of one of the job's pods."""
    return ObjectRef("Pod", observed.meta.namespace, pod.name, pod.uid)


def stop_pods(observed: Observed, pods: tuple[Pod, ...]) -> tuple[Action, ...]:
    """Return actions that remove these pods from the Service, for their successors, and delete them."""
    live = (Label(pod_ref(observed, pod), ((LABEL_LIVE, None),)) for pod in pods if pod.live)
    return (*live, *(Delete(pod_ref(observed, pod)) for pod in pods if not pod.deleting))


def end_other_containers(observed: Observed) -> tuple[Patch, ...]:
    """Return what ends the pods whose training container has ended: they hold GPUs for nothing.

    Their deadline does it: the kubelet ends the other containers as it does after a deletion, but the pod's
    object and logs stay.
    """
    deadline = {"spec": {"activeDeadlineSeconds": ENDED_AT_ONCE}}
    outlived = (pod for pod in observed.pods if pod.outlived and not pod.deleting)
    return tuple(Patch(pod_ref(observed, pod), "", deadline) for pod in outlived)


def create_agent_objects(observed: Observed) -> tuple[Create, ...]:
    """Return creations of what agents in new pods need; it isn't tracked, so it is created each time.

    What pods of an earlier version mount exists as long as they do; this controller couldn't create it.
    """
    if not observed.in_place:
        return ()
    job, bundle = observed.effective_job, observed.settings.bundle
    source, present = observed.agent_source, agent_source(observed.meta, bundle)
    program = bool(bundle.digest) and source.digest == bundle.digest
    made = (
        build_program(job.metadata.namespace, bundle) if program else None,
        build_token_secret(job, bundle) if source.secret == present.secret else None,
    )
    return tuple(Create(manifest, may_exist=True) for manifest in made if manifest is not None)


def delete_agent_secrets(observed: Observed, status: TrainJobStatus) -> tuple[Delete, ...]:
    """Return deletions of the Secrets of a job that finishes with this status, when none of its pods runs.

    Names are derived, not read: a user who may create pods must not make the controller delete other Secrets.
    """
    begun = observed.status.start_time is not None or observed.pods  # pods may precede the recorded start
    if is_finished(observed.status) or not is_finished(status) or not begun:
        return ()
    if observed.parsed is not None and not has_agent(observed.parsed.spec):
        return ()
    name = secret_name(observed.meta, observed.settings.bundle.key)
    return (Delete(ObjectRef("Secret", observed.meta.namespace, name, uid="")),)


# The agent target: what the controller sends to a job's leading agent (keys: `docs/contract.md`).


def build_target(observed: Observed, status: TrainJobStatus) -> dict[str, Any] | None:
    """Return the agent target for this status as JSON, or None if the job's agents get none.

    Args:
        observed: the job and all that belongs to it.
        status: the status that is about to be written.
    """
    if observed.parsed is None or not observed.in_place or not is_to_train(observed, status):
        return None
    spec = observed.effective_job.spec
    return Target(
        # Not the API server's resourceVersion: each progress write would change the target.
        lease=observed.settings.lease,
        generation=observed.meta.generation,
        world=training_counts(spec),
        without=frozenset(status.worker.unavailable if status.worker else ()),
        incarnations=_incarnations(observed, status),
        max_restarts=spec.max_restarts,
        stall_timeout=spec.stall_timeout_seconds,
        counts=restart_counts(observed.attempt - 1, status.restarts),
        memory_grows=grows(observed),
    ).to_json()


def is_to_train(observed: Observed, status: TrainJobStatus) -> bool:
    """Return whether, with this status, the job trains or is about to."""
    if observed.effective_job.spec.suspend or is_finished(status):
        return False
    return not any(is_true(status, kind) for kind in (QUEUED, FAILURE_TARGET, SUCCESS_CRITERIA_MET))


def _incarnations(observed: Observed, status: TrainJobStatus) -> dict[str, int]:
    """Return the incarnation of each training replica's pod; for a pod to be created, the least possible."""
    going = set(status.restarts.replaced_pods)
    there = {p.replica: p.incarnation for p in observed.training_pods if p.name not in going}
    replicas = training_replicas(observed.effective_job.spec)
    return {replica.name: there.get(replica, status.attempt or 1) for replica in replicas}
