"""The short way in: one call, the same in every role."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer.data import TrainingData, TrainingSource, measure, worker_batches
from trainjob_trainer.engine import Engine, build_model
from trainjob_trainer.evaluation import Evaluation, evaluate_checkpoints
from trainjob_trainer.keras_scoring import KerasScoring
from trainjob_trainer.model_state import further_groups, tell_unsaved, variable_groups
from trainjob_trainer.not_finite import OnNan
from trainjob_trainer.plan import TrainingPlan, batch_of_a_device, build_plan, check_request
from trainjob_trainer.replica import Replica, as_evaluator, join
from trainjob_trainer.resume import agree, choose_start, refuse_finished, restore
from trainjob_trainer.strategy import build_strategy
from trainjob_trainer.training import TrainingLoop

BuildModel = Callable[[], Any]
LoadData = Callable[..., Any]


@dataclass(frozen=True)
class Result:
    """What a finished call leaves behind.

    Attributes:
        model: with its final weights (on the evaluator too).
        step: optimizer steps done.
        metrics: of the last epoch's training examples; on the evaluator of the held-out ones.
    """

    model: Any
    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class _Request:
    build: BuildModel
    train: LoadData
    heldout: LoadData
    epochs: int | None
    steps: int | None
    global_batch: int
    seed: int
    checkpoint_every: int | None
    shuffle: bool
    on_nan: OnNan = OnNan.STOP

    def plan(self, examples: int | None) -> TrainingPlan:
        return build_plan(
            examples=examples,
            epochs=self.epochs,
            steps=self.steps,
            global_batch=self.global_batch,
            checkpoint_every=self.checkpoint_every,
        )


def train_and_evaluate(
    model: BuildModel,
    train: LoadData,
    heldout: LoadData,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    global_batch: int,
    seed: int = 42,
    checkpoint_every: int | None = None,
    keep: int = 3,
    shuffle: bool = True,
    on_nan: str | None = None,
) -> Result:
    """Train a Keras model with as many workers as the job has, and evaluate every checkpoint.

    Every replica runs the same file and the same call; TF_CONFIG says which part is its own. A run that was
    cut off goes on at its last checkpoint with the same batches, and ends with the same weights. Without an
    evaluator in the cluster nothing is evaluated; without a cluster, one process trains and then evaluates.

    Args:
        model: returns a compiled Keras model. Called within the strategy's scope.
        train: returns a tf.data set of single examples (not batches), such as (image, label). To resume, it
            is read up to where training goes on, within the epoch. If it has a parameter named `step`, it is
            called with the steps done, and returns without end the examples from there on.
        heldout: the same, for evaluation; each example counts once.
        epochs: passes over the training data; give this or `steps`.
        steps: optimizer steps in all, counted from 0 also when resuming.
        global_batch: examples a step, over all workers; they must divide it.
        seed: of initial weights, dropout and the order of examples.
        checkpoint_every: steps between checkpoints; by default once an epoch.
        keep: checkpoints to keep; the final one stays anyway.
        shuffle: reshuffle the training data each epoch, unless `train` takes the step. A shuffle of your own
            resumes exactly only if it is seeded, and then all earlier epochs are read over.
        on_nan: when a loss or a gradient is NaN or infinite on some worker: `stop`, `skip` that step's update
            on all workers, or `ignore`; by default TRAINJOB_ON_NAN, or else `stop`.

    Raises:
        InvalidConfiguration: an argument, the data, the model or TF_CONFIG is wrong.
        OutputFinished: the output folder holds a finished training, and no more steps are asked for.
        NotFinite: a loss, a gradient or a weight is NaN or infinite; the message names step and worker.
        PeerLost, PortInUse, OutputFull, OutputUnwritable, CheckpointMismatch, Preempted: uncaught they end
            the process with their exit code and one line instead of a traceback.
    """
    replica = join(keep=keep)
    reaction = OnNan.parse(on_nan, os.environ)
    request = _Request(
        model, train, heldout, epochs, steps, global_batch, seed, checkpoint_every, bool(shuffle), reaction
    )
    check_request(epochs=epochs, steps=steps, global_batch=global_batch, checkpoint_every=checkpoint_every)
    strategy = build_strategy(replica.task)
    keras.utils.set_random_seed(seed)
    if replica.task.is_evaluator:
        return _evaluate(replica, strategy, request)
    return _train(replica, strategy, request)


def _train(replica: Replica, strategy: Any, request: _Request) -> Result:
    per_device = batch_of_a_device(request.global_batch, strategy.num_replicas_in_sync)
    source = TrainingSource(request.train)
    plan = request.plan(source.examples)
    start = agree(
        strategy,
        replica.task,
        lambda: choose_start(replica.store, plan.total_steps, replica.environment.uid),
    )
    refuse_finished(start, replica.store, plan.total_steps)
    model = build_model(strategy, request.build, _batch_spec(source.at(start.step), per_device), request.seed)
    with strategy.scope():
        groups, further = variable_groups(model), further_groups(model)
    saved = restore(strategy, replica.task, replica.store, start, groups, further)
    if replica.task.is_writer:
        tell_unsaved(model)
        replica.store.clear_final()
    engine = Engine(strategy, model, request.on_nan, is_writer=replica.task.is_writer)
    loop = TrainingLoop(replica, strategy, engine, plan, {**groups, **further}, request.on_nan)
    loop.resume(saved)
    metrics = loop.run(_batches(replica, strategy, source, request, start.step), start.step)
    if not replica.task.is_distributed:
        _evaluate(as_evaluator(replica), strategy, request)
    return Result(model, plan.total_steps, metrics)


def _batches(replica: Replica, strategy: Any, source: TrainingSource, request: _Request, step: int) -> Any:
    stream = source.stream(
        step=step, global_batch=request.global_batch, seed=request.seed, shuffle=request.shuffle
    )
    teller = source.read_over(step, request.global_batch) if replica.task.is_writer else None

    def of_worker(context: Any) -> Any:
        return worker_batches(
            stream,
            workers=context.num_input_pipelines,
            worker=context.input_pipeline_id,
            batch=batch_of_a_device(request.global_batch, strategy.num_replicas_in_sync),
            read_over=teller,
        )

    return iter(strategy.distribute_datasets_from_function(of_worker))


def _evaluate(replica: Replica, strategy: Any, request: _Request) -> Result:
    data = measure(request.heldout(), "heldout")
    model = build_model(strategy, request.build, _batch_spec(data, None), request.seed)
    scoring = KerasScoring(model, data.dataset, request.global_batch, replica.store, replica.progress)
    final: Evaluation | None = evaluate_checkpoints(
        replica, scoring.score, final_step=_final_step(replica, request)
    )
    return Result(model, final.step if final else 0, final.metrics if final else {})


def _final_step(replica: Replica, request: _Request) -> int | None:
    """Only a process without a job needs it, to tell an earlier training's end from this one's."""
    if replica.environment.uid:
        return None
    return request.steps or request.plan(TrainingSource(request.train).examples).total_steps


def _batch_spec(data: TrainingData, batch: int | None) -> Any:
    return tf.nest.map_structure(
        lambda part: tf.TensorSpec([batch, *part.shape], part.dtype), data.dataset.element_spec
    )
