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
