"""Server-side dry run of a job and its pods: whether the API server would accept them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainjob.api import Document, TrainJob
from trainjob.cli.cluster.errors import Answer, Exit, Refused, describe_problem, lacks_api
from trainjob.cli.cluster.resources import PODS, TRAINJOBS
from trainjob.cli.submit import describe_refusal
from trainjob.cluster.agents import preview_source
from trainjob.core.manifests import build_pod
from trainjob.core.names import Replica, desired_replicas

if TYPE_CHECKING:
    from trainjob.cli.cluster.server import Manifest, Server

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
    def told(self) -> tuple[str, ...]:
        return tuple(line.replace(_NAMES, _listed(self.replicas), 1) for line in self.lines)


def check_on_cluster(server: Server, document: Document, namespace: str) -> Verdict:
    """Check the job, and every pod of its first attempt.

    Raises:
        ServerProblem: no check is possible: no response, no namespace, no permission for TrainJobs.
    """
    return _check_job(server, document, namespace) + _check_pods(server, document, namespace)


def _check_job(server: Server, document: Document, namespace: str) -> Verdict:
    manifest = {**document.raw, "metadata": {**document.raw["metadata"], "namespace": namespace}}
    try:
        server.create(TRAINJOBS, namespace, manifest, dry_run=True)
    except Refused as refused:
        if refused.answer.reason == "AlreadyExists":
            return _check_change(server, document, namespace)
        return _judge(refused, document)
    return Verdict()


def _check_change(server: Server, document: Document, namespace: str) -> Verdict:
    """Check whether the existing job may be changed into this one."""
    name = str(document.raw["metadata"]["name"])
    try:
        server.try_change(TRAINJOBS, namespace, name, {"spec": document.raw["spec"]})
    except Refused as refused:
        about = f"{name} exists already in namespace {namespace}, and can't be changed into this: "
        return _judge(refused, document, about)
    return Verdict()


def _judge(refused: Refused, document: Document, about: str = "") -> Verdict:
    if lacks_api(refused):
        return Verdict((describe_problem(refused),), Exit.NO_CLUSTER)
    if not is_verdict(refused.answer):
        raise refused
    return Verdict(describe_refusal(refused.answer, document, about=about), Exit.FAILED)


def _check_pods(server: Server, document: Document, namespace: str) -> Verdict:
    found = dict[tuple[str, ...], _Complaint]()
    for replica, pod in pods_to_ask_for(document.parse(), namespace):
        try:
            server.create(PODS, namespace, pod, dry_run=True)
        except Refused as refused:
            if _NO_PERMISSION in refused.answer.message:
                told = f"the pods can't be asked for: {describe_problem(refused)}"
                return Verdict((told,), Exit.NO_CLUSTER)
            if not is_verdict(refused.answer):
                raise
            root = template_of(document, replica.role)
            lines = describe_refusal(refused.answer, document, root, about=f"{_NAMES}: ")
            # The pods of a role, and so the messages about them, differ only in the pods' names.
            plain = tuple(line.replace(pod["metadata"]["name"], "") for line in lines)
            found.setdefault(plain, _Complaint(lines)).replicas.append(replica.name)
    lines = tuple(line for complaint in found.values() for line in complaint.told)
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
        yield replica, pod


def template_of(document: Document, role: str) -> str:
    """Return the field of the document that has the template of a role's pods."""
    own = (document.raw["spec"].get(role) or {}).get("template")
    return f"spec.{role}.template" if own else "spec.template"


def is_verdict(answer: Answer) -> bool:
    """Return whether the response is about the object, and not about the user or the moment."""
    # Admission (a quota, Pod Security, a webhook) also responds with 403.
    return answer.code in (400, 413, 422) or (answer.code == 403 and _NO_PERMISSION not in answer.message)


def _listed(names: list[str]) -> str:
    return f"pod {names[0]}" if len(names) == 1 else f"pods {names[0]} to {names[-1]}"
