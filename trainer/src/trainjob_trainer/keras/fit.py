"""`fit` in a training role: it resumes earlier training, saves between two calls, and reports."""

from __future__ import annotations

import atexit
import gc
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer.checkpoint.files import Files
from trainjob_trainer.checkpoint_manager import CheckpointWriter
from trainjob_trainer.distribution.collective import broadcast, gather_all, is_collective
from trainjob_trainer.distribution.divergence import WeightsWatch
from trainjob_trainer.distribution.strategy import is_mirrored
from trainjob_trainer.environment import is_smoke
from trainjob_trainer.errors import TrainerError, first_line, is_tensorflows
from trainjob_trainer.keras.callback_state import TEST_METHODS, TRAIN_METHODS, sees_batches
from trainjob_trainer.keras.callbacks import AtBegin, AtEnd, listed, with_ours
from trainjob_trainer.keras.fit_call import FitCall, ModelRecord, SaveTimes, Seen
from trainjob_trainer.keras.model import checkpoint_groups, create_random_state, tell_unsynchronized
from trainjob_trainer.keras.not_finite import FiniteWatch, OnNan
from trainjob_trainer.keras.pace import Looks, StepsPerExecution
from trainjob_trainer.keras.restoring import restore
from trainjob_trainer.keras.strategy import bring_in, is_one_of_several, meet, report_alone
from trainjob_trainer.keras.trainer import errors_explained
from trainjob_trainer.keras.writers import isolate
from trainjob_trainer.reporting.progress import announce, notice
from trainjob_trainer.resume import ResumePlan, end_if_finished
from trainjob_trainer.session import Session, end_on_request


def train(session: Session, fit: Callable[..., Any], model: Any, arguments: dict[str, Any]) -> Any:
    """Run one call of `fit` and return its `History`, earlier attempts' epochs included.

    Raises InvalidConfiguration if TRAIN_ON_NAN or TRAIN_COMPARE_WEIGHTS has an invalid value, OutputFinished
    if another job finished in this folder and no more epochs are requested (SystemExit if this job did), and
    NotFinite for a step's loss or gradient. Other errors are those of `AtEnd`.
    """
    if not model.compiled:
        return fit(model, **arguments)  # Keras reports what is missing
    if not session.count:  # without a strategy of several workers this has not run yet
        end_if_finished(session.trainings.root, session.environment.uid, session.progress)
        end_on_request(session)
        # Python's collection at its end waits for iterators whose threads wait for Python (`py_function`).
        atexit.register(gc.collect)
    bring_in(model)
    meet(session, model, "fit")
    session.progress.keep_fresh()
    if session.count:  # the first `fit` is part of the start
        session.progress.update(state="preparing")
    if is_smoke(os.environ):
        arguments |= {
            "epochs": int(arguments["initial_epoch"] or 0) + 1,
            "steps_per_epoch": 1,
            "validation_steps": 1,
            "validation_freq": 1,
        }
    strategy, users = model.distribute_strategy, listed(arguments.get("callbacks"))
    call = _begin(session, model, arguments, users)
    if is_one_of_several(session.task) and not is_collective(strategy):
        report_alone(session, f"fit {call.number} has {type(strategy).__name__.lstrip('_')}")
    if session.is_writer:
        tell_unsynchronized(model, strategy.num_replicas_in_sync)
    with strategy.scope():
        create_random_state()
    if getattr(model.train_function, "watched_for", None) is not call.watch.on_nan:
        model.train_function = None  # made by `train_on_batch`, for example, which does not watch gradients
    isolate(users)
    data = dict(arguments)
    first = AtBegin(lambda steps: restore(session, call, model, data, users, steps), session.claim_output)
    last = AtEnd(session, call, users)
    arguments["callbacks"] = with_ours(arguments.get("callbacks"), first, last, model)
    try:
        with call.record.writer.patient(), errors_explained():
            history = fit(model, **arguments)
            _end(session, call, last)
    except BaseException:
        call.record.past.append(call.as_past(failed=True))  # the script may catch it and go on
        raise
    finally:
        model._initial_epoch = None
        session.call = None
    if history is not None:
        history.epoch, history.history = list(call.kept.epochs), dict(call.kept.history)
    return history


