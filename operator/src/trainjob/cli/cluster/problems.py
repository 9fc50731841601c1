"""What ends a command for a cluster: one sentence on stderr and an exit code."""

import difflib
from collections.abc import Collection, Iterable

import click

from trainjob.cli.cluster.answers import (
    Refused,
    ServerProblem,
    Unreachable,
    describe_problem,
    lacks_api,
)
from trainjob.cli.cluster.exits import Exit


class ClusterProblem(click.ClickException):
    """Printed without a traceback, and without what a cluster or a pod may say to drive the terminal."""

    exit_code = Exit.FAILED

    def show(self, file: object = None) -> None:
        """Print the sentence on stderr."""
        del file
        from trainjob.core.wording import printable  # noqa: PLC0415 - most commands end without a problem

        click.echo(printable(self.message), err=True)


class NoCluster(ClusterProblem):
    """The cluster can't be asked."""

    exit_code = Exit.NO_CLUSTER


class NoJob(ClusterProblem):
    """There is no such job, or no more."""

    exit_code = Exit.NO_JOB


class TimeIsOver(ClusterProblem):
    """What was waited for has not come in time."""

    exit_code = Exit.TIMEOUT


def explain(problem: ServerProblem) -> ClusterProblem:
    """Return what to tell about a problem that nobody has dealt with."""
    sentence = describe_problem(problem)
    if isinstance(problem, Unreachable) or lacks_api(problem):
        return NoCluster(sentence)
    assert isinstance(problem, Refused)  # noqa: S101 - there are two kinds
    if problem.answer.code in (401, 403) or problem.answer.is_passing:
        return NoCluster(sentence)
    return ClusterProblem(sentence)


def no_such_job(name: str, namespace: str, here: Collection[str] | None, elsewhere: Iterable[str]) -> str:
    """Return the sentence for a job that isn't there, with what may be meant.

    Args:
        name: what was asked for.
        namespace: where.
        here: names of the jobs there, None if they may not be known.
        elsewhere: other namespaces with a job of this name.
    """
    sentence = f"there is no TrainJob {name!r} in namespace {namespace}"
    others = sorted(elsewhere)
    if others:
        also = f" (also in {', '.join(others[1:])})" if others[1:] else ""
        return f"{sentence}; there is one in namespace {others[0]}{also}: use -n {others[0]}"
    similar = difflib.get_close_matches(name, here or (), n=3)
    if similar:
        return f"{sentence}; did you mean {' or '.join(similar)}?"
    if here is not None and not here:
        return f"{sentence}, nor any other: see --namespace and --context"
    return sentence
