"""Finding a job by its name, or what else may be meant."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trainjob.cli.cluster.answers import ServerProblem, is_missing
from trainjob.cli.cluster.problems import NoJob, no_such_job
from trainjob.cli.cluster.resources import PODS, TRAINJOBS
from trainjob.core.names import LABEL_JOB

if TYPE_CHECKING:
    from trainjob.cli.cluster.server import Manifest, Server


def find_job(server: Server, namespace: str, name: str) -> Manifest:
    """Return the job.

    Raises:
        NoJob: there is none of that name; the sentence says what may be meant.
    """
    if not name:
        # An unset variable of the shell, mostly; the API server would take it for all jobs.
        raise NoJob("the job's name is empty")
    try:
        return server.get(TRAINJOBS, namespace, name)
    except ServerProblem as problem:
        if not is_missing(problem):
            raise
    raise missing_job(server, namespace, name)


def missing_job(server: Server, namespace: str, name: str) -> NoJob:
    """Return what to tell about a job that isn't there."""
    here = _listed(server, namespace)
    elsewhere = _listed(server, None, name) or []
    names = None if here is None else [metadata["name"] for metadata in here]
    return NoJob(no_such_job(name, namespace, names, [metadata["namespace"] for metadata in elsewhere]))


def pods_of(server: Server, namespace: str, name: str) -> tuple[Manifest, ...]:
    """Return every pod that is labelled as this job's."""
    return tuple(server.list(PODS, namespace, {"labelSelector": f"{LABEL_JOB}={name}"}).get("items") or ())


def _listed(server: Server, namespace: str | None, name: str | None = None) -> list[dict[str, Any]] | None:
    # A hint only: who may not list gets none.
    query = {"fieldSelector": f"metadata.name={name}"} if name else {}
    with suppress(ServerProblem):
        return [item["metadata"] for item in server.list(TRAINJOBS, namespace, query).get("items") or ()]
    return None
