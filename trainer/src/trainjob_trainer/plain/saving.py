"""Checkpoints of `fit`: what they hold, when the writer saves one, and how a later attempt resumes."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from trainjob_trainer.checkpoint.snapshot import HostGroups, NamedArray, VariableGroups, assign, read
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore
from trainjob_trainer.distribution.collective import broadcast, check_same_weights
from trainjob_trainer.engine.callbacks import keep_files, remembered, remembered_weights
from trainjob_trainer.engine.metric_state import METRICS, MetricState
from trainjob_trainer.engine.model_state import further_groups
from trainjob_trainer.errors import InvalidConfiguration, OutputFinished
from trainjob_trainer.plain.fit_call import (
    GROUP,
    KEPT_CALLS,
    FitState,
    PastCall,
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


def groups_of(model: Any, *, with_optimizer: bool) -> VariableGroups:
    """Return the variables to save or restore; create the optimizer's if they don't exist yet."""
    groups: dict[str, list[Any]] = {"model": list(model.variables)}
    optimizer = getattr(model, "optimizer", None)
    if with_optimizer and optimizer is not None:
        if not optimizer.built:
            with model.distribute_strategy.scope():
                optimizer.build(model.trainable_variables)
        groups["optimizer"] = list(optimizer.variables)
    return groups


def all_groups_of(model: Any) -> VariableGroups:
    """Return the variables of a checkpoint; Keras's random state already exists in the strategy's scope."""
    return {**groups_of(model, with_optimizer=True), **further_groups(model)}


def compare_weights(process: PlainProcess, call: ScriptCall, model: Any) -> None:
    """Compare weights between steps, before saving. All workers call it; raises as `WeightsWatch.compare`."""
    if call.weights is not None:
        variables = all_groups_of(model)
        call.weights.compare(variables, process.step)


_SAVE, _STOP, _END = 1, 2, 4


def between_calls(
    process: PlainProcess,
    call: ScriptCall,
    model: Any,
    users: list[Any],
    batches: int = 0,
    *,
    before_validation: bool = False,
) -> None:
    """Save if a checkpoint is due, and end the process if a stop is requested. All workers call it together.

    `batches` is the number of batches taken of the current epoch; 0 at an epoch's end. There training ends on
    all workers if the writer's `stop_training` is set, and nothing is saved. Before a validation a checkpoint
    is saved only if a stop is requested: otherwise it waits for the epoch's end and the epoch's metrics.

    Raises:
        OutputFull, OutputUnwritable: this or an earlier checkpoint can't be written.
        Fenced, OutputTaken: a newer start of this job, or another job, has taken over the output.
        NotFinite: the weights are not finite.
        WeightsDiverged, PeerLost: as `WeightsWatch.compare`.
        Preempted: a stop was requested; the current state is saved.
    """
    writer = call.record.writer

    def wishes() -> int:
        if model.stop_training and not batches:
            return _END
        if not process.is_writer:
            return 0
        writer.watch()
        is_due = call.times.is_due(process.step, epoch_ends=not batches, is_writing=writer.is_writing)
        return _SAVE * (is_due and not before_validation) + _STOP * process.stop.requested

    now = not batches or before_validation or call.times.has_come(process.step)
    wished = call.looks.after_call(wishes, now=now)
    if not batches:
        model.stop_training = bool(wished & _END)
    if not wished or wished & _END:
        return
    with call.times.saving(process.step):
        compare_weights(process, call, model)
        metrics = call.metrics.state() if batches else []
        writer.between_steps(
            process.step,
            call.epoch,
            True,
            lambda: _snapshot(call, model, users, batches, metrics),
            _ended(call),
            is_stopping=bool(wished & _STOP),
        )


def save_end(process: PlainProcess, call: ScriptCall, model: Any, users: list[Any]) -> None:
    """Write the checkpoint of a call's end, and wait for it. Only the writer calls it.

    The call is the last of its record's `past`. Raises OutputFull or OutputUnwritable if the checkpoint can't
    be written, and NotFinite if the weights are not finite.
    """
    call.record.writer.save_last(
        process.step,
        call.epoch,
        lambda: _snapshot(call, model, users, complete=True),
        _ended(call),
        says_more=True,
    )
    call.record.saved = process.step


def _ended(call: ScriptCall) -> list[int]:
    return [one.step for one in call.record.past[-KEPT_CALLS:]]


def _snapshot(
    call: ScriptCall,
    model: Any,
    users: list[Any],
    batches: int = 0,
    metrics: Sequence[NamedArray] = (),
    *,
    complete: bool = False,
) -> HostGroups:
    past = list(call.record.past)
    if not complete:
        past.append(PastCall(tuple(call.epochs_run), dict(call.history)))
    state = FitState(
        call=call.number,
        epochs_done=call.epoch,
        epochs_asked=call.epochs,
        complete=complete,
        past=tuple(past),
        callbacks=remembered(users),
        settings=call.settings,
        batches_done=batches,
    )
    variables = all_groups_of(model)
    values = read(variables)
    if call.watch is not None:
        call.watch.check_weights(variables, values)
    return {**values, METRICS: list(metrics), GROUP: state.to_arrays(), **remembered_weights(users)}


# Resuming a call of `fit` where an earlier attempt left it, on all workers.


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
    if call.plan is ResumePlan.RESUME and call.number == state.call:
        if _are_same_batches(state.settings, call.settings):
            call.midway = state.epochs_done, state.batches_done
        _go_on_with_settings(process, call, state)


def _are_same_batches(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a number of batches still stands for the same examples."""
    return all(then.get(name) == now.get(name) for name in ("global_batch", "steps_of_an_epoch"))


def read_variables(model: Any) -> HostGroups:
    """Return the values of all variables that a checkpoint would hold."""
    return read(all_groups_of(model))


def resume_midway(process: PlainProcess, call: ScriptCall, model: Any, before: HostGroups) -> None:
    """Resume within an epoch, if the checkpoint was written there.

    Undo what callbacks did at the epoch's begin, since the checkpoint already includes it: one may multiply
    the learning rate each time. `before` is `read_variables` of the model, before those callbacks.
    """
    host, call.resumed_groups = call.resumed_groups, {}
    if call.batches_before:
        assign(all_groups_of(model), before)
        MetricState(model).put_back(host.get(METRICS, ()), is_writer=process.is_writer)


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
    groups = dict(groups_of(model, with_optimizer=with_optimizer))
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
    call.resumed = state
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
