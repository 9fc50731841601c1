"""How commands for a cluster end: one table for all of them, which docs/cli.md shows."""

from collections.abc import Mapping
from enum import IntEnum


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
    """The cluster can't be asked: no kubeconfig, no answer, no permission, no TrainJob API."""
    TIMEOUT = 124
    """The time given by --timeout is over; what `timeout` of coreutils says."""
    INTERRUPTED = 130
    """Ctrl-C."""
    NOBODY_READS = 141
    """The program that read the output has gone, as after `| head`."""


def describe_exits(meanings: Mapping[Exit, str]) -> str:
    """Return the part of a command's help that says what its exit codes mean."""
    rows = (f"  {code.value:<4} {meaning}" for code, meaning in meanings.items())
    return "\n".join(["\b", "Exit codes:", *rows])
