"""What each replica's steps take, and in which attempt, for the status."""

from __future__ import annotations

from typing import Any

from trainjob.core.observed import Observed
from trainjob.core.reports import Report


def rank_times(observed: Observed) -> dict[str, Any]:
    """Return fields of `status.progress`: the attempt, and each replica's seconds a step and of its parts."""
    reports = {
        pod.replica.name: observed.reports[pod.name]
        for pod in observed.training_pods
        if pod.name in observed.reports
    }
    return {
        "attempt": _attempt(observed),
        "step_seconds": _times(reports, "step_seconds"),
        "work_seconds": _times(reports, "work_seconds"),
        "input_seconds": _times(reports, "input_seconds"),
    }


def _attempt(observed: Observed) -> int:
    """Return the attempt that the reports are from: agents begin the next after it is decided on."""
    agents = observed.gang.ledger.attempt if observed.gang is not None else 0
    return agents or observed.attempt


def _times(reports: dict[str, Report], field: str) -> dict[str, float]:
    known = ((name, getattr(report, field)) for name, report in reports.items())
    return {name: float(f"{seconds:.4g}") for name, seconds in known if seconds is not None and seconds >= 0}
