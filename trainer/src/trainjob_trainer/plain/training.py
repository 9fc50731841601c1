"""`fit` in a training role: it resumes earlier training, saves between two calls, and reports."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer.checkpoint_manager import CheckpointWriter
from trainjob_trainer.distribution.collective import broadcast, is_collective
from trainjob_trainer.distribution.divergence import WeightsWatch
from trainjob_trainer.engine.metric_state import OverAll
from trainjob_trainer.engine.model_state import create_random_state, tell_unsynchronized
from trainjob_trainer.engine.not_finite import VARIABLE, FiniteWatch, OnNan
from trainjob_trainer.engine.steps_per_execution import Looks
from trainjob_trainer.environment import is_smoke
from trainjob_trainer.errors import TrainerError
from trainjob_trainer.plain.callbacks import AtBegin, AtEnd, listed, with_ours
from trainjob_trainer.plain.fit_call import ModelRecord, ResumePlan, SaveTimes, ScriptCall
from trainjob_trainer.plain.process import PlainProcess, end_on_request
from trainjob_trainer.plain.restoring import restore
from trainjob_trainer.plain.strategy import bring_in, is_one_of_several, meet, report_alone
from trainjob_trainer.plain.trainer import build_executions, errors_explained
from trainjob_trainer.plain.writers import isolate
from trainjob_trainer.recipe import from_environment
from trainjob_trainer.recorder import KERAS_FILE, save_model
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.progress import notice
from trainjob_trainer.resume import end_if_finished


def train(process: PlainProcess, fit: Callable[..., Any], model: Any, arguments: dict[str, Any]) -> Any:
    """Run one call of `fit` and return its `History`, earlier attempts' epochs included.

    Raises InvalidConfiguration if TRAIN_ON_NAN or TRAIN_COMPARE_WEIGHTS has an invalid value, OutputFinished
    if another job finished in this folder and no more epochs are requested (SystemExit if this job did), and
    NotFinite for a step's loss or gradient. Other errors are those of `AtEnd`.
    """
    if not model.compiled:
        return fit(model, **arguments)  # Keras reports what is missing
    if not process.count:  # without a strategy of several workers this has not run yet
        end_if_finished(process.trainings.root, process.environment.uid, process.progress)
        end_on_request(process)
        # Python's collection at its end waits for iterators whose threads wait for Python (`py_function`).
        atexit.register(gc.collect)
    bring_in(model)
    meet(process, model, "fit")
    process.progress.keep_fresh()
    if process.count:  # the first `fit` is part of the start
        process.progress.update(state="preparing")
    if is_smoke(os.environ):
        arguments |= {
            "epochs": int(arguments["initial_epoch"] or 0) + 1,
            "steps_per_epoch": 1,
            "validation_steps": 1,
            "validation_freq": 1,
        }
    users = listed(arguments.get("callbacks"))
    reaction = _reaction(users)
    call = _begin(process, model, arguments)
    if is_one_of_several(process.task) and not is_collective(model.distribute_strategy):
        report_alone(process, f"fit {call.number} has {type(model.distribute_strategy).__name__.lstrip('_')}")
    if process.is_writer:
        tell_unsynchronized(model, model.distribute_strategy.num_replicas_in_sync)
    with model.distribute_strategy.scope():
        create_random_state()
    call.watch = FiniteWatch(reaction, process.task)
    if getattr(model.train_function, "watched_for", None) is not reaction:
        model.train_function = None  # made by `train_on_batch`, for example, which does not watch gradients
    strategy = model.distribute_strategy
    wanted = from_environment("compare_weights", os.environ, True)
    call.weights = WeightsWatch(strategy, process.task, wanted=wanted)
    call.executions = build_executions(process, model, users)
    isolate(users)
    data = dict(arguments)
    first = AtBegin(lambda steps: restore(process, call, model, data, users, steps), process.claim_output)
    last = AtEnd(process, call, users)
    arguments["callbacks"] = with_ours(arguments.get("callbacks"), first, last, model)
    try:
        with call.record.writer.patient(), errors_explained():
            history = fit(model, **arguments)
            _end(process, call, last)
    except BaseException:
        call.record.past.append(call.as_past(failed=True))  # the script may catch it and go on
        raise
    finally:
        model._initial_epoch = None
        process.call = None
    if history is not None:
        history.epoch, history.history = call.epochs_run, call.history
    return history


def _begin(process: PlainProcess, model: Any, arguments: dict[str, Any]) -> ScriptCall:
    process.count += 1
    record = process.models.get(model) or _record(process)
    process.models[model] = record
    record.calls += 1
    strategy = model.distribute_strategy
    every = from_environment("checkpoint_every", os.environ, None)
    call = ScriptCall(
        record=record,
        number=record.calls,
        epochs=int(arguments["epochs"]),
        metrics=OverAll(strategy, model),
        times=SaveTimes(every, process.step),
        looks=Looks(lambda numbers: broadcast(strategy, process.task, numbers)),
        every=every,
        epoch=int(arguments.get("initial_epoch") or 0),
        has_begun=True,
        rereads=from_environment("resume_data", os.environ, "exact"),
    )
    process.call = call
    return call


def _record(process: PlainProcess) -> ModelRecord:
    store = process.trainings.root  # until the model is built, and it is known which training it is
    replica = Replica(process.task, process.environment, store, process.progress, process.stop)
    return ModelRecord(0, store, CheckpointWriter(replica))


def _reaction(users: list[Any]) -> OnNan:
    """Return the reaction to NaN: a script's own callback decides, unless the environment sets one."""
    if any(isinstance(one, keras.callbacks.TerminateOnNaN) for one in users) and not os.environ.get(VARIABLE):
        return OnNan.IGNORE
    return OnNan.from_environment(os.environ)


def _end(process: PlainProcess, call: ScriptCall, last: AtEnd) -> None:
    """Save the state after the call: callbacks may have restored other weights at its end."""
    step = call.skipped_to if call.plan is ResumePlan.SKIP else process.step
    call.record.past.append(call.as_past(step=step))
    if call.plan is ResumePlan.SKIP:
        return
    last.compare_weights(process.step)
    if process.is_writer:
        last.save_end()
        if process.trained is None:
            atexit.register(_leave_model, process, call.record.writer.replica)
        process.trained = last.model
    process.progress.update(state="preparing")  # the script takes no steps now
    process.progress.flush()


def _leave_model(process: PlainProcess, replica: Replica) -> None:
    """Write the model of the last `fit` to `<output>/model` as the script ends, as the library does.

    In a replica's context the writer reads variables by itself: the other workers may have ended.
    """
    model = process.trained

    def save(path: Path) -> None:
        with tf.distribute.ReplicaContext(model.distribute_strategy, 0):
            model.save(path)

    def export(path: Path) -> None:
        known = {type(one).__name__: type(one) for one in (model, *model._flatten_layers())}
        with tf.device("CPU:0"):
            copy = keras.models.load_model(path.with_name(KERAS_FILE), known, compile=False)
            copy.export(path, verbose=False)

    try:
        save_model(replica, save, export)
    except TrainerError as error:
        notice(f"the model isn't left as a file: {error}")
