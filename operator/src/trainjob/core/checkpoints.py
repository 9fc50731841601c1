"""What is known of the job's checkpoints: where training goes on after a stop."""

from __future__ import annotations

from trainjob.core.observed import Observed
from trainjob.core.topology import leader


def checkpoint_step(observed: Observed) -> int | None:
    """Return the step of the newest whole checkpoint that anybody has told of, or None."""
    told = [step for r in observed.reports.values() for step in (r.checkpoint_step, r.resumed_from)]
    written = observed.status.output.checkpoint_step if observed.status.output else None
    return max((step for step in (*told, written) if step is not None), default=None)


def origin(observed: Observed) -> str:
    """Return ` from step 20` or ` from the beginning`; nothing where nobody has told.

    The writer names the checkpoint that it resumed from and each that it writes: once it has told of a step,
    there is none that it hasn't named. Nobody hears a plain pod's reports, though.
    """
    step = checkpoint_step(observed)
    if step is not None:
        return f" from step {step}"
    writer = observed.report_of(leader(observed.job.spec))
    return " from the beginning" if writer is not None and writer.step is not None else ""


def going_on(observed: Observed) -> str:
    """Return `going on from the last checkpoint`, or `going on` where nobody has told of any."""
    return "going on" + (" from the last checkpoint" if checkpoint_step(observed) is not None else "")
