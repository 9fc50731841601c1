"""Where a training starts: from the beginning, from the newest checkpoint, or not at all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

from trainjob_trainer.checkpoint.snapshot import HostGroups
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore
from trainjob_trainer.errors import (
    CheckpointUnavailable,
    CheckpointUnreadable,
    OutputFinished,
    StorageUnavailable,
)
from trainjob_trainer.reporting.progress import ProgressFile, announce, notice

ARRIVAL_SECONDS = 30.0
"""How long another machine waits to see in a shared folder what the writer sees."""
_SECONDS_BETWEEN_LOOKS = 0.2


class ResumePlan(IntEnum):
    """What a call of `fit` or a loop has to do; a number that the writer tells the others."""

    TRAIN = 0
    RESUME = 1
    SKIP = 2
    """It ended in an earlier attempt, and the script continued after it."""
    FINISHED = 3
    """It ended, and so did another job's script: the output folder is finished."""
    ANEW = 4
    """What is saved belongs to another call: this one trains from the beginning."""
    ALREADY_FINISHED = 5
    """As `FINISHED`, by the same call in a job with the same spec: there is nothing to do."""


def plan_of_loop(store: CheckpointStore, total_steps: int, job_uid: str, spec: str = "") -> ResumePlan:
    """Return whether a loop of the script's own has steps to take, up to `total_steps`: TRAIN if it has."""
    final, ended = store.final(), store.ended()
    if not any(one is not None and one.total_steps >= total_steps for one in (final, ended)):
        return ResumePlan.TRAIN
    if final is None or final.total_steps < total_steps or (job_uid and final.job_uid == job_uid):
        return ResumePlan.SKIP
    return ResumePlan.ALREADY_FINISHED if spec and final.spec == spec else ResumePlan.FINISHED


def choose_start(store: CheckpointStore, reported: int | None = None) -> int:
    """Return the step of the newest whole checkpoint, 0 without one; the writer calls it.

    Damaged ones after it are set aside, so that none looks newest. `reported` is the step of the checkpoint
    that was last reported as the newest, if one was.

    Raises:
        CheckpointUnavailable: it is unknown what is there.
        StorageUnavailable: the reported checkpoint is missing.
        OutputUnwritable, Fenced, OutputTaken: as `CheckpointStore.set_aside`.
    """
    newest = store.latest()
    step = newest.step if newest else 0
    refuse_lost(store, step, reported)
    set_aside_damaged(store, step)
    return step


def refuse_lost(store: CheckpointStore, found: int, reported: int | None) -> None:
    """Refuse to start before the reported checkpoint, unless it is in place or set aside.

    `found` is the step of the newest whole one, 0 without one. Raises StorageUnavailable if it is lost.
    """
    if reported is None or reported <= found or reported in store.known_steps():
        return
    newest = f"the newest one found is of step {found}" if found else "none is found"
    raise StorageUnavailable(
        f"{store.directory}: the checkpoint of step {reported} was reported, but {newest}. Nothing has been "
        "changed there. Check that it is the output's volume and is mounted as a whole. If that checkpoint "
        f"was deleted on purpose, create an empty folder damaged-step-{reported:08d} there; training then "
        "continues without it"
    )


def set_aside_damaged(store: CheckpointStore, chosen: int) -> None:
    """Set aside and log damaged checkpoints after the chosen step; raises as `CheckpointStore.set_aside`."""
    steps = ", ".join(str(step) for step in store.set_aside(chosen))
    if steps:
        going_on = f"from step {chosen}" if chosen else "from the beginning, since there is no other"
        notice(f"the checkpoint of step {steps} is damaged and set aside: training continues {going_on}")


def end_if_finished(store: CheckpointStore, job_uid: str, progress: ProgressFile) -> None:
    """End a replica that starts after its job has finished; raises SystemExit (code 0).

    This needs no TensorFlow, and above all no peers: a replica that restarts alone must not wait for them.
    """
    final = store.final()
    if final is None or not job_uid or final.job_uid != job_uid:
        return
    progress.update(state="finished", step=final.ended_at)
    announce(f"this job has finished before ({final.words}): nothing to do")
    raise SystemExit(0)


