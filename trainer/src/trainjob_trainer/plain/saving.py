"""What a checkpoint of `fit` holds, and when worker 0 writes one."""

from __future__ import annotations

from typing import Any

from trainjob_trainer.checkpoint.snapshot import VariableGroups, read
from trainjob_trainer.engine.model_state import further_optimizers
from trainjob_trainer.plain.fit_call import GROUP, KEPT_CALLS, FitCall, FitState, PastCall
from trainjob_trainer.plain.memory import remembered, remembered_weights
from trainjob_trainer.plain.process import PlainProcess


def groups_of(model: Any, *, with_optimizer: bool) -> VariableGroups:
    """The variables to save or restore; the optimizer's are created if they don't exist yet."""
    groups: dict[str, list[Any]] = {"model": list(model.variables)}
    optimizer = getattr(model, "optimizer", None)
    if with_optimizer and optimizer is not None:
        if not optimizer.built:
            with model.distribute_strategy.scope():
                optimizer.build(model.trainable_variables)
        groups["optimizer"] = list(optimizer.variables)
    return groups


def compare_weights(process: PlainProcess, call: FitCall, model: Any) -> None:
    """Before a checkpoint, between two steps. All workers call it.

    Raises:
        WeightsDiverged, PeerLost: as `WeightsWatch.compare`.
    """
    if call.weights is not None:
        variables = {**groups_of(model, with_optimizer=True), **further_optimizers(model)}
        call.weights.compare(variables, process.step)


def save(
    process: PlainProcess, call: FitCall, model: Any, users: list[Any], *, complete: bool = False
) -> None:
    """Write a checkpoint of this moment, between two steps. Only the writer calls it.

    Args:
        process: the writer's.
        call: the `fit` under way.
        model: its model.
        users: the script's callbacks.
        complete: whether the call has ended.

    Raises:
        OutputFull, OutputUnwritable: it can't be written.
        NotFinite: the weights are not.
    """
    record = call.record
    past = list(record.past)
    if not complete:
        past.append(PastCall(tuple(call.epochs_run), call.history))
    state = FitState(
        call=call.number,
        epochs_done=call.epoch,
        epochs_asked=call.epochs,
        complete=complete,
        past=tuple(past),
        callbacks=remembered(users),
        settings=call.settings,
    )
    process.progress.update(state="saving")
    variables = {**groups_of(model, with_optimizer=True), **further_optimizers(model)}
    values = read(variables)
    if call.watch is not None:
        call.watch.check_weights(variables, values)
    groups = {
        **values,
        GROUP: state.to_arrays(),
        **remembered_weights(users),
    }
    ended = [one.step for one in record.past[-KEPT_CALLS:]]
    record.store.save(process.step, call.epoch, groups, process.environment.uid, spared=ended)
    record.saved = process.step
    process.progress.update(state="training", checkpoint_step=process.step)
