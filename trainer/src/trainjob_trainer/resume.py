"""Where a training starts: from the beginning, from the newest checkpoint, or not at all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NoReturn

from trainjob_trainer.checkpoint.snapshot import (
    HostGroups,
    VariableGroups,
    assign,
)
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore, FinalMarker
from trainjob_trainer.errors import (
    CheckpointUnavailable,
    CheckpointUnreadable,
    OutputFinished,
    StorageUnavailable,
)
from trainjob_trainer.reporting.progress import ProgressFile, announce, notice
from trainjob_trainer.task import Task

ARRIVAL_SECONDS = 30.0
"""How long another machine waits to see in a shared folder what the writer sees."""
_SECONDS_BETWEEN_LOOKS = 0.2


class Verdict(IntEnum):
    """What the output folder implies for this training."""

    TRAIN = 0
    FINISHED_BY_THIS_JOB = 1
    """A replica that restarts after the end: it has nothing to do, and nothing is wrong."""
    FINISHED_BY_ANOTHER = 2
    ENDED = 3
    """The training has ended and its script has not: the result is restored, and the script continues."""
    FINISHED_BY_SAME_SPEC = 4
    """An earlier job with the same spec finished: this one has nothing to do, and nothing is wrong."""


@dataclass(frozen=True)
class Start:
    """The decision, the same on every worker.

    `step` counts optimizer steps done, 0 without a checkpoint; of an ended training it is the result's.
    """

    verdict: Verdict
    step: int

    @classmethod
    def nothing(cls) -> Start:
        """Start from the beginning."""
        return cls(Verdict.TRAIN, 0)


def find_start(store: CheckpointStore, total_steps: int, job_uid: str, spec: str = "") -> Start:
    """Decide from what is on disk alone; `total_steps` is what the training is to reach."""
    final = store.final()
    if final is not None and final.total_steps >= total_steps:
        return Start(_verdict(final, job_uid, spec), final.ended_at)
    ended = store.ended()
    if ended is not None and ended.total_steps >= total_steps:
        return Start(Verdict.ENDED, ended.step)
    newest = store.latest()
    return Start(Verdict.TRAIN, newest.step if newest else 0)


def choose_start(
    store: CheckpointStore, total_steps: int, job_uid: str, reported: int | None = None, spec: str = ""
) -> Start:
    """Decide as `find_start`, for the writer; set damaged checkpoints aside, so that none looks newest.

    `reported` is the step of the checkpoint that was last reported as the newest, if one was.

    Raises:
        CheckpointUnavailable: it is unknown what is there.
        StorageUnavailable: the reported checkpoint is missing.
        CheckpointUnreadable: the final marker is damaged.
        OutputUnwritable, Fenced, OutputTaken: as `CheckpointStore.set_aside`.
    """
    start = find_start(store, total_steps, job_uid, spec)
    if start.verdict is Verdict.TRAIN:
        refuse_lost(store, start.step, reported)
        set_aside_damaged(store, start.step)
    return start


def refuse_lost(store: CheckpointStore, found: int, reported: int | None) -> None:
    """Refuse to start before the reported checkpoint, unless it is in place or set aside.

    `found` is the step of the newest whole one, 0 without one. Raises StorageUnavailable if it is lost.
    """
    if reported is None or reported <= found or reported in store.known_steps():
        return
    newest = f"the newest that is found is that of step {found}" if found else "none is found"
    raise StorageUnavailable(
        f"{store.directory}: the checkpoint of step {reported} was reported, and {newest}. Nothing has been "
        "changed there: is it the output's volume, and is all of it mounted? If that checkpoint was deleted "
        f"on purpose, make an empty folder damaged-step-{reported:08d} there; training goes on without it"
    )


def set_aside_damaged(store: CheckpointStore, chosen: int) -> None:
    """Set aside and log damaged checkpoints after the chosen step; raises as `CheckpointStore.set_aside`."""
    steps = ", ".join(str(step) for step in store.set_aside(chosen))
    if steps:
        going_on = f"from step {chosen}" if chosen else "from the beginning, for lack of another"
        notice(f"the checkpoint of step {steps} is damaged and set aside: training goes on {going_on}")


def end_if_finished(store: CheckpointStore, job_uid: str, progress: ProgressFile) -> None:
    """End a replica that starts after its job has finished; raises SystemExit (code 0).

    This needs no TensorFlow, and above all no peers: a replica that restarts alone must not wait for them.
    """
    final = store.final()
    if final is None or _verdict(final, job_uid) is not Verdict.FINISHED_BY_THIS_JOB:
        return
    progress.update(state="finished", step=final.ended_at, stopped_early=final.stopped_early or None)
    refuse_finished(Start(Verdict.FINISHED_BY_THIS_JOB, final.ended_at), store, final.ended_at, "", progress)


def agree(
    strategy: Any,
    task: Task,
    store: CheckpointStore,
    total_steps: int,
    job_uid: str,
    reported: int | None = None,
    spec: str = "",
) -> Start:
    """Return the writer's decision on every worker, as `choose_start`.

    They may see different folders for a moment.
    """
    from trainjob_trainer.distribution.collective import broadcast  # noqa: PLC0415 - TensorFlow only when training

    mine = choose_start(store, total_steps, job_uid, reported, spec) if task.is_writer else Start.nothing()
    verdict, step = broadcast(strategy, task, [int(mine.verdict), mine.step])
    return Start(Verdict(verdict), step)


def restore(
    strategy: Any,
    task: Task,
    store: CheckpointStore,
    start: Start,
    groups: VariableGroups,
    further: VariableGroups | None = None,
) -> HostGroups:
    """Load the agreed step on this worker, and check that all hold the same. Step 0 loads nothing.

    The checkpoint must hold `groups`; `further` are loaded if it holds them. Returns all that it holds.
    Raises as `CheckpointStore.load` and `check_same_weights`.
    """
    if not start.step:
        return {}
    host = load_agreed(strategy, task, store, start.step, groups, further)
    if task.is_writer:
        announce(f"resumed from step {start.step} ({store.at(start.step).path})")
    return host


def load_agreed(
    strategy: Any,
    task: Task,
    store: CheckpointStore,
    step: int,
    groups: VariableGroups,
    further: VariableGroups | None = None,
) -> HostGroups:
    """Load the checkpoint of that step on every worker, and check that all hold the same; as `restore`."""
    from trainjob_trainer.distribution.collective import check_same_weights  # noqa: PLC0415 - as above

    _, host = read_agreed(store, step, 0.0 if task.is_writer else ARRIVAL_SECONDS)
    loaded = {**groups, **{name: group for name, group in (further or {}).items() if name in host}}
    assign(loaded, host)
    check_same_weights(strategy, task, loaded)
    return host


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
    start: Start, store: CheckpointStore, total_steps: int, or_else: str, progress: ProgressFile
) -> None:
    """End a training that has nothing left to do; `or_else` is `Environment.how_to_start_over`.

    Raises OutputFinished if another job finished here, and SystemExit (code 0) if this job did, or one with
    the same spec.
    """
    if start.verdict in (Verdict.TRAIN, Verdict.ENDED):
        return
    how = (store.final() or FinalMarker(start.step, "")).words  # this machine may not see it yet
    if start.verdict is Verdict.FINISHED_BY_THIS_JOB:
        announce(f"this job has finished before ({how}): nothing to do")
        raise SystemExit(0)
    if start.verdict is Verdict.FINISHED_BY_SAME_SPEC:
        end_already_finished(store, start.step, or_else, progress)
    raise OutputFinished(
        f"{store.directory.parent} holds a training that {how}, and {total_steps} steps are asked for: ask "
        f"for more to go on, or {or_else}"
    )


def end_already_finished(store: CheckpointStore, step: int, or_else: str, progress: ProgressFile) -> NoReturn:
    """End a job whose spec is that of an earlier job which finished in this folder: SystemExit (code 0).

    Tools that apply manifests create a job again once its TTL has deleted it.
    """
    final = store.final() or FinalMarker(step, "")  # this machine may not see it yet
    progress.update(
        state="finished",
        step=final.ended_at,
        stopped_early=final.stopped_early or None,
        already_finished=True,
    )
    announce(
        f"{store.directory.parent} holds a training of the same spec that {final.words}: nothing to do; to "
        f"train again, {or_else}"
    )
    raise SystemExit(0)


def _verdict(final: FinalMarker, job_uid: str, spec: str = "") -> Verdict:
    if job_uid and final.job_uid == job_uid:
        return Verdict.FINISHED_BY_THIS_JOB
    return Verdict.FINISHED_BY_SAME_SPEC if spec and final.spec == spec else Verdict.FINISHED_BY_ANOTHER


# Settings that the script has changed since the checkpoint.


SETTINGS = "settings"
"""Group of a checkpoint of the library: `settings_of` the training; older checkpoints have none."""
IN_A_CALLBACK = "set model.optimizer.learning_rate in a callback's on_train_begin"
"""How a script sets its own learning rate: the callback runs after the checkpoint's has replaced it."""