def read_agreed(
    store: CheckpointStore, step: int, patience: float, sleep: Callable[[float], None] = time.sleep
) -> tuple[Checkpoint, HostGroups]:
    """Return the checkpoint that the writer has chosen, as soon as it can be read here.

    Raises CheckpointUnreadable or CheckpointUnavailable if it can't be read within `patience` seconds.
    """
    waited = 0.0
    while True:
        try:
            checkpoint = store.at(step)
            return checkpoint, store.read(checkpoint)
        except (CheckpointUnreadable, CheckpointUnavailable):
            if waited >= patience:
                raise
        sleep(_SECONDS_BETWEEN_LOOKS)
        waited += _SECONDS_BETWEEN_LOOKS


def refuse_finished(
    plan: ResumePlan, store: CheckpointStore, asked: str, or_else: str, progress: ProgressFile
) -> None:
    """End a training that has nothing left to do, by the plan that all workers have.

    `store` is the first of the output. `asked` says what was asked for, and what to ask for to go on;
    `or_else` is `Environment.how_to_start_over`.

    Raises OutputFinished if another job finished here, and SystemExit (code 0) if it had the same spec: tools
    that apply manifests create a job again once its TTL has deleted it.
    """
    if plan not in (ResumePlan.FINISHED, ResumePlan.ALREADY_FINISHED):
        return
    final = store.final()  # this machine may not see it yet
    what = f"that {final.words}" if final else "that has finished"
    if plan is ResumePlan.FINISHED:
        raise OutputFinished(
            f"{store.directory.parent} holds a training {what}, and {asked} to continue it, or {or_else}"
        )
    progress.update(state="finished", step=final and final.ended_at, already_finished=True)
    announce(
        f"{store.directory.parent} holds a training of the same spec {what}: nothing to do; to train again, "
        f"{or_else}"
    )
    raise SystemExit(0)


# Settings that the script has changed since the checkpoint.


def settings_of(optimizer: Any, **others: Any) -> dict[str, Any]:
    """Return the settings of a training at its start, for `describe_differences`.

    The optimizer is as the script compiled it: nothing has been restored. Those of one that can't say its
    config aren't known, such as one with a schedule of the script's own without `get_config`. `others` are
    further settings by name, such as the global batch; an unknown one is None, and left out.
    """
    scaled = getattr(optimizer, "inner_optimizer", None)  # of a loss-scaling one, which mixed_float16 adds
    try:
        configs = [one.get_config() for one in (optimizer, scaled) if one is not None]
    except Exception:  # noqa: BLE001 - whatever an optimizer or schedule of the user's own may raise
        configs = []
    config = {name: value for one in configs for name, value in one.items()}
    simple = {name: value for name, value in config.items() if isinstance(value, (bool, int, float))}
    if isinstance(config.get("learning_rate"), Mapping):
        simple["learning_rate"] = config["learning_rate"].get("class_name", "a schedule")
    return {**simple, **{name: value for name, value in others.items() if value is not None}}


def describe_differences(saved: Mapping[str, Any], now: Mapping[str, Any], to_have_it: str) -> list[str]:
    """Return a line for each setting changed since the checkpoint: which value holds, and what to do.

    A variable is restored and holds the checkpoint's value; all other settings are the script's.
    `to_have_it` says how to use the script's learning rate where the checkpoint's holds.
    """
    found = []
    for name in sorted(set(saved) & set(now)):
        then, here = saved[name], now[name]
        kinds = {type(then), type(here)}
        is_float = float in kinds and str not in kinds  # it may have been read back from a float32
        if not (math.isclose(then, here, rel_tol=1e-6) if is_float else then == here):
            change = f"{name.replace('_', ' ')} is {_shown(here)} in the script and was {_shown(then)} before"
            holds = "training uses the script's value; change it back to keep the previous one"
            if _is_restored(name, then, here):
                holds = f"training uses the checkpoint's value. For the script's, {to_have_it}"
            elif name == "seed":
                holds = (
                    "the order of examples follows the script's seed, and dropout continues with the "
                    "checkpoint's; change it back to use one seed for both"
                )
            found.append(f"{change}: {holds}")
    return found


def settings_in_force(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for the next checkpoint: the script's, except what is restored."""
    both = set(saved) & set(now)
    return {**now, **{name: saved[name] for name in both if _is_restored(name, saved[name], now[name])}}


def _is_restored(name: str, then: Any, here: Any) -> bool:
    return name == "learning_rate" and not {str} & {type(then), type(here)}


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
