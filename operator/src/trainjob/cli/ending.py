"""How commands end: exit codes, problems as one sentence, and the result of a job."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import click

from trainjob.client.problems import ClusterProblem, NoCluster, NoJob, TimeIsOver

if TYPE_CHECKING:
    from trainjob.client.view import JobView


class Exit(IntEnum):
    """The exit code of a command for a cluster, as docs/cli.md lists them."""

    GOOD = 0
    FAILED = 1
    """The job failed, a file has mistakes, or the cluster refused it."""
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


_USUAL = {
    Exit.NO_JOB: "there is no such job",
    Exit.NO_CLUSTER: "the cluster can't be used: no kubeconfig, no response, no permission, or no TrainJob "
    "API",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
    Exit.NOBODY_READS: "the program that read the output has exited",
}

ABOUT_A_JOB = (Exit.NO_JOB, Exit.NO_CLUSTER, Exit.INTERRUPTED)
"""Usual exit codes of a command that takes a job's name."""


def command(
    short_help: str, *usual: Exit, cls: type[click.Command] = click.Command, **meanings: str
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return the decorator of a command without tracebacks, also after Ctrl-C or when nobody reads.

    Args:
        short_help: its line in the list of commands.
        usual: exit codes that mean what they mean everywhere.
        cls: of the command.
        meanings: of its other exit codes, by their names in small letters.
    """
    every = {code: _USUAL[code] for code in usual} | {Exit[name.upper()]: meanings[name] for name in meanings}
    rows = [f"  {code.value:<4} {every[code]}" for code in sorted(every)]
    epilog = "\n".join(["\b", "Exit codes:", *rows]) if rows else None

    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def ending(*arguments: Any, **options: Any) -> Any:
            try:
                return function(*arguments, **options)
            except ClusterProblem as problem:
                print_lines([str(problem)], err=True)
                sys.exit(code_of(problem))
            except KeyboardInterrupt:
                sys.exit(Exit.INTERRUPTED)
            except BrokenPipeError:
                # Otherwise Python reports the error again when it flushes at exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                sys.exit(Exit.NOBODY_READS)

        return click.command(cls=cls, epilog=epilog, short_help=short_help)(ending)

    return decorate


def code_of(problem: ClusterProblem) -> Exit:
    """Return the exit code of a command that ends with this problem."""
    codes = {NoCluster: Exit.NO_CLUSTER, NoJob: Exit.NO_JOB, TimeIsOver: Exit.TIMEOUT}
    return codes.get(type(problem), Exit.FAILED)


@contextmanager
def like_ctrl_c() -> Iterator[None]:
    """Have SIGTERM, and SIGHUP of a closed terminal, end the running task as Ctrl-C does: it cleans up.

    For a block of the main task of `asyncio.run`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for each in signals:
        signal.signal(each, signal.getsignal(signal.SIGINT))
    try:
        yield
    finally:
        for each in signals:
            signal.signal(each, signal.SIG_DFL)


def conclude(job: JobView) -> Exit:
    """Print the result of a finished job: on stdout if it is complete, else on stderr."""
    # The presenter is slow to import: most commands end without a job.
    from trainjob.client.presenter import describe_end, results_of  # noqa: PLC0415
    from trainjob.client.view import Outcome  # noqa: PLC0415

    code = Exit.GOOD if job.outcome is Outcome.COMPLETE else Exit.FAILED
    print_lines(describe_end(job, results_of(job)), err=code is not Exit.GOOD)
    return code


def print_lines(lines: Iterable[str], *, err: bool) -> None:
    """Print lines without terminal control characters from a cluster or a pod."""
    from trainjob.core.wording import printable  # noqa: PLC0415 - most commands end without a problem

    for line in lines:
        click.echo(printable(line), err=err)
