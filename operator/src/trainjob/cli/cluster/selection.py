"""Which of a job's pods a command for logs is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.core.names import Replica
from trainjob.core.pods import Pod, PodState, read_pod
from trainjob.core.topology import TRAINING_ROLES, is_training


@dataclass(frozen=True)
class Wanted:
    """The replicas that are asked for; None: all of them."""

    role: str | None = None
    index: int | None = None

    def takes(self, replica: Replica) -> bool:
        """Tell whether this one is asked for."""
        return self.role in (None, replica.role) and self.index in (None, replica.index)


def own_pods(manifests: Iterable[Mapping[str, Any]], job_uid: str) -> tuple[Pod, ...]:
    """Return the pods that this very job owns, not those of an earlier one of its name; in order of roles."""
    own = (m for m in manifests if _owner(m) == job_uid)
    return tuple(sorted(filter(None, map(read_pod, own)), key=lambda p: (_rank(p), p.incarnation)))


def newest_pods(pods: Iterable[Pod], wanted: Wanted) -> tuple[Pod, ...]:
    """Return the newest pod of each replica that is asked for."""
    newest = {pod.replica: pod for pod in pods if wanted.takes(pod.replica)}  # the last of a seat wins
    return tuple(newest.values())


def earlier_pods(pods: Iterable[Pod], wanted: Wanted, attempt: int | None) -> tuple[Pod, ...]:
    """Return what is left of the pods before, for each replica that is asked for.

    Args:
        pods: of one job.
        wanted: which replicas.
        attempt: of a job whose training replicas are replaced together, so that their incarnation is the
            attempt; None where agents restart them in place. An evaluator counts its own in any case.
    """
    every = tuple(pods)
    newest = newest_pods(every, wanted)
    current = {p.replica: attempt if attempt and is_training(p.replica) else p.incarnation for p in newest}
    return newest_pods((p for p in every if p.incarnation < current.get(p.replica, 0)), wanted)


def has_log(pod: Pod) -> bool:
    """Tell whether its training container has been started."""
    return pod.state is PodState.RUNNING or pod.exit_code is not None


def why_no_log(pod: Pod) -> str:
    """Return what keeps its container from having a log."""
    if pod.state is PodState.FAILED:
        return f"failed before it started ({pod.reason or pod.message or 'the cluster does not say why'})"
    if pod.waiting is not None:
        reason, message = pod.waiting
        return f"{reason}: {message}" if message else reason
    return "waiting for a node" if pod.state is PodState.PENDING else "starting"


def _rank(pod: Pod) -> tuple[int, str, int]:
    roles = (*TRAINING_ROLES, "evaluator")
    role = pod.replica.role
    return roles.index(role) if role in roles else len(roles), role, pod.replica.index


def _owner(manifest: Mapping[str, Any]) -> str | None:
    owners = (manifest.get("metadata") or {}).get("ownerReferences") or ()
    return next((owner.get("uid") for owner in owners if owner.get("controller")), None)
