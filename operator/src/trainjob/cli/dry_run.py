"""Server-side dry run of a job and its pods: whether the API server would accept them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trainjob.api import Document
from trainjob.cli.ending import Exit
from trainjob.client.problems import describe_problem, describe_refusal, lacks_api
from trainjob.cluster.agents.bundle import preview_source
from trainjob.cluster.kube.resources import PODS, TRAINJOBS
from trainjob.cluster.protocol import AlreadyExists, ClusterError, RequestFailure
from trainjob.core.manifests import build_pod, share_claims
from trainjob.core.names import desired_replicas

if TYPE_CHECKING:
    from trainjob.cluster.kube.client import ApiClient

_NO_PERMISSION = "cannot create resource"
_NAMES = "{replicas}"


class Verdict(NamedTuple):
    """The API server's verdict on one job: a line for each mistake, or for a check that wasn't possible."""

    lines: tuple[str, ...] = ()
    code: Exit = Exit.GOOD


async def check_on_cluster(api: ApiClient, document: Document, namespace: str) -> Verdict:
    """Check the job, or the change of the existing one into it, and every pod of its first attempt.

    Raises:
        ClusterError: no check is possible: no response, no namespace, no permission for TrainJobs.
    """
    metadata, about = {**document.raw["metadata"], "namespace": namespace}, ""
    job = Verdict()
    try:
        try:
            await api.create(TRAINJOBS, {**document.raw, "metadata": metadata}, dry_run=True)
        except AlreadyExists:
            name = str(metadata["name"])
            about = f"{name} exists already in namespace {namespace}, and can't be changed into this: "
            await api.patch(TRAINJOBS, namespace, name, {"spec": document.raw["spec"]}, dry_run=True)
    except ClusterError as refused:
        if lacks_api(refused):
            job = Verdict((describe_problem(refused),), Exit.NO_CLUSTER)
        elif _is_verdict(refused.failure):
            job = Verdict(describe_refusal(refused.failure, document, about=about), Exit.FAILED)
        else:
            raise
    pods = await _check_pods(api, document, namespace)
    return Verdict((*job.lines, *pods.lines), max(job.code, pods.code))


async def _check_pods(api: ApiClient, document: Document, namespace: str) -> Verdict:
    """Check the pods of the first attempt, without an owner, which doesn't exist yet."""
    job, spec = document.parse(), document.raw["spec"]
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": namespace})})
    source = preview_source(job.metadata)
    refusals = dict[tuple[str, ...], tuple[tuple[str, ...], list[str]]]()
    for replica in desired_replicas(job.spec):
        pod: dict[str, Any] = build_pod(
            job, role=replica.role, index=replica.index, incarnation=1, attempt=1, source=source
        )
        del pod["metadata"]["ownerReferences"]
        try:
            await api.create(PODS, share_claims(pod), dry_run=True)
        except ClusterError as refused:
            if _NO_PERMISSION in refused.failure.message:
                why = f"the pods can't be checked: {describe_problem(refused)}"
                return Verdict((why,), Exit.NO_CLUSTER)
            if not _is_verdict(refused.failure):
                raise
            has_own = (spec.get(replica.role) or {}).get("template")
            root = f"spec.{replica.role}.template" if has_own else "spec.template"
            lines = describe_refusal(refused.failure, document, root, about=f"{_NAMES}: ")
            # The pods of a role, and so the messages about them, differ only in the pods' names.
            plain = tuple(line.replace(pod["metadata"]["name"], "") for line in lines)
            refusals.setdefault(plain, (lines, []))[1].append(replica.name)
    mistakes = list[str]()
    for lines, names in refusals.values():
        pods = f"pod {names[0]}" if len(names) == 1 else f"pods {names[0]} to {names[-1]}"
        mistakes += [line.replace(_NAMES, pods, 1) for line in lines]
    return Verdict(tuple(mistakes), Exit.FAILED if mistakes else Exit.GOOD)


def _is_verdict(failure: RequestFailure) -> bool:
    """Return whether the response is about the object, and not about the user or the moment."""
    # Admission (a quota, Pod Security, a webhook) also responds with 403.
    if failure.code == 403:
        return _NO_PERMISSION not in failure.message
    return failure.code in (400, 413, 422)
