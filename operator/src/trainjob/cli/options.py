"""The options for a command's files, its cluster and namespace, and durations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from trainjob.api import Document
from trainjob.cli.documents import RefusedFile
from trainjob.client.connection import ClusterOptions

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


# Files: as arguments, or as kubectl takes them.


def file_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add FILE and -f FILE, of which one is given; the command gets it as `file`."""

    @functools.wraps(command)
    def with_file(*arguments: Any, files: tuple[str, ...], **options: Any) -> Any:
        if len(files) > 1:
            raise click.UsageError(f"one FILE is expected, not {len(files)}: {' '.join(files)}")
        return command(*arguments, file=files[0], **options)

    return _with_files(with_file, "FILE")


def file_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add FILE... and -f FILE; the command gets them all as `files`."""
    return _with_files(command, "FILE...")


def _with_files(command: Callable[..., Any], metavar: str) -> Callable[..., Any]:
    @click.argument("files", nargs=-1, metavar=metavar)
    @click.option(
        "-f", "--filename", "more", multiple=True, metavar="FILE", help="FILE, as kubectl takes it."
    )
    @functools.wraps(command)
    def with_files(*arguments: Any, files: tuple[str, ...], more: tuple[str, ...], **options: Any) -> Any:
        if not files and not more:
            raise click.UsageError(f"Missing argument '{metavar}', or -f FILE")
        return command(*arguments, files=(*files, *more), **options)

    return with_files


# Durations on the command line.


class Duration(click.ParamType[float]):
    """Seconds, or `90s`, `15m`, `1h30m` as kubectl takes them."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        from trainjob.core.wording import parse_duration  # noqa: PLC0415 - not for commands without a time

        seconds = parse_duration(str(value))
        if seconds is None:
            self.fail(f"{value!r} is no time: write seconds, or 90s, 15m, 1h30m", param, ctx)
        return seconds


# The options for cluster and namespace.


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
