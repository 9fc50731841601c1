"""A call of `fit` resumes where an earlier attempt left it, on all workers."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras

from trainjob_trainer.checkpoint.snapshot import HostGroups, assign
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore
from trainjob_trainer.distribution.collective import broadcast, check_same_weights, is_collective
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.identity import DATA, HELDOUT, Identity, digest, digest_of_arrays, find_site, key_of
from trainjob_trainer.keras.callback_state import keep_files
from trainjob_trainer.keras.fit_call import (
    KEPT_CALLS,
    FitCall,
    FitState,
    choose_plan,
)
from trainjob_trainer.keras.model import further_groups, tell_unsaved, variable_groups
from trainjob_trainer.keras.trainer import has_call
from trainjob_trainer.reporting.progress import announce, notice
from trainjob_trainer.resume import (
    ARRIVAL_SECONDS,
    ResumePlan,
    describe_differences,
    read_agreed,
    refuse_finished,
    set_aside_damaged,
    settings_in_force,
    settings_of,
)
from trainjob_trainer.session import Session, is_seeded_by_user

_DATA = ("x", "y", "sample_weight", "class_weight")


def restore(
    session: Session,
    call: FitCall,
    model: Any,
    arguments: Mapping[str, Any],
    users: list[Any],
    epoch_steps: int | None,
) -> None:
    """Choose the call's resume plan, and restore what it needs. Keras calls it once the model is built.

    `arguments` are those of `fit`; `epoch_steps` is None if the steps of an epoch are unknown.

    Raises:
        OutputFinished: there is nothing left to train.
        CheckpointUnavailable: the folder can't be read, or a reported checkpoint is missing.
    """
    call.settings, call.kept.iterators = _settings(call, model, epoch_steps), 0
    strategy, record = model.distribute_strategy, call.record
    number, step, plan, before, read = 0, 0, ResumePlan.TRAIN, 0, None
    if session.is_writer:
        tell_unsaved(model)
        call.kept.identity = _identify(call, model, arguments)
        number, step, plan, before, read = _decide(session, call, call.kept.identity)
    elif not is_collective(strategy):
        return  # it trains alone, and what is saved is another process's
    number, step, chosen, before = broadcast(strategy, session.task, [number, step, plan, before])
    plan = ResumePlan(chosen)
    asked = f"this fit requests only {call.epochs} epochs: request more epochs of the same fit"
    over = session.environment.how_to_start_over
    refuse_finished(plan, session.trainings.root, asked, over, session.progress)
    call.plan, session.step = plan, max(session.step, before)
    call.times.step = session.step
    if not record.number:
        record.number, record.store = number, session.trainings.store(number)
        record.writer.write_into(record.store)
    if plan in (ResumePlan.TRAIN, ResumePlan.ANEW):
        return
    _check_built(model, record.store)
    checkpoint, host = read or read_agreed(record.store, step, ARRIVAL_SECONDS)
    state = FitState.from_groups(host)
    if call.number < state.call:
        checkpoint, host = _end_of(session, model, call, state) or (checkpoint, host)
    is_own = FitState.from_groups(host).call == call.number
    _assign(session, model, host, with_optimizer=is_own)
    _go_on_from(session, call, state, checkpoint.step)
    goes_on = plan is ResumePlan.RESUME
    call.data.replay(call, arguments["validation_data"], arguments["validation_steps"], goes_on=goes_on)
    call.resumed_groups = host
    keep_files(users)
    model._initial_epoch = call.epochs if plan is ResumePlan.SKIP else state.epochs_done
    if session.is_writer:
        where = f"epoch {state.epochs_done} of {call.epochs}"
        where += f" and {state.batches_done} batches" if state.batches_done else ""
        where = f"fit {call.number} had ended" if plan is ResumePlan.SKIP else where
        announce(f"resumed from step {checkpoint.step} ({where}, {checkpoint.path})")
    if plan is ResumePlan.RESUME:
        call.remembered = () if state.complete else state.callbacks
        then, now = state.settings, call.settings
        if all(then.get(name) == now.get(name) for name in ("global_batch", "steps_of_an_epoch")):
            call.midway = state.epochs_done, state.batches_done
        else:
            call.kept.taken = 0  # that epoch starts over
        remedy = over
        if not session.task.is_coordinator:  # a callback runs after the checkpoint's rate has been restored
            remedy = f"set model.optimizer.learning_rate in a callback's on_train_begin, or {over}"
        for line in describe_differences(then, now, remedy) if session.is_writer else ():
            notice(line)
        call.settings = settings_in_force(then, now)


def _identify(call: FitCall, model: Any, arguments: Mapping[str, Any]) -> Identity:
    site = find_site()
    settings = {name.replace("_", " "): str(value) for name, value in call.settings.items()}
    try:
        config: Any = [model.get_config(), model.get_compile_config()]
    except Exception:  # noqa: BLE001 - whatever a model of the user's own may raise
        config = type(model).__name__
    particulars = {**settings, **site.variables, "the model": digest(config), **data_of(arguments)}
    return Identity(*key_of(site, model), call.record.epochs, particulars)


def data_of(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the particulars of the data that a call of `fit` has, and holds out."""
    parts = {DATA: [arguments[name] for name in _DATA], HELDOUT: arguments["validation_data"]}
    given = {name: keras.tree.flatten(value) for name, value in parts.items()}
    return {
        name: digest_of_arrays(ones) for name, ones in given.items() if any(one is not None for one in ones)
    }


