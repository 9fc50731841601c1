"""Custom training loops: a run provides strategy, role, resume, checkpoints and reports."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer.checkpoint.snapshot import assign, read
from trainjob_trainer.checkpoint.store import Checkpoint, FinalMarker
from trainjob_trainer.checkpoint_manager import CheckpointWriter
from trainjob_trainer.distribution.collective import broadcast, check_same_weights
from trainjob_trainer.distribution.divergence import WeightsWatch, has_gpus
from trainjob_trainer.distribution.strategy import build_strategy
from trainjob_trainer.environment import is_smoke, setting
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.evaluation import evaluate_checkpoints
from trainjob_trainer.keras.metrics import TrackedMetrics
from trainjob_trainer.keras.pipelines import part_of
from trainjob_trainer.parameter_server import serve
from trainjob_trainer.reporting.progress import announce, by_loss
from trainjob_trainer.reporting.step_times import StepClock
from trainjob_trainer.reporting.summaries import Summaries
from trainjob_trainer.resume import (
    ARRIVAL_SECONDS,
    ResumePlan,
    choose_start,
    plan_of_loop,
    read_agreed,
    refuse_finished,
)
from trainjob_trainer.session import Session, join

# Variables of tracked objects.


def collect_variables(objects: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return variables by the user's names for the objects; a compiled model adds its optimizer.

    Raises InvalidConfiguration for an object of a kind without variables, or one that is not built yet.
    """
    models = [item for item in objects.values() if isinstance(item, keras.Model)]
    groups: dict[str, list[Any]] = {}
    for name, item in objects.items():
        groups[name] = _variables(name, item, models)
        optimizer = getattr(item, "optimizer", None) if isinstance(item, keras.Model) else None
        if optimizer is not None and optimizer not in objects.values():
            groups[f"{name}.optimizer"] = _variables(f"{name}.optimizer", optimizer, [item])
    return groups


def _variables(name: str, item: Any, models: Sequence[Any]) -> list[Any]:
    if isinstance(item, (list, tuple)):
        return [variable for part in item for variable in _variables(name, part, models)]
    if isinstance(item, (tf.Variable, keras.Variable)):
        return [item]
    is_optimizer = isinstance(item, keras.optimizers.Optimizer)
    if not is_optimizer and not isinstance(item, (keras.Layer, keras.Metric, tf.Module)):
        raise InvalidConfiguration(
            f"track({name}=...): {type(item).__name__} has no variables to save; give a Keras model, layer, "
            "metric or optimizer, a tf.Module or a variable"
        )
    if isinstance(item, keras.Layer) and not item.built:
        raise InvalidConfiguration(
            f"track({name}=...): the model has no variables yet; give it a keras.Input or call it once"
        )
    if is_optimizer and not item.built:
        if len(models) != 1:
            raise InvalidConfiguration(
                f"track({name}=...): the optimizer has no variables yet; call "
                "optimizer.build(model.trainable_variables) in the strategy's scope"
            )
        item.build(models[0].trainable_variables)
    return list(item.variables)


_SECONDS_BETWEEN_REPORTS = 0.5


