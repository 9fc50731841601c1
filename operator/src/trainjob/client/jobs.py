"""Finds and follows jobs in a cluster."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from trainjob.client.presenter import describe_deletion
from trainjob.client.problems import NoJob, describe_problem, is_missing, is_passing, no_such_job
from trainjob.client.view import JobView, read_job
from trainjob.cluster.kube import informer
from trainjob.cluster.kube.cache import version_of
from trainjob.cluster.kube.informer import Change, Failed, Gone, Listed, Scope, Seen, Timeouts
from trainjob.cluster.kube.resources import PODS, TRAINJOBS
from trainjob.cluster.kube.responses import Expired
from trainjob.cluster.protocol import ClusterError, Manifest
from trainjob.core.names import LABEL_JOB

if TYPE_CHECKING:
    from trainjob.cluster.kube.client import ApiClient


def job_scope(namespace: str | None, name: str = "") -> Scope:
    """Return the scope of one job, or of all."""
    return Scope(TRAINJOBS, namespace, fields=f"metadata.name={name}" if name else "")


def pod_scope(namespace: str, job: str) -> Scope:
    """Return the scope of every pod with this job's label."""
    return Scope(PODS, namespace, selector=f"{LABEL_JOB}={job}")


async def find_job(api: ApiClient, namespace: str, name: str) -> Manifest:
    """Return the job.

    Raises:
        NoJob: there is none of that name; the message has suggestions.
    """
    if not name:
        # Mostly an unset shell variable; the API server would return all jobs.
        raise NoJob("the job's name is empty")
    try:
        return await api.get(TRAINJOBS, namespace, name)
    except ClusterError as error:
        if not is_missing(error):
            raise
    raise await missing_job(api, namespace, name)


async def missing_job(api: ApiClient, namespace: str, name: str) -> NoJob:
    """Return the error for a job that doesn't exist."""
    here = await _listed(api, job_scope(namespace))
    elsewhere = await _listed(api, job_scope(None, name)) or []
    names = None if here is None else [metadata["name"] for metadata in here]
    return NoJob(no_such_job(name, namespace, names, [metadata["namespace"] for metadata in elsewhere]))


async def list_objects(api: ApiClient, scope: Scope) -> Manifest:
    """Return the whole list, as the API server has it."""
    return await api.list(scope.resource, scope.namespace, selector=scope.selector, fields=scope.fields)


async def pods_of(api: ApiClient, namespace: str, name: str) -> tuple[Manifest, ...]:
    """Return every pod with this job's label."""
    return tuple((await list_objects(api, pod_scope(namespace, name))).get("items") or ())


async def _listed(api: ApiClient, scope: Scope) -> list[dict[str, Any]] | None:
    # Only for suggestions: without permission to list there are none.
    with suppress(ClusterError):
        return [item["metadata"] for item in (await list_objects(api, scope)).get("items") or ()]
    return None


# Following objects, through dropped connections, expired versions and restarts of the API server.


FOLLOW_TIMEOUTS = Timeouts(longest_retry=10.0)


async def follow(
    api: ApiClient, scope: Scope, timeouts: Timeouts = FOLLOW_TIMEOUTS
) -> AsyncGenerator[Change]:
    """Yield the existing objects, then their changes, and the failures that people should know of.

    Raises:
        ClusterError: permanently: no permission, or no such resource.
    """
    known: dict[str, Manifest] = {}
    async with aclosing(informer.follow(api, scope, timeouts)) as changes:
        async for change in changes:
            match change:
                case Seen(item):
                    uid = item["metadata"]["uid"]
                    is_new = uid not in known or version_of(known[uid]) != version_of(item)
                    known[uid] = item
                    if is_new:
                        yield change
                case Gone(item):
                    known.pop(item["metadata"]["uid"], None)
                    yield change
                case Listed(_, objects):
                    for uid in known.keys() - {uid for _, uid in objects}:
                        yield Gone(known.pop(uid))
                    yield change
                case Failed(error, failures) if not isinstance(error, Expired):
                    if not is_passing(error):
                        raise error
                    # Proxies often end long connections.
                    if error.failure.verb and (error.failure.verb != "watch" or failures > 1):
                        yield change


async def follow_job(
    api: ApiClient, namespace: str, name: str, on_problem: Callable[[str], None]
) -> AsyncGenerator[JobView]:
    """Yield the job now and after each change, and end with the state in which it is over.

    Raises:
        NoJob: it doesn't exist, or was deleted or replaced before it was over.
        ClusterError: as `follow`.
    """
    last: JobView | None = None
    async with aclosing(follow(api, job_scope(namespace, name))) as changes:
        async for change in changes:
            match change:
                case Failed(error):
                    on_problem(f"{describe_problem(error)}; trying again")
                case Listed() if last is None:
                    raise await missing_job(api, namespace, name)
                case Seen(manifest) | Gone(manifest):
                    job, is_gone = read_job(manifest), isinstance(change, Gone)
                    if last is not None and job.uid != last.uid:
                        if is_gone:
                            continue
                        raise NoJob(describe_deletion(name, last, replaced=True))
                    last = job
                    # The deletion event has the last state: the end may not have been reported.
                    if is_gone and not job.is_over:
                        raise NoJob(describe_deletion(name, job))
                    yield job
                    if job.is_over:
                        return