_Decision = tuple[int, int, ResumePlan, int, tuple[Checkpoint, HostGroups] | None]
"""The writer's: the number of the training, its newest step, the plan, steps before it, what was read."""


def _decide(session: Session, call: FitCall, identity: Identity) -> _Decision:
    record, trainings, environment = call.record, session.trainings, session.environment
    found = None if record.number else trainings.find(identity, environment.reported_checkpoint)
    number, final = found.number if found else record.number, trainings.root.final()
    store = trainings.store(number)
    read = store.read_latest() if number else None
    newest = read[0] if read else None
    state = FitState.from_groups(read[1]) if read else None
    plan = choose_plan(
        state,
        identity,
        number=call.number,
        epochs=call.epochs,
        is_same_job=newest is not None and bool(environment.uid) and newest.job_uid == environment.uid,
        is_finished=final is not None and final.step > 0,
        is_same_spec=final is not None and bool(environment.spec) and final.spec == environment.spec,
    )
    step = newest.step if newest else 0
    if plan in (ResumePlan.FINISHED, ResumePlan.ALREADY_FINISHED):
        return number, step, plan, 0, None
    if plan is not ResumePlan.SKIP:
        trainings.root.clear_final()
    if not number or (found and plan is ResumePlan.ANEW):
        before = max(trainings.root.known_steps(), default=0)
        return trainings.begin(identity), 0, ResumePlan.TRAIN, before, None
    if found:
        found.is_taken = True
        store.prepare()
    if plan is ResumePlan.ANEW:
        aside = store.set_aside(session.step, whole=True)
        notice(
            f"{identity.site} trains from the beginning (fit {call.number} of its model): what is saved of "
            f"step {', '.join(map(str, aside))} belongs to another call, and is set aside"
        )
    else:
        set_aside_damaged(store, step)
    if plan is ResumePlan.ANEW or (plan is ResumePlan.RESUME and state is not None and state.complete):
        trainings.close()
    return number, step, plan, 0, read


def _settings(call: FitCall, model: Any, epoch_steps: int | None) -> dict[str, Any]:
    context = importlib.import_module("tensorflow.python.eager.context")
    seed = context.global_seed() if is_seeded_by_user(context) else None
    return settings_of(
        model.optimizer, global_batch=call.batch_size, steps_of_an_epoch=epoch_steps, seed=seed
    )


def _end_of(
    session: Session, model: Any, call: FitCall, state: FitState
) -> tuple[Checkpoint, HostGroups] | None:
    """Return the checkpoint of an earlier call's end, if it still exists; all workers call it together."""
    store, past = call.record.store, list(state.past)
    step = past[call.number - 1].step if call.number <= len(past) else 0
    if session.is_writer and step not in store.steps():
        step = 0
    (step,) = broadcast(model.distribute_strategy, session.task, [step])
    if step:
        return read_agreed(store, step, 0.0 if session.is_writer else ARRIVAL_SECONDS)
    if session.is_writer:
        notice(
            f"the weights that fit {call.number} had ended with are no longer there (the {KEPT_CALLS} newest "
            "are kept): the model has those of the newest checkpoint"
        )
    return None


def _check_built(model: Any, store: CheckpointStore) -> None:
    if not (model.built if has_call(model) else all(one.built for one in model.layers)):
        raise InvalidConfiguration(
            f"{store.directory} holds a training to continue, but the model has no variables yet: build it "
            "before fit(), with a keras.Input as its first layer or by calling it on a batch"
        )


def _assign(session: Session, model: Any, host: HostGroups, *, with_optimizer: bool) -> None:
    groups = dict(variable_groups(model, with_optimizer=with_optimizer))
    if with_optimizer:
        groups |= {name: ones for name, ones in further_groups(model).items() if name in host}
    assign(groups, host)
    check_same_weights(model.distribute_strategy, session.task, groups)


def _go_on_from(session: Session, call: FitCall, state: FitState, step: int) -> None:
    record, earlier = call.record, list(state.past)
    session.step = call.times.step = max(session.step, step)
    record.past = earlier[: call.number - 1]
    if call.number == state.call:
        call.epoch = state.epochs_done
    if call.number <= len(earlier):
        end = step if call.plan is ResumePlan.SKIP else 0
        call.kept = replace(earlier[call.number - 1], step=end, identity=call.kept.identity)
    session.progress.update(step=session.step, resumed_from=session.step, checkpoint_step=session.step)
