"""Whether the process is alive, and whether it is ready: the decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainjob.controller import Load

STUCK_SECONDS = 300.0
"""Longer than any pass over a job takes: each of its requests has a time limit of its own."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what it is.
        problem: what is wrong with it; empty when it is well.
    """

    name: str
    problem: str = ""


def check_watch(name: str, silent_seconds: float, patience_seconds: float) -> Check:
    """Tell whether a watch is still at work: it hears or tries something now and then."""
    if silent_seconds <= patience_seconds:
        return Check(name)
    return Check(name, f"nothing heard or tried for {silent_seconds:.0f} s")


def check_work(load: Load | None) -> Check:
    """Tell whether the work loop goes on; a standby has none."""
    if load is not None and load.longest > STUCK_SECONDS:
        return Check("work", f"one job has kept a worker busy for {load.longest:.0f} s")
    if load is not None and load.unserved > STUCK_SECONDS:
        return Check("work", f"{load.waiting} jobs wait, and none was taken up for {load.unserved:.0f} s")
    return Check("work")


def check_caches(is_synced: bool) -> Check:
    """Tell whether all that belongs to the jobs is known."""
    return Check("caches", "" if is_synced else "not filled for the first time yet")


def check_key(is_known: bool) -> Check:
    """Tell whether jobs' agents can be given tokens, and be asked."""
    return Check("agent key", "" if is_known else "not read yet")


@dataclass(frozen=True)
class Health:
    """What is looked at, when asked.

    Attributes:
        live: the kubelet restarts the container when one of these stays wrong.
        ready: a rollout waits for these.
    """

    live: Callable[[], list[Check]]
    ready: Callable[[], list[Check]]


def report(checks: list[Check]) -> tuple[int, str]:
    """Return the HTTP status and the text, one line a check."""
    lines = [f"{check.name}: {check.problem or 'ok'}\n" for check in checks]
    return (503 if any(check.problem for check in checks) else 200), "".join(lines)
