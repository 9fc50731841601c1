"""Which cluster and namespace a command is about, and the options that say so."""

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from trainjob.cli.cluster.answers import ServerProblem
from trainjob.cli.cluster.exits import Exit
from trainjob.cli.cluster.problems import NoCluster, explain

if TYPE_CHECKING:
    from trainjob.cli.cluster.connection import Connection


@dataclass(frozen=True)
class Where:
    """What the options say; None: not given."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None

    @contextmanager
    def connected(self) -> "Iterator[Connection]":
        """Open the cluster, and end whatever still reads from it afterwards."""
        # The Kubernetes client is slow to import: only what needs it pays for it.
        try:
            from trainjob.cli.cluster.connection import connect  # noqa: PLC0415
        except ModuleNotFoundError as missing:
            if (missing.name or "").partition(".")[0] != "kubernetes":
                raise
            raise NoCluster(
                "the package `kubernetes`, which this command asks a cluster with, is not installed here"
            ) from missing

        connection = connect(self)
        try:
            yield connection
        finally:
            connection.server.close()


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which cluster; the command gets them as `where: Where`."""

    @click.option("-n", "--namespace", help="The namespace; without it, that of the kubeconfig's context.")
    @click.option("--context", help="The kubeconfig's context; without it, the current one.")
    @click.option(
        "--kubeconfig", metavar="FILE", help="The kubeconfig; without it, $KUBECONFIG or ~/.kube/config."
    )
    @functools.wraps(command)
    def with_where(
        *arguments: Any, namespace: str | None, context: str | None, kubeconfig: str | None, **options: Any
    ) -> Any:
        where = Where(namespace, context, kubeconfig)
        return command(*arguments, where=where, **options)

    return with_where


def ends_quietly(command: Callable[..., Any]) -> Callable[..., Any]:
    """Have a command end in one sentence: what the cluster answers, Ctrl-C, and nobody who reads."""

    @functools.wraps(command)
    def ending(*arguments: Any, **options: Any) -> Any:
        try:
            return command(*arguments, **options)
        except ServerProblem as problem:
            raise explain(problem) from problem
        except KeyboardInterrupt:
            sys.exit(Exit.INTERRUPTED)
        except BrokenPipeError:
            # Python would complain once more when it flushes at its exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(Exit.NOBODY_READS)

    return ending
