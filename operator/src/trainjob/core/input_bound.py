"""Replicas that wait for their data rather than compute: their input is what makes a step long."""

from __future__ import annotations

from collections.abc import Mapping

from trainjob.core.gang import read_seat

NOTICEABLE = 0.2
"""Of a step's time: what is less is hardly worth somebody's work."""


def input_share(step: float | None, waited: float | None) -> float | None:
    """Return the part of a step, from 0 to 1, in which a replica waits for its data; None if unknown.

    Args:
        step: seconds that it takes.
        waited: seconds of them.
    """
    if step is None or waited is None or step <= 0:
        return None
    return min(1.0, max(0.0, waited / step))


def describe_input(steps: Mapping[str, float | None], waited: Mapping[str, float | None]) -> str | None:
    """Return `worker 1 waits for its data for 43 % of a step: …` of who waits most; None if nobody does.

    Args:
        steps: seconds of a step, by replica.
        waited: seconds of them, by replica.
    """
    shares = {name: input_share(step, waited.get(name)) or 0.0 for name, step in steps.items()}
    bound = {name: share for name, share in shares.items() if share >= NOTICEABLE}
    if not bound:
        return None
    most = max(bound, key=bound.__getitem__)
    seat = read_seat(most)
    others = len(bound) - 1
    too = f", {others} other{'s' if others > 1 else ''} too" if others else ""
    return (
        f"{seat.title if seat else most} waits for its data for {100 * bound[most]:.0f} % of a step{too}: "
        "a faster input pipeline makes training faster"
    )
