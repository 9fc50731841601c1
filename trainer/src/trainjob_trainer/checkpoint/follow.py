"""What an evaluator does with a folder of checkpoints: each new one once, and the final one for certain."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from trainjob_trainer.checkpoint.final import FinalMarker
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore
from trainjob_trainer.errors import CheckpointUnavailable, CheckpointUnreadable

T = TypeVar("T")


def _ignore(line: str) -> None:
    """Nobody reads a log."""


def follow(
    store: CheckpointStore,
    poll_seconds: float,
    *,
    job_uid: str | None = None,
    final_step: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
    log: Callable[[str], None] = _ignore,
) -> Iterator[tuple[Checkpoint, bool]]:
    """Yield (checkpoint, is_final), newest first when several have appeared, until the final one.

    A checkpoint that was yielded before it became the final one is yielded again, now as final. The end of an
    earlier training has been scored by its own evaluator: it is passed over while its marker stands. A folder
    that can't be read is looked at again, with a line in the log when that begins and when it ends.

    Args:
        store: the folder to watch.
        poll_seconds: between two looks.
        job_uid: another job's marker is an earlier training's end, and passed over; None takes any.
        final_step: a marker of a training that was to end before it is passed over: this one goes on.
        sleep: replaced by tests.
        log: takes a line.
    """
    seen: Checkpoint | None = None
    while True:
        look = functools.partial(_look, store, seen, job_uid, final_step)
        final, newest = once_available(look, poll_seconds, sleep=sleep, log=log)
        if final is not None:
            yield final, True
            return
        if newest is not None:
            seen = newest
            yield newest, False
            continue  # evaluating took its time: look again at once
        sleep(poll_seconds)


def once_available(
    read: Callable[[], T],
    poll_seconds: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    log: Callable[[str], None] = _ignore,
) -> T:
    """Try again for as long as the folder can't be read: who only reads does no harm by waiting.

    Args:
        read: what is to be done with it.
        poll_seconds: between two attempts.
        sleep: replaced by tests.
        log: takes a line.
    """
    is_out = False
    while True:
        try:
            result = read()
        except CheckpointUnavailable as error:
            if not is_out:
                log(f"{error}; this process tries again every {poll_seconds:g} s")
            is_out = True
        else:
            if is_out:
                log("the checkpoints can be read again")
            return result
        sleep(poll_seconds)


def _look(
    store: CheckpointStore, seen: Checkpoint | None, job_uid: str | None, final_step: int | None
) -> tuple[Checkpoint | None, Checkpoint | None]:
    """The final checkpoint, or else the newest unseen one."""
    try:
        marker = store.final()
    except CheckpointUnreadable as error:
        raise CheckpointUnavailable(str(error)) from error  # its writer may put it right
    final = _final_checkpoint(store, marker, job_uid, final_step)
    return final, None if final is not None else _newest_unseen(store, marker, seen)


def _final_checkpoint(
    store: CheckpointStore, marker: FinalMarker | None, job_uid: str | None, final_step: int | None
) -> Checkpoint | None:
    if marker is None or (job_uid is not None and marker.job_uid != job_uid):
        return None
    if final_step is not None and marker.total_steps < final_step:
        return None
    try:
        return store.checked(marker.step)
    except CheckpointUnreadable:
        return None  # the marker may be on its way out, with training going on


def _newest_unseen(
    store: CheckpointStore, marker: FinalMarker | None, seen: Checkpoint | None
) -> Checkpoint | None:
    """Looks at manifests only until one is new: reading a large checkpoint on every poll would cost."""
    steps = store.steps()
    if not steps or (marker is not None and steps[-1] <= marker.ended_at):
        return None  # training goes on from a marker once its writer has taken it away, if it does at all
    try:
        newest = store.at(steps[-1])
    except CheckpointUnreadable:
        return _unless_seen(store.latest(), seen)
    return _unless_seen(newest, seen) and _unless_seen(store.latest(), seen)


def _unless_seen(checkpoint: Checkpoint | None, seen: Checkpoint | None) -> Checkpoint | None:
    return None if checkpoint == seen else checkpoint
