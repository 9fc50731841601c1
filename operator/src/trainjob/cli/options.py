"""The options for a command's files, its cluster and namespace, and durations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from trainjob.api import Document
from trainjob.cli.documents import RefusedFile
from trainjob.client.connection import ClusterOptions


def gathered(name: str, build: Callable[..., Any], *params: click.Parameter) -> Callable[..., Any]:
    """Return a decorator that adds parameters to a command, which gets what `build` makes of their values.

    Args:
        name: of the command's argument.
        build: takes the values by the parameters' names.
        params: the parameters, in the order of the help.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def call(*arguments: Any, **values: Any) -> Any:
            own = {str(param.name): values.pop(str(param.name)) for param in params}
            return command(*arguments, **{name: build(**own)}, **values)

        known: list[click.Parameter] = getattr(command, "__click_params__", [])
        vars(call)["__click_params__"] = [*known, *reversed(params)]  # as click collects them
        return call

    return decorate


def namespace_of(document: Document, option: str | None, context: str) -> str:
    """Return the namespace of the option, else of the file, else of the context.

    Raises:
        RefusedFile: the file and the option differ.
    """
    own = document.raw["metadata"].get("namespace")
    if option and own and option != own:
        line = document.line_of("metadata.namespace")
        raise RefusedFile(
            f"{document.source}:{line} metadata.namespace: is {own}, but -n asks for {option}; remove one of "
            "the two"
        )
    return str(option or own or context)


def one_file(files: tuple[str, ...], more: tuple[str, ...]) -> str:
    """Return the only file."""
    files = (*files, *more)
    if not files:
        raise click.UsageError("Missing argument 'FILE', or -f FILE")
    if len(files) > 1:
        raise click.UsageError(f"one FILE is expected, not {len(files)}: {' '.join(files)}")
    return files[0]


def _all_files(files: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    if not files and not more:
        raise click.UsageError("Missing argument 'FILE...', or -f FILE")
    return (*files, *more)


_FILENAME = click.Option(
    ["-f", "--filename", "more"], multiple=True, metavar="FILE", help="The same as FILE, as with kubectl."
)
FILE = (click.Argument(["files"], nargs=-1, metavar="FILE"), _FILENAME)
"""FILE and -f FILE, of which one is given: `one_file` returns it."""

file_argument = gathered("file", one_file, *FILE)
file_arguments = gathered(
    "files", _all_files, click.Argument(["files"], nargs=-1, metavar="FILE..."), _FILENAME
)


class Duration(click.ParamType[float]):
    """Seconds, or `90s`, `15m`, `1h30m` as kubectl takes them."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        from trainjob.core.wording import parse_duration  # noqa: PLC0415 - not for commands without a time

        seconds = parse_duration(str(value))
        if seconds is None:
            self.fail(f"{value!r} is not a duration: write seconds, or 90s, 15m, 1h30m", param, ctx)
        return seconds


cluster_options = gathered(
    "where",
    ClusterOptions,
    click.Option(["-n", "--namespace"], help="The namespace; default: that of the kubeconfig's context."),
    click.Option(["--context"], help="The kubeconfig's context; default: the current one."),
    click.Option(
        ["--kubeconfig"], metavar="FILE", help="The kubeconfig; default: $KUBECONFIG or ~/.kube/config."
    ),
)
