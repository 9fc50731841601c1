"""`spec.suspend`: pods go, checkpoints and counts stay; a resumed job goes on from the last checkpoint."""

from __future__ import annotations

from datetime import datetime

from trainjob.core import transitions
from trainjob.core.actions import Event, Plan, stop_pods
from trainjob.core.checkpoints import going_on
from trainjob.core.conditions import SUSPENDED, find_condition, is_true
from trainjob.core.observed import Observed


def suspended(observed: Observed, now: datetime) -> Plan | None:
    """Stop a job that is to be suspended, and start a new gang for one that is to go on."""
    if not observed.job.spec.suspend:
        return _resumed(observed, now)
    running = observed.unfinished_pods
    message = "suspended; set spec.suspend to false to go on"
    status = transitions.suspend(observed, message, now, reached=not running)
    if is_true(status, SUSPENDED) and not is_true(observed.status, SUSPENDED):
        return Plan(status, events=(Event("Normal", "Suspended", message),))
    return Plan(status, stop_pods(observed, running))


def _resumed(observed: Observed, now: datetime) -> Plan | None:
    held = find_condition(observed.status, SUSPENDED)
    if held is None or held.reason not in ("Suspending", "Suspended"):
        return None
    message = going_on(observed)
    return Plan(transitions.resume(observed, message, now), events=(Event("Normal", "Resumed", message),))
