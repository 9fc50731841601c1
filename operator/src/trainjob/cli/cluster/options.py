"""The options for a command's cluster and namespace, and how commands with them end."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trainjob.api import Document
from trainjob.cli.cluster.problems import Exit
from trainjob.cli.documents import RefusedFile

if TYPE_CHECKING:
    from trainjob.cli.cluster.connection import Connection

Result = TypeVar("Result")

# The namespace of a document.


def namespace_of(document: Document, asked: str | None, context: str) -> str:
    """Return the namespace of the option, else of the file, else of the context.

    Raises:
        RefusedFile: the file and the option differ.
    """
    own = document.raw["metadata"].get("namespace")
    if asked and own and asked != own:
        line = document.line_of("metadata.namespace")
        raise RefusedFile(
            [
                f"{document.source}:{line} metadata.namespace: is {own}, but -n asks for {asked};"
                " leave out one of the two"
            ]
        )
    return str(asked or own or context)


# Durations on the command line.


_PARTS = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")


class Duration(click.ParamType[float]):
    """Seconds, or `90s`, `15m`, `1h30m` as kubectl takes them."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        found = _PARTS.fullmatch(str(value))
        if not found or not any(found.groups()):
            self.fail(f"{value!r} is no time: write seconds, or 90s, 15m, 1h30m", param, ctx)
        hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return 3600 * hours + 60 * minutes + seconds


# The options for cluster and namespace.


@dataclass(frozen=True)
class ClusterOptions:
    """Values of the options; None: not given."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None

    def run(self, work: Callable[[Connection], Coroutine[Any, Any, Result]]) -> Result:
        """Connect to the cluster, and return the result of the work.

        Raises:
            ClusterProblem: the cluster can't be used, or it refused a request.
        """
        # The client is slow to import: only commands that need it import it.
        from trainjob.cli.cluster.connection import run_connected  # noqa: PLC0415

        return run_connected(self, work)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select the cluster; the command gets them as `where: ClusterOptions`."""

    @click.option("-n", "--namespace", help="The namespace; without it, that of the kubeconfig's context.")
    @click.option("--context", help="The kubeconfig's context; without it, the current one.")
    @click.option(
        "--kubeconfig", metavar="FILE", help="The kubeconfig; without it, $KUBECONFIG or ~/.kube/config."
    )
    @functools.wraps(command)
    def with_where(
        *arguments: Any, namespace: str | None, context: str | None, kubeconfig: str | None, **options: Any
    ) -> Any:
        where = ClusterOptions(namespace, context, kubeconfig)
        return command(*arguments, where=where, **options)

    return with_where


def ends_quietly(command: Callable[..., Any]) -> Callable[..., Any]:
    """End a command without a traceback on Ctrl-C or a closed output pipe."""

    @functools.wraps(command)
    def ending(*arguments: Any, **options: Any) -> Any:
        try:
            return command(*arguments, **options)
        except KeyboardInterrupt:
            sys.exit(Exit.INTERRUPTED)
        except BrokenPipeError:
            # Otherwise Python reports the error again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(Exit.NOBODY_READS)

    return ending
