"""`train_and_evaluate`: Keras's `fit` in every role, with a model and data as the job needs them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer import parameter_server
from trainjob_trainer.checkpoint.store import FinalMarker
from trainjob_trainer.distribution.strategy import build_strategy
from trainjob_trainer.environment import SETTINGS, is_smoke
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.keras.fit import leave_model
from trainjob_trainer.keras.metrics import scalars
from trainjob_trainer.keras.pipelines import batch_size_of, count_elements, shuffle_buffer
from trainjob_trainer.patches import prepare_loaded
from trainjob_trainer.reporting.progress import announce
from trainjob_trainer.reporting.summaries import Summaries
from trainjob_trainer.session import Session, join, running_as


@dataclass(frozen=True)
class Result:
    """The result of a finished call.

    Attributes:
        model: with its final weights.
        step: optimizer steps done, those of earlier starts included.
        metrics: of the last epoch; those of held-out examples have the prefix `val_`; with parameter
            servers there are none. The model's `history` has those of all epochs.
    """

    model: Any
    step: int
    metrics: Mapping[str, Any]


def train_and_evaluate(
    model: Any,
    train: Any,
    heldout: Any = None,
    *,
    callbacks: Sequence[Any] = (),
    class_weight: Mapping[int, float] | None = None,
    verbose: int | str = "auto",
    **settings: Any,
) -> Result:
    """Train a Keras model with as many workers as the job has, and evaluate it.

    Every replica runs the same file and the same call; TF_CONFIG sets its role. The workers call Keras's
    `fit`, which measures held-out examples after each epoch. An interrupted run resumes from its last
    checkpoint with the same batches, and ends with the same weights. The evaluator scores each checkpoint,
    and its process ends in this call. Without a job, one process trains.

    Args:
        model: a compiled Keras model, or a function that returns one, which is called within the strategy's
            scope. With parameter servers it must be a function.
        train: a `tf.data.Dataset` of examples, or of batches; a tuple of arrays: (x, y), or (x, y,
            sample_weight) of any structure that `from_tensor_slices` takes; a `keras.utils.PyDataset`; or a
            function that returns one of these. The evaluator doesn't call it. Batches keep their order;
            those of another size than `global_batch` are cut anew.
        heldout: the same, for evaluation; each example counts once. None evaluates nothing.
        callbacks: Keras's or your own, as in `fit`. Not with parameter servers.
        class_weight: weight of a class in the loss, by its number; as in `fit`.
        verbose: as in `fit`; "auto" is a line for each epoch, on the first worker.
        settings: `global_batch`, which examples need, `epochs`, `steps_per_epoch`, `seed`, `shuffle` and the
            others that `docs/train-and-evaluate.md` lists. TRAIN_EPOCHS in the environment overrides
            `epochs`, and so on.

    Raises:
        InvalidConfiguration: an argument, the data, the model or TF_CONFIG is wrong.
        OutputFinished: the output folder holds a finished training, and no more epochs are requested.
        NotFinite: a loss, a gradient or a weight is NaN or infinite; the message names step and worker.
        WeightsDiverged: the workers' weights are no longer the same; the message names step and worker.
        PeerLost, PortInUse, OutputFull, OutputUnwritable, CheckpointMismatch, Preempted: if uncaught, they
            end the process with their exit code and one line instead of a traceback.
    """
    unknown = [name for name in settings if name not in SETTINGS]
    if unknown:
        raise InvalidConfiguration(f"there is no setting {unknown[0]!r}, only {', '.join(SETTINGS)}")
    prepare_loaded()
    session = join(settings)
    with running_as(session):
        return _run(session, model, train, heldout, callbacks, class_weight, verbose)


def _run(
    session: Session,
    model: Any,
    train: Any,
    heldout: Any,
    callbacks: Sequence[Any] = (),
    class_weight: Mapping[int, float] | None = None,
    verbose: int | str = "auto",
) -> Result:
    task, setting = session.task, session.setting
    if task.is_server:
        parameter_server.serve(session)
    strategy = build_strategy(task, progress=session.progress)
    keras.utils.set_random_seed(setting("seed"))
    if task.is_coordinator and (callbacks or class_weight):
        raise InvalidConfiguration(
            "callbacks, class_weight: with parameter servers no process sees each step, and workers read the "
            "data by themselves: leave them out; examples may have weights"
        )
    if task.is_coordinator and (isinstance(model, keras.Model) or not callable(model)):
        raise InvalidConfiguration(
            "model: with parameter servers it must be a function that returns the compiled model, since the "
            "servers hold its variables"
        )
    with strategy.scope():
        net = model if isinstance(model, keras.Model) else model()
        if not isinstance(net, keras.Model) or not net.compiled:
            raise InvalidConfiguration(f"model: must be a compiled Keras model, got {type(net).__name__}")
        if net is not model and net.built:  # a step of the user's might give the optimizer fewer variables
            net.optimizer.build(net.trainable_variables)
    curves = Summaries(session.environment.log_dir if task.is_writer else None)
    drawing = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda _, logs: curves.write(session.step, scalars(logs)),
        on_train_end=lambda _: curves.flush(),
    )
    with contextlib.ExitStack() as stack:
        data, steps = None, setting("steps_per_epoch")
        if task.is_coordinator:
            data = _loaded(train, "train")
            steps = stack.enter_context(parameter_server.coordinated(session, net, data))
        elif not task.is_evaluator:
            data = _in_batches(session, train, "train")
        history = net.fit(
            data,
            epochs=setting("epochs"),
            steps_per_epoch=steps,
            validation_data=None if task.is_coordinator else _in_batches(session, heldout, "heldout"),
            callbacks=[*callbacks, drawing],
            class_weight=class_weight,
            shuffle=setting("shuffle") and isinstance(data, keras.utils.PyDataset),
            verbose=(2 if task.is_writer else 0) if verbose == "auto" else verbose,
        )
    if not task.cluster:  # a notebook's process goes on
        leave_model(session)
    if session.environment.generation is None and session.is_writer:  # nothing else sees the end
        session.trainings.root.mark_final(FinalMarker(session.step, session.environment.uid))
    session.progress.update(state="finished")
    session.progress.flush()
    return Result(net, session.step, {name: values[-1] for name, values in history.history.items()})


def _loaded(data: Any, name: str) -> Any:
    """Return the data in one of the forms that `_in_batches` takes."""
    if callable(data) and not isinstance(data, tf.data.Dataset):
        data = data()
    if isinstance(data, tuple):
        lengths = {len(one) for one in tf.nest.flatten(data)}
        if len(lengths) > 1:
            raise InvalidConfiguration(f"{name}: the arrays have different lengths: {sorted(lengths)}")
        data = tf.data.Dataset.from_tensor_slices(data)
    if data is not None and not isinstance(data, (tf.data.Dataset, keras.utils.PyDataset)):
        raise InvalidConfiguration(
            f"{name}: must be a tf.data.Dataset, a tuple of arrays such as (x, y), a keras.utils.PyDataset, "
            f"or a function that returns one of these, got {type(data).__name__}"
        )
    return data


def _in_batches(session: Session, given: Any, name: str) -> Any:
    """Return the batches that `fit` takes, by the settings."""
    data, setting, trains = _loaded(given, name), session.setting, name == "train"
    if not isinstance(data, tf.data.Dataset):
        return data
    batch, rows = setting("global_batch"), batch_size_of(data)
    steps = setting("steps_per_epoch") if trains else None
    if rows is not None and batch not in (None, rows):
        data = data.rebatch(batch)
    length = int(data.cardinality())
    if length == tf.data.UNKNOWN_CARDINALITY and not steps and not is_smoke(os.environ):
        # Keras takes one more step, without rows, at the end of data whose length it doesn't know.
        if session.is_writer:
            announce(f"counting the data of {name}; `tf.data.experimental.assert_cardinality` saves that")
        length = count_elements(data)
        data = data.apply(tf.data.experimental.assert_cardinality(length))
    if rows is None:
        if batch is None:
            raise InvalidConfiguration("global_batch: must be given, as the data are single examples")
        if trains and setting("shuffle"):
            data = data.shuffle(shuffle_buffer(data), seed=setting("seed"))
        data = data.batch(batch, drop_remainder=length > 0 and length % batch == 0)
    if length == tf.data.INFINITE_CARDINALITY:
        if not trains:
            raise InvalidConfiguration("heldout: the data are endless, and evaluation needs an end")
        if not steps:
            raise InvalidConfiguration("steps_per_epoch: must be given, as the training data are endless")
        return data
    return data.repeat() if steps else data
