"""A call of `fit` resumes where an earlier attempt left it, on all workers."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from trainjob_trainer.checkpoint.snapshot import HostGroups, assign
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore
from trainjob_trainer.distribution.collective import broadcast, check_same_weights
from trainjob_trainer.engine.callbacks import keep_files
from trainjob_trainer.engine.model_state import further_groups, variable_groups
from trainjob_trainer.errors import InvalidConfiguration, OutputFinished
from trainjob_trainer.plain.fit_call import (
    KEPT_CALLS,
    FitState,
    ResumePlan,
    ScriptCall,
    choose_plan,
)
from trainjob_trainer.plain.keras_repair import has_call, is_collective
from trainjob_trainer.plain.process import PlainProcess, is_seeded_by_user
from trainjob_trainer.reporting.progress import announce
from trainjob_trainer.resume import (
    ARRIVAL_SECONDS,
    IN_A_CALLBACK,
    describe_differences,
    read_agreed,
    refuse_lost,
    set_aside_damaged,
    settings_in_force,
    settings_of,
)


def restore(
    process: PlainProcess, call: ScriptCall, model: Any, users: list[Any], epoch_steps: int | None
) -> None:
    """Choose the call's resume plan, and restore what it needs. Keras calls it once the model is built.

    `epoch_steps` is None if the steps of an epoch are unknown.

    Raises:
        OutputFinished: there is nothing left to train.
        CheckpointUnavailable: the folder can't be read, or a reported checkpoint is missing.
        CheckpointMismatch: the checkpoint belongs to another model.
    """
    store = call.record.store
    call.settings = _settings(call, model, epoch_steps)
    if process.is_writer:
        store.prepare()
    step, finished = _agreed(process, model, store)
    if not step:
        return
    checkpoint, host = read_agreed(store, step, 0.0 if process.is_writer else ARRIVAL_SECONDS)
    state = FitState.from_groups(host, checkpoint, finished=finished)
    call.plan = choose_plan(state, number=call.number, epochs=call.epochs, script_finished=finished)
    if call.plan is ResumePlan.FINISHED:
        raise _finished(process, call, state, step)
    if call.plan is ResumePlan.TRAIN:
        return
    _check_built(model, store)
    if call.number < state.call:
        checkpoint, host = _end_of(process, model, call, state) or (checkpoint, host)
    own = FitState.from_groups(host, checkpoint, finished=finished).call == call.number
    _assign(process, model, host, with_optimizer=own)
    _go_on_from(process, call, state, checkpoint.step)
    call.resumed_groups = host
    keep_files(users)
    model._initial_epoch = call.epochs if call.plan is ResumePlan.SKIP else state.epochs_done
    if process.is_writer:
        if finished and call.plan is ResumePlan.RESUME:
            store.clear_final()
        _announce(call, state, checkpoint)
    if call.plan is ResumePlan.RESUME and not state.complete:
        call.remembered = state.callbacks
    if call.plan is ResumePlan.RESUME and call.number == state.call:
        if _are_same_batches(state.settings, call.settings):
            call.midway = state.epochs_done, state.batches_done
        _go_on_with_settings(process, call, state)


def _are_same_batches(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a number of batches still stands for the same examples."""
    return all(then.get(name) == now.get(name) for name in ("global_batch", "steps_of_an_epoch"))


def _go_on_with_settings(process: PlainProcess, call: ScriptCall, state: FitState) -> None:
    remedy = f"{IN_A_CALLBACK}, or {process.environment.how_to_start_over}"
    if process.is_writer:
        for line in describe_differences(state.settings, call.settings, remedy):
            announce(line)
    call.settings = settings_in_force(state.settings, call.settings)


def _settings(call: ScriptCall, model: Any, epoch_steps: int | None) -> dict[str, Any]:
    context = importlib.import_module("tensorflow.python.eager.context")
    seed = context.global_seed() if is_seeded_by_user(context) else None
    return settings_of(
        model.optimizer, global_batch=call.batch_size, steps_of_an_epoch=epoch_steps, seed=seed
    )


