"""Server-side dry run of a job and its pods: whether the API server would accept them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainjob.api import Document, TrainJob
from trainjob.cli.ending import Exit
from trainjob.client.problems import describe_problem, describe_refusal, lacks_api
from trainjob.cluster.agents import preview_source
from trainjob.cluster.kube.resources import PODS, TRAINJOBS
from trainjob.cluster.protocol import AlreadyExists, ClusterError, Manifest, RequestFailure
from trainjob.core.manifests import build_pod, share_claims
from trainjob.core.names import Replica, desired_replicas

if TYPE_CHECKING:
    from trainjob.cluster.kube.client import ApiClient

_NO_PERMISSION = "cannot create resource"
_NAMES = "{replicas}"


@dataclass(frozen=True)
class Verdict:
    """The API server's verdict on one job.

    Attributes:
        lines: one for each mistake, or for a check that wasn't possible.
        code: `GOOD` without mistakes.
    """

    lines: tuple[str, ...] = ()
    code: Exit = Exit.GOOD

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict((*self.lines, *other.lines), max(self.code, other.code))


@dataclass(frozen=True)
class _Complaint:
    """The same mistakes of one or several pods, in the message for the first pod.

    Attributes:
        lines: with a placeholder for the replicas' names.
    """

    lines: tuple[str, ...]
    replicas: list[str] = field(default_factory=list)

    @property
    def text(self) -> tuple[str, ...]:
        return tuple(line.replace(_NAMES, _listed(self.replicas), 1) for line in self.lines)


async def check_on_cluster(api: ApiClient, document: Document, namespace: str) -> Verdict:
    """Check the job, and every pod of its first attempt.

    Raises:
        ClusterError: no check is possible: no response, no namespace, no permission for TrainJobs.
    """
    return await _check_job(api, document, namespace) + await _check_pods(api, document, namespace)


async def _check_job(api: ApiClient, document: Document, namespace: str) -> Verdict:
    manifest = {**document.raw, "metadata": {**document.raw["metadata"], "namespace": namespace}}
    try:
        await api.create(TRAINJOBS, manifest, dry_run=True)
    except AlreadyExists:
        return await _check_change(api, document, namespace)
    except ClusterError as refused:
        return _judge(refused, document)
    return Verdict()


async def _check_change(api: ApiClient, document: Document, namespace: str) -> Verdict:
    """Check whether the existing job may be changed into this one."""
    name = str(document.raw["metadata"]["name"])
    try:
        await api.patch(TRAINJOBS, namespace, name, {"spec": document.raw["spec"]}, dry_run=True)
    except ClusterError as refused:
        about = f"{name} exists already in namespace {namespace}, and can't be changed into this: "
        return _judge(refused, document, about)
    return Verdict()


def _judge(refused: ClusterError, document: Document, about: str = "") -> Verdict:
    if lacks_api(refused):
        return Verdict((describe_problem(refused),), Exit.NO_CLUSTER)
    if not is_verdict(refused.failure):
        raise refused
    return Verdict(describe_refusal(refused.failure, document, about=about), Exit.FAILED)


async def _check_pods(api: ApiClient, document: Document, namespace: str) -> Verdict:
    found = dict[tuple[str, ...], _Complaint]()
    for replica, pod in pods_to_ask_for(document.parse(), namespace):
        try:
            await api.create(PODS, pod, dry_run=True)
        except ClusterError as refused:
            if _NO_PERMISSION in refused.failure.message:
                why = f"the pods can't be checked: {describe_problem(refused)}"
                return Verdict((why,), Exit.NO_CLUSTER)
            if not is_verdict(refused.failure):
                raise
            root = template_of(document, replica.role)
            lines = describe_refusal(refused.failure, document, root, about=f"{_NAMES}: ")
            # The pods of a role, and so the messages about them, differ only in the pods' names.
            plain = tuple(line.replace(pod["metadata"]["name"], "") for line in lines)
            found.setdefault(plain, _Complaint(lines)).replicas.append(replica.name)
    lines = tuple(line for complaint in found.values() for line in complaint.text)
    return Verdict(lines, Exit.FAILED if lines else Exit.GOOD)


def pods_to_ask_for(job: TrainJob, namespace: str) -> Iterator[tuple[Replica, Manifest]]:
    """Yield the pods of the first attempt, without an owner, which doesn't exist yet."""
    placed = job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": namespace})})
    source = preview_source(placed.metadata)
    for replica in desired_replicas(job.spec):
        pod: dict[str, Any] = build_pod(
            placed, role=replica.role, index=replica.index, incarnation=1, attempt=1, source=source
        )
        del pod["metadata"]["ownerReferences"]
        yield replica, share_claims(pod)


def template_of(document: Document, role: str) -> str:
    """Return the field of the document that has the template of a role's pods."""
    own = (document.raw["spec"].get(role) or {}).get("template")
    return f"spec.{role}.template" if own else "spec.template"


def is_verdict(failure: RequestFailure) -> bool:
    """Return whether the response is about the object, and not about the user or the moment."""
    # Admission (a quota, Pod Security, a webhook) also responds with 403.
    if failure.code == 403:
        return _NO_PERMISSION not in failure.message
    return failure.code in (400, 413, 422)


def _listed(names: list[str]) -> str:
    return f"pod {names[0]}" if len(names) == 1 else f"pods {names[0]} to {names[-1]}"