class Run:
    """One replica's part of a custom training loop; created by `init`.

    Attributes:
        strategy: TensorFlow's strategy for the role; build model and optimizer in its scope.
        role: `worker`, `chief` or `evaluator`.
        index: the replica's number within the role.
        num_workers: number of processes that train together.
        part: this worker's part of the training data, for `interleaved(files, parse, part=run.part)`.
        start_step: steps done by earlier runs; the data must begin there.
        is_evaluator: whether this process scores checkpoints instead of training.
    """

    def __init__(self, session: Session, strategy: Any, start_step: int) -> None:
        self._session = session
        self._store = session.trainings.root
        self._groups: dict[str, list[Any]] = {}
        self._metrics = TrackedMetrics(strategy, ())
        self._tracked_metrics: list[Any] = []
        logs = session.environment.log_dir if session.task.is_writer else None
        self._summaries = Summaries(logs)
        self._reported_at = 0.0
        self._done = start_step
        self.strategy = strategy
        self.role = session.task.type
        self.index = session.task.index
        self.num_workers = session.task.num_workers
        self.part = part_of(session.task)
        self.is_evaluator = session.task.is_evaluator
        self.start_step = start_step

    def track(self, **objects: Any) -> None:
        """Set the objects that checkpoints contain, and restore them at once if there is a checkpoint.

        Args:
            objects: Keras models, layers, metrics and optimizers, `tf.Module`s and variables, or lists of
                them, all built. An optimizer without variables is built for the one model given with it. A
                metric is saved over all workers; if the process is asked to stop between two checkpoints,
                worker 0's own stands for all.

        Raises:
            InvalidConfiguration: an object has no variables yet, or is of another kind.
            CheckpointMismatch: the checkpoint holds other variables.
        """
        with self.strategy.scope():
            groups = collect_variables(objects)
        self._groups.update(groups)
        every = keras.tree.flatten(list(objects.values()))
        self._tracked_metrics += [one for one in every if isinstance(one, keras.Metric)]
        self._metrics = TrackedMetrics(self.strategy, self._tracked_metrics)
        if not self.is_evaluator and self.start_step:
            task = self._session.task
            patience = 0.0 if task.is_writer else ARRIVAL_SECONDS
            checkpoint, host = read_agreed(self._store, self.start_step, patience)
            assign(groups, host)
            check_same_weights(self.strategy, task, groups)
            self._metrics.keep_on_first(read({"": self._metrics.variables})[""], is_writer=task.is_writer)
            if task.is_writer:
                announce(f"resumed from step {checkpoint.step} ({checkpoint.path})")

    def steps(
        self, total: int, *, checkpoint_every: int | None = None, compare_weights: bool | None = None
    ) -> Iterator[int]:
        """Yield the remaining steps, as `range(start_step, total)`; save between them and mark the end.

        Args:
            total: steps in all, including those of earlier runs.
            checkpoint_every: steps between checkpoints, as set on worker 0; by default a tenth of the total.
            compare_weights: whether the workers compare the trainable weights of Keras's layers before each
                checkpoint; by default only without GPUs. GPUs add up an embedding's sparse gradients in any
                order, so the tables drift apart by rounding.

        Raises:
            OutputFinished: the output folder holds a training that is finished at `total` or beyond.
            OutputFull, OutputUnwritable, Preempted, WeightsDiverged: as for `train_and_evaluate`.
        """
        if self.is_evaluator:
            raise InvalidConfiguration("the evaluator takes no steps; check `run.is_evaluator` first")
        if not self._groups:
            raise InvalidConfiguration("call run.track(model=..., optimizer=...) before run.steps(...)")
        if is_smoke(os.environ):
            total = min(total, 1)
        task, store = self._session.task, self._store
        environment = self._session.environment
        plan = ResumePlan.TRAIN
        if task.is_writer:  # the others may see another folder for a moment
            plan = plan_of_loop(store, total, environment.uid, environment.spec)
        chosen, every = broadcast(self.strategy, task, [plan, checkpoint_every or max(1, total // 10)])
        plan, asked = ResumePlan(chosen), f"only {total} steps are requested: request more"
        refuse_finished(plan, store, asked, environment.how_to_start_over, self._session.progress)
        if plan is ResumePlan.SKIP:
            return
        if task.is_writer:
            store.clear_final()
        wanted = not has_gpus() if compare_weights is None else compare_weights
        wanted = setting("compare_weights", os.environ, wanted)
        weights = WeightsWatch(self.strategy, task, wanted=wanted)
        self._session.progress.update(
            state="training", step=self._done, total_steps=total, resumed_from=self.start_step or None
        )
        writer, clock = CheckpointWriter(self._session, store), StepClock()
        with writer.patient():
            for step in range(self._done, total):
                yield step
                self._done = step + 1
                self._session.progress.update(state="training", step=self._done, **clock.look(self._done))
                is_due = self._done % every == 0
                if is_due:
                    weights.compare(self._groups, self._done)
                    self._metrics.reduce()
                is_stopping = self._session.stop.requested  # unknown to the others, so nothing is compared
                saved = functools.partial(self._metrics.saved, self._groups, is_reduced=is_due)
                writer.between_steps(self._done, 0, is_due, saved, is_stopping=is_stopping)
            weights.compare(self._groups, self._done)
            self._metrics.reduce()
            if task.is_writer:
                writer.save_last(self._done, 0, lambda: self._metrics.saved(self._groups, is_reduced=True))
                marker = FinalMarker(self._done, environment.uid)
                store.mark_ended(marker)
                if environment.generation is None:  # nothing else sees the end of this process
                    store.mark_final(marker)
                announce(f"training {marker.words}; checkpoints in {store.directory}")
        self._summaries.flush()
        self._session.progress.update(state="finished", step=self._done)
        self._session.progress.flush()

    def report(self, **metrics: Any) -> None:
        """Report metrics; cheap enough for every step, since most calls are dropped.

        Args:
            metrics: numbers or scalar tensors by name; `loss` is reported separately. Of a distributed value,
                only that of this process's first device counts: the loop has to reduce it.
        """
        now = time.monotonic()
        if now - self._reported_at < _SECONDS_BETWEEN_REPORTS:
            return
        self._reported_at = now
        numbers = {name: self._number(value) for name, value in metrics.items()}
        self._session.progress.update(**by_loss(numbers))
        self._summaries.write(self._done, numbers)

    def each_checkpoint(self, evaluate: Callable[[int], Mapping[str, Any]]) -> None:
        """Score every new checkpoint on the evaluator, and return after the final one.

        Args:
            evaluate: called with the step of a checkpoint after its values are loaded into the tracked
                objects; returns metrics by name.

        Raises:
            InvalidConfiguration: called in another role, or before `track`.
        """
        if not self.is_evaluator:
            raise InvalidConfiguration("each_checkpoint is for the evaluator; check `run.is_evaluator` first")
        if not self._groups:
            raise InvalidConfiguration("call run.track(model=...) before run.each_checkpoint(...)")

        def score(checkpoint: Checkpoint) -> Mapping[str, float]:
            self._store.load(checkpoint, self._groups)
            return {name: self._number(value) for name, value in evaluate(checkpoint.step).items()}

        evaluate_checkpoints(self._session, self._store, score)

    def _number(self, value: Any) -> float:
        return float(self.strategy.experimental_local_results(value)[0])


def init(*, keep: int = 3, output: str | Path | None = None, resume: bool = True) -> Run:
    """Return the run of this process. Workers wait here for each other.

    It must be called before any TensorFlow operation.

    Args:
        keep: number of checkpoints to keep; the final one is always kept.
        output: the folder for all files; `./output/<script>` by default, and the job's in a job. TRAIN_OUTPUT
            takes precedence.
        resume: continue the training in that folder; else use a new one. TRAIN_RESUME takes precedence.

    Raises:
        InvalidConfiguration: TF_CONFIG is malformed, or an operation ran before; the message names its line.
        PortInUse, OutputUnwritable, OutputFull: as for `train_and_evaluate`.
    """
    session = join({"keep": keep, "output": output and str(output), "resume": resume})
    task, environment = session.task, session.environment
    if task.is_server:
        serve(session)
    strategy = build_strategy(task, progress=session.progress)
    step, store = 0, session.trainings.root
    if task.is_writer:
        step = choose_start(store, environment.reported_checkpoint)
    if not task.is_evaluator:
        (step,) = broadcast(strategy, task, [step])
    return Run(session, strategy, step)
