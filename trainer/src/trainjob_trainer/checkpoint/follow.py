"""What an evaluator does with a folder of checkpoints: each new one once, and the final one for certain."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore
from trainjob_trainer.errors import CheckpointUnreadable


def follow(
    store: CheckpointStore,
    poll_seconds: float,
    *,
    job_uid: str | None = None,
    final_step: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[Checkpoint, bool]]:
    """Yield (checkpoint, is_final), newest first when several have appeared, until the final one.

    A checkpoint that was yielded before it became the final one is yielded again, now as final. The end of an
    earlier training has been scored by its own evaluator: it is passed over while its marker stands.

    Args:
        store: the folder to watch.
        poll_seconds: between two looks.
        job_uid: another job's marker is an earlier training's end, and passed over; None takes any.
        final_step: a marker of a training that was to end before it is passed over: this one goes on.
        sleep: replaced by tests.
    """
    seen: Checkpoint | None = None
    while True:
        final = _final_checkpoint(store, job_uid, final_step)
        if final is not None:
            yield final, True
            return
        newest = _newest_unseen(store, seen)
        if newest is not None:
            seen = newest
            yield newest, False
            continue  # evaluating took its time: look again at once
        sleep(poll_seconds)


def _final_checkpoint(
    store: CheckpointStore, job_uid: str | None, final_step: int | None
) -> Checkpoint | None:
    marker = store.final()
    if marker is None or (job_uid is not None and marker.job_uid != job_uid):
        return None
    if final_step is not None and marker.total_steps < final_step:
        return None
    try:
        return store.checked(marker.step)
    except CheckpointUnreadable:
        return None  # the marker may be on its way out, with training going on


def _newest_unseen(store: CheckpointStore, seen: Checkpoint | None) -> Checkpoint | None:
    """Looks at manifests only until one is new: reading a large checkpoint on every poll would cost."""
    steps, marker = store.steps(), store.final()
    if not steps or (marker is not None and steps[-1] <= marker.ended_at):
        return None  # training goes on from a marker once its writer has taken it away, if it does at all
    try:
        newest = store.at(steps[-1])
    except CheckpointUnreadable:
        return _unless_seen(store.latest(), seen)
    return _unless_seen(newest, seen) and _unless_seen(store.latest(), seen)


def _unless_seen(checkpoint: Checkpoint | None, seen: Checkpoint | None) -> Checkpoint | None:
    return None if checkpoint == seen else checkpoint