def _begin(session: Session, model: Any, arguments: dict[str, Any], users: list[Any]) -> FitCall:
    strategy, task = model.distribute_strategy, session.task
    watch = FiniteWatch(_reaction(session, users), task)
    session.count += 1
    record = session.models.get(model)
    if record is None:
        store = session.trainings.root  # until the model is built, and it is known which training it is
        record = session.models[model] = ModelRecord(0, store, CheckpointWriter(session, store))
    record.calls += 1
    every = session.setting("checkpoint_every")
    session.call = call = FitCall(
        record=record,
        number=record.calls,
        epochs=int(arguments["epochs"]),
        times=SaveTimes(every, session.step),
        looks=Looks(lambda numbers: broadcast(strategy, task, numbers)),
        watch=watch,
        weights=WeightsWatch(strategy, task, wanted=session.setting("compare_weights")),
        every=every,
        epoch=int(arguments.get("initial_epoch") or 0),
        rereads=session.setting("resume_data"),
    )
    if is_mirrored(strategy):
        sees = [any(sees_batches(one, methods) for one in users) for methods in (TRAIN_METHODS, TEST_METHODS)]
        call.seen = Seen(*map(any, zip(*gather_all(strategy, task, list(map(int, sees))), strict=True)))
        if not call.seen.batches and model._takes_many():
            call.executions = StepsPerExecution(lambda number: broadcast(strategy, task, [number])[0])
    return call


def _reaction(session: Session, users: list[Any]) -> OnNan:
    """Return the reaction to NaN: a script's own callback decides, unless a setting does."""
    is_set = os.environ.get("TRAIN_ON_NAN") or session.settings.get("on_nan")
    if any(isinstance(one, keras.callbacks.TerminateOnNaN) for one in users) and not is_set:
        return OnNan.IGNORE
    return OnNan(session.setting("on_nan"))


def _end(session: Session, call: FitCall, last: AtEnd) -> None:
    """Save the state after the call, and wait for that: callbacks may have restored other weights at its end.

    Raises OutputUnwritable if the checkpoint can't be written, and NotFinite if the weights are not finite.
    """
    if call.plan is ResumePlan.SKIP:
        call.record.past.append(call.as_past())
        return
    call.record.past.append(call.as_past(step=session.step))
    call.weights.compare(checkpoint_groups(last.model), session.step)
    if session.is_writer:
        if call.epoch < call.epochs:
            why = [
                f"EarlyStopping has seen no better {one.monitor} than in epoch {one.best_epoch + 1}"
                + (", whose weights the model has" if one.restore_best_weights else "")
                for one in last.users
                if isinstance(one, keras.callbacks.EarlyStopping) and one.stopped_epoch
            ]
            reason = "; ".join(why) or "a callback has set stop_training"
            notice(f"training ended after epoch {call.epoch} of {call.epochs}: {reason}")
        record = call.record
        record.writer.save_last(
            session.step, call.epoch, lambda: last.saved(complete=True), record.ends, says_more=True
        )
        is_first, session.trained = session.trained is None, last.model
        if is_first and session.task.cluster:
            atexit.register(leave_model, session)  # the script may train further
    session.progress.update(state="preparing")  # the script takes no steps now
    session.progress.flush()


# The trained model as files that don't need this package: Keras's own format, and a SavedModel.


FOLDER = "model"
KERAS_FILE = "model.keras"
SAVED_MODEL = "saved_model"


def leave_model(session: Session) -> None:
    """Write the model of the last `fit` to `<output>/model` at the end of the script.

    In a replica's context the writer reads variables by itself: the other workers may have ended. A format
    that fails is logged and left out; the weights are in the final checkpoint anyway.
    """
    model, folder = session.trained, session.environment.output_dir / FOLDER
    written: list[str] = []

    def save(path: Path) -> None:
        with tf.distribute.ReplicaContext(model.distribute_strategy, 0):
            model.save(path)

    def export(path: Path) -> None:
        known = {type(one).__name__: type(one) for one in (model, *model._flatten_layers())}
        with tf.device("CPU:0"):
            copy = keras.models.load_model(path.with_name(KERAS_FILE), known, compile=False)
            copy.export(path, verbose=False)

    def fill(place: Path) -> None:
        forms = {KERAS_FILE: save, SAVED_MODEL: export}
        written[:] = [name for name, write in forms.items() if _write(place / name, write)]

    if not session.setting("export"):
        return
    try:
        session.trainings.root.publish(folder, fill)
    except TrainerError as error:
        notice(f"the model isn't saved as a file: {error}")
        return
    if written:
        announce(f"the model is in {folder}: {' and '.join(written)}")
    else:
        with suppress(OSError):
            folder.rmdir()


def _write(path: Path, write: Callable[[Path], None]) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from Keras and NumPy, not from the user
            write(path)
    except Exception as error:
        if isinstance(error, OSError) or is_tensorflows(error):
            raise  # of the folder; whatever a layer of the user's may raise is another
        Files().remove(path)  # it may be incomplete
        notice(f"the model can't be written as {path.name}: {first_line(error)}")
        return False
    return True
