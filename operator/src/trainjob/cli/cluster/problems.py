"""Errors of commands for a cluster: the API server's responses as messages, and exit codes."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

import click

from trainjob.api.constants import API_VERSION, PLURAL

if TYPE_CHECKING:
    from trainjob.cluster.protocol import ClusterError


# Exit codes of all commands for a cluster, as docs/cli.md lists them.


class Exit(IntEnum):
    """The exit code of a command."""

    GOOD = 0
    FAILED = 1
    """The job failed, a file has mistakes, the cluster refused it, or there is no profile."""
    USAGE = 2
    """The command line is wrong, a file can't be read, or the output can't be written."""
    NO_JOB = 3
    """There is no such job, or it was deleted meanwhile."""
    NO_CLUSTER = 4
    """The cluster can't be used: no kubeconfig, no response, no permission, no TrainJob API."""
    TIMEOUT = 124
    """The time given by --timeout is over; the code of `timeout` in coreutils."""
    INTERRUPTED = 130
    """Ctrl-C."""
    NOBODY_READS = 141
    """The program that read the output has exited, as after `| head`."""


def describe_exits(meanings: Mapping[Exit, str]) -> str:
    """Return the part of a command's help that explains its exit codes."""
    rows = (f"  {code.value:<4} {meaning}" for code, meaning in meanings.items())
    return "\n".join(["\b", "Exit codes:", *rows])


# Failed requests in one sentence.


_TRANSIENT = frozenset([0, 408, 429, 500, 502, 503, 504])
"""HTTP status codes after which the same request may succeed a little later; 0: there was no response."""

_NO_API = (
    f"this cluster has no {PLURAL} of {API_VERSION}: the CRD is not installed"
    " (or it is another cluster than you mean: see --context)"
)


def is_passing(error: ClusterError) -> bool:
    """Return whether the same request may succeed a little later."""
    return error.failure.code in _TRANSIENT


def is_missing(error: ClusterError) -> bool:
    """Return whether the requested object doesn't exist, while its kind does."""
    failure = error.failure
    return failure.code == 404 and bool(failure.name) and failure.details.get("name") == failure.name


def lacks_api(error: ClusterError) -> bool:
    """Return whether the cluster doesn't know TrainJobs at all: the CRD is not installed."""
    failure = error.failure
    # The response names a missing object, and a missing namespace.
    return failure.resource == PLURAL and failure.code == 404 and not failure.details.get("name")


def describe_problem(error: ClusterError) -> str:
    """Return the problem in one sentence, with what to do about it."""
    failure = error.failure
    words = failure.message or failure.reason or f"HTTP status {failure.code}"
    if failure.code == 0:
        return f"the API server {failure.server} can't be reached: {words}"
    if lacks_api(error):
        return _NO_API
    if failure.code == 401:
        return f"the API server doesn't accept your credentials ({words}): log in to the cluster again"
    if failure.code == 403:
        return f"the API server doesn't allow it: {words}"
    if failure.code == 404 and failure.details.get("kind") == "namespaces":
        return f"there is no namespace {failure.details.get('name')!r} in this cluster"
    if is_passing(error):
        return f"the API server can't {failure.verb} {failure.resource} now: {words}"
    return f"the API server refuses to {failure.verb} {failure.resource}: {words}"


# Exceptions that end a command: one sentence on stderr and an exit code.


class ClusterProblem(click.ClickException):
    """Printed without a traceback, and without terminal control characters from a cluster or a pod."""

    exit_code = Exit.FAILED

    def show(self, file: object = None) -> None:
        """Print the sentence on stderr."""
        del file
        from trainjob.core.wording import printable  # noqa: PLC0415 - most commands end without a problem

        click.echo(printable(self.message), err=True)


class NoCluster(ClusterProblem):
    """The cluster can't be used."""

    exit_code = Exit.NO_CLUSTER


class NoJob(ClusterProblem):
    """The job doesn't exist, or no longer exists."""

    exit_code = Exit.NO_JOB


class TimeIsOver(ClusterProblem):
    """The awaited event did not happen in time."""

    exit_code = Exit.TIMEOUT


def explain(error: ClusterError) -> ClusterProblem:
    """Return the exception that ends a command for an unhandled problem."""
    sentence = describe_problem(error)
    if lacks_api(error) or error.failure.code in (401, 403) or is_passing(error):
        return NoCluster(sentence)
    return ClusterProblem(sentence)


def no_such_job(name: str, namespace: str, here: Collection[str] | None, elsewhere: Iterable[str]) -> str:
    """Return the message for a job that doesn't exist, with suggestions.

    Args:
        name: of the requested job.
        namespace: of the requested job.
        here: names of the jobs in it, None if they can't be listed.
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
