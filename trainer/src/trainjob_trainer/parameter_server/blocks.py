"""How many steps a worker is handed at a time."""

from __future__ import annotations

BLOCKS_A_WORKER = 4
"""At least, up to the next point where all wait for each other, so that nobody waits long for the last."""


def next_block(left: int, wanted: int, workers: int) -> int:
    """Return how many steps to hand out next.

    Args:
        left: steps up to the point where all wait for each other, at least 1.
        wanted: how many take a good time, which is so long that handing them out costs nothing.
        workers: who take them.
    """
    fair = -(-left // (workers * BLOCKS_A_WORKER))
    return max(1, min(wanted, fair, left))


def next_meeting(step: int, total: int, periods: tuple[int | None, ...]) -> int:
    """Return the step at which all wait for each other: an epoch's end, a checkpoint, or the end.

    Args:
        step: steps done.
        total: the last step.
        periods: steps an epoch, steps between checkpoints; None is no period.
    """
    return min([total] + [(step // period + 1) * period for period in periods if period])