def settings_of(optimizer: Any, **others: Any) -> dict[str, Any]:
    """Return the settings of a training at its start, for `describe_differences`.

    The optimizer is as the script compiled it: nothing has been restored. `others` are further settings by
    name, such as the global batch; an unknown one is None, and left out.
    """
    scaled = getattr(optimizer, "inner_optimizer", None)  # of a loss-scaling one, which mixed_float16 adds
    configs = [one.get_config() for one in (optimizer, scaled) if one is not None]
    config = {name: value for one in configs for name, value in one.items()}
    simple = {name: value for name, value in config.items() if isinstance(value, (bool, int, float))}
    if isinstance(config.get("learning_rate"), Mapping):
        simple["learning_rate"] = config["learning_rate"].get("class_name", "a schedule")
    return {**simple, **{name: value for name, value in others.items() if value is not None}}


def go_on_with_settings(
    saved: Mapping[str, Any], now: Mapping[str, Any], to_have_it: str, *, is_writer: bool
) -> dict[str, Any]:
    """Return the settings in force; the writer logs what has changed, as `describe_differences`."""
    for line in describe_differences(saved, now, to_have_it) if is_writer else ():
        notice(line)
    return settings_in_force(saved, now)


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
            change = (
                f"{name.replace('_', ' ')} is {_shown(here)} in the script and was {_shown(then)} until here"
            )
            found.append(f"{change}: {_what_holds(name, then, here, to_have_it)}")
    return found


def settings_in_force(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for the next checkpoint: the script's, except what is restored."""
    both = set(saved) & set(now)
    return {**now, **{name: saved[name] for name in both if _is_restored(name, saved[name], now[name])}}


def _is_restored(name: str, then: Any, here: Any) -> bool:
    return name == "learning_rate" and not {str} & {type(then), type(here)}


def _what_holds(name: str, then: Any, here: Any, to_have_it: str) -> str:
    if _is_restored(name, then, here):
        return f"training goes on with the checkpoint's. To have the script's, {to_have_it}"
    if name == "seed":
        return (
            "the order of examples follows the script's, and dropout goes on from the checkpoint's; change "
            "it back to have both of one seed"
        )
    return "training goes on with the script's; change it back to have the other"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
