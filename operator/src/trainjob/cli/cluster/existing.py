"""What to say about a job that exists already: what `kubectl apply` would make of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainjob.cli.cluster.answers import Answer, Refused, ServerProblem, describe_problem
from trainjob.cli.cluster.reading import read_job
from trainjob.cli.cluster.resources import TRAINJOBS

if TYPE_CHECKING:
    from trainjob.cli.cluster.server import Server

_MOST_FIELDS = 8


def describe_existing(
    server: Server, namespace: str, manifest: Mapping[str, Any], file: str
) -> tuple[str, ...]:
    """Return the lines about a job whose name is taken; the API server is asked, nothing is changed."""
    name = str(manifest["metadata"]["name"])
    try:
        stored = server.get(TRAINJOBS, namespace, name)
    except ServerProblem as problem:
        return (f"{name} exists already in namespace {namespace} ({describe_problem(problem)})",)
    job = read_job(stored)
    lines = [f"{name} exists already in namespace {namespace} ({job.state}); nothing was created"]
    try:
        changed = server.try_change(TRAINJOBS, namespace, name, {"spec": manifest["spec"]})
        lines += changes_told(changed_fields(stored.get("spec"), changed.get("spec")), file)
    except Refused as refused:
        lines += refusal_told(refused.answer, file)
    lines.append(f"  to run it anew: kubectl delete tj {name} -n {namespace}, then submit it again")
    return tuple(lines)


def changes_told(fields: tuple[str, ...], file: str) -> Iterator[str]:
    """Yield what applying the file would do."""
    if not fields:
        yield f"  it is as {file} has it: kubectl apply would change nothing"
        return
    more = f" and {len(fields) - _MOST_FIELDS} more" if len(fields) > _MOST_FIELDS else ""
    yield f"  kubectl apply -f {file} would change {', '.join(fields[:_MOST_FIELDS])}{more}"


def refusal_told(answer: Answer, file: str) -> Iterator[str]:
    """Yield why the file can't be applied."""
    yield f"  kubectl apply -f {file} would be refused:"
    causes = [f"{cause.get('field')}: {cause.get('message')}" for cause in answer.causes]
    yield from (f"    {line}" for line in causes or [answer.message])


def changed_fields(before: Any, after: Any, path: str = "spec") -> tuple[str, ...]:
    """Return the fields that differ, the deepest that tell it, lists as a whole."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = dict.fromkeys([*before, *after])
        return tuple(
            p for key in keys for p in changed_fields(before.get(key), after.get(key), f"{path}.{key}")
        )
    return () if before == after else (path,)