def _agreed(process: PlainProcess, model: Any, store: CheckpointStore) -> tuple[int, bool]:
    """Return the writer's view of the folder on every worker: newest step, and whether it is final."""
    strategy = model.distribute_strategy
    collective = is_collective(strategy)
    view = [0, 0]
    if process.is_writer or not collective:
        newest = store.latest()
        view = [newest.step if newest else 0, int(store.final() is not None)]
        if process.is_writer:
            if store.directory == process.environment.checkpoint_dir:  # only the first model checks
                refuse_lost(store, view[0], process.environment.reported_checkpoint)
            set_aside_damaged(store, view[0])
    if collective:
        view = broadcast(strategy, process.task, view)
    return view[0], bool(view[1])


def _end_of(
    process: PlainProcess, model: Any, call: ScriptCall, state: FitState
) -> tuple[Checkpoint, HostGroups] | None:
    """Return the checkpoint of an earlier call's end, if it still exists; all workers call it together."""
    store, past = call.record.store, list(state.past)
    step = past[call.number - 1].step if call.number <= len(past) else 0
    if process.is_writer and step not in store.steps():
        step = 0
    if is_collective(model.distribute_strategy):
        step = broadcast(model.distribute_strategy, process.task, [step])[0]
    if step:
        return read_agreed(store, step, 0.0 if process.is_writer else ARRIVAL_SECONDS)
    if process.is_writer:
        announce(
            f"the weights that fit {call.number} had ended with are no longer there (the {KEPT_CALLS} newest "
            "are kept): the model has those of the newest checkpoint"
        )
    return None


def _finished(process: PlainProcess, call: ScriptCall, state: FitState, step: int) -> OutputFinished:
    return OutputFinished(
        f"{call.record.store.directory.parent} holds a training that finished at step {step}, epoch "
        f"{state.epochs_done} of {state.epochs_asked}, and {call.epochs} epochs are asked for: ask for more "
        f"to go on, or {process.environment.how_to_start_over}"
    )


def _check_built(model: Any, store: CheckpointStore) -> None:
    if not (model.built if has_call(model) else all(one.built for one in model.layers)):
        raise InvalidConfiguration(
            f"{store.directory} holds a training to go on with, but the model has no variables yet: build it "
            "before fit(), with a keras.Input as its first layer or by calling it on a batch"
        )


def _assign(process: PlainProcess, model: Any, host: HostGroups, *, with_optimizer: bool) -> None:
    groups = dict(variable_groups(model, with_optimizer=with_optimizer))
    if with_optimizer:
        further = further_groups(model)
        groups.update({name: further[name] for name in further if name in host})
    assign(groups, host)
    if is_collective(model.distribute_strategy):
        check_same_weights(model.distribute_strategy, process.task, groups)


def _go_on_from(process: PlainProcess, call: ScriptCall, state: FitState, step: int) -> None:
    record, earlier = call.record, list(state.past)
    record.saved = step
    process.step = call.times.step = max(process.step, step)
    record.past = earlier[: call.number - 1]
    call.skipped_to = step
    if call.number == state.call:
        call.epoch = state.epochs_done
    if call.number <= len(earlier):
        own = earlier[call.number - 1]
        call.epochs_run = list(own.epochs)
        call.history = {name: list(values) for name, values in own.history.items()}
    process.progress.update(step=process.step, resumed_from=process.step, checkpoint_step=process.step)


def _announce(call: ScriptCall, state: FitState, checkpoint: Checkpoint) -> None:
    where = f"epoch {state.epochs_done} of {call.epochs}"
    where += f" and {state.batches_done} batches" if state.batches_done else ""
    if call.plan is ResumePlan.SKIP:
        where = f"fit {call.number} had ended"
    announce(f"resumed from step {checkpoint.step} ({where}, {checkpoint.path})")
