"""`train_and_evaluate`: a complete training in one call, the same in every role."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer.checkpoint.snapshot import HostGroups, assign, read, read_json
from trainjob_trainer.checkpoint.store import Checkpoint
from trainjob_trainer.data.batches import TrainingData, measure, part_of
from trainjob_trainer.data.same_rows import SameRows
from trainjob_trainer.data.source import (
    TrainingSource,
    as_function,
    distributed_batches,
    only_first,
    with_class_weight,
)
from trainjob_trainer.distribution.collective import broadcast, check_same_plan, gather
from trainjob_trainer.distribution.strategy import build_strategy
from trainjob_trainer.early_stopping import VALIDATION, Rule, Selection, build_rule, is_monitored
from trainjob_trainer.engine.metric_state import LAST_EPOCH, OverAll, read_results, scalars
from trainjob_trainer.engine.model_state import (
    build_model,
    further_groups,
    load_initial_weights,
    scale_learning_rate,
    tell_unsaved,
    tell_unsynchronized,
    variable_groups,
)
from trainjob_trainer.engine.not_finite import OnNan
from trainjob_trainer.environment import is_smoke
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.evaluation import (
    Evaluation,
    KerasScoring,
    ResultsFile,
    announce_evaluation,
    evaluate_checkpoints,
    publish,
    wait_for_training,
)
from trainjob_trainer.identity import DATA, HELDOUT, Identity, digest_of_arrays, find_site
from trainjob_trainer.parameter_server import CoordinatedEngine, CoordinatorLoop, serve
from trainjob_trainer.plain.process import current_process
from trainjob_trainer.recipe import Recipe, TrainingPlan, batch_of_a_device, build_plan, check, recipe_of
from trainjob_trainer.recorder import Recorder, save_model
from trainjob_trainer.replica import Replica, as_evaluator, join
from trainjob_trainer.reporting.progress import announce
from trainjob_trainer.resume import (
    IN_A_CALLBACK,
    SETTINGS,
    Start,
    Verdict,
    agree,
    find_start,
    go_on_with_settings,
    refuse_finished,
    restore,
    settings_of,
)
from trainjob_trainer.task import Task
from trainjob_trainer.training import Training

BuildModel = Callable[[], Any]
"""Builds the compiled Keras model, with its optimizer's variables, outside of any strategy."""
LoadData = Callable[..., Any]


@dataclass(frozen=True)
class Result:
    """The result of a finished call.

    Attributes:
        model: with its final weights (on the evaluator too): the last ones, or with `keep_best` the best.
        step: optimizer steps done.
        metrics: of the training examples in the last whole epoch of these weights; on the evaluator, of the
            held-out examples.
        model_step: steps that the model's weights have seen: `step`, or those of the best checkpoint.
    """

    model: Any
    step: int
    metrics: Mapping[str, float]
    model_step: int


@dataclass(frozen=True)
class _Request:
    build: BuildModel
    train: LoadData
    heldout: LoadData
    recipe: Recipe
    test: LoadData | None = None
    callbacks: Sequence[Any] = ()
    verbose: int | str = "auto"
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Examples a step; the recipe has been checked."""
        return self.recipe.global_batch or 0

    def plan(self, examples: int | None) -> TrainingPlan:
        recipe = self.recipe
        return build_plan(
            examples=examples,
            epochs=recipe.epochs,
            steps=recipe.steps,
            global_batch=self.batch,
            checkpoint_every=recipe.checkpoint_every,
            patience=recipe.patience,
            keep_best=recipe.keep_best,
        )


def train_and_evaluate(
    model: BuildModel,
    train: Any,
    heldout: Any,
    recipe: Recipe | None = None,
    *,
    test: Any = None,
    callbacks: Sequence[Any] = (),
    class_weight: Mapping[int, float] | None = None,
    verbose: int | str = "auto",
    **settings: Any,
) -> Result:
    """Train a Keras model with as many workers as the job has, and evaluate every checkpoint.

    Every replica runs the same file and the same call; TF_CONFIG sets its role. An interrupted run resumes
    from its last checkpoint with the same batches, and ends with the same weights. Without an evaluator in
    the cluster nothing is evaluated. Without a cluster, one process trains and then evaluates, or evaluates
    at each checkpoint if the results decide about the training.

    Args:
        model: returns a compiled Keras model; called within the strategy's scope.
        train: returns a `tf.data.Dataset` of single examples (not batches), such as (image, label). On
            resume, it is read up to the current position in the epoch. With a parameter named `step`, it is
            called with the steps done, and returns an endless dataset from there on. With one named `part`,
            it is called with a `Part` and returns the examples of that part, which other workers don't read.
            Your own shuffle resumes exactly only if it is seeded, and then all earlier epochs are read again.
            Instead of a function: such a dataset, or a tuple of arrays: (x, y), or (x, y, sample_weight) of
            any structure that `from_tensor_slices` takes.
        heldout: the same, for evaluation; each example counts once.
        recipe: settings of the training.
        test: as `heldout`, but only for the final checkpoint; its metrics have the prefix `test_`.
        callbacks: Keras's or your own, called on every worker as `fit` does; their logs don't contain `val_`
            metrics. The state of Keras's own callbacks survives a restart. On workers other than the first,
            callbacks replace no file of worker 0's. Not with parameter servers.
        class_weight: weight of an example in the loss, by its integer label; as in `fit`.
        verbose: "auto" for occasional lines, 0 for none, 1 for Keras's progress bar instead.
        settings: those of a `Recipe`, which override or complete `recipe`; `epochs` or `steps`, and
            `global_batch`, must be given.

    Raises:
        InvalidConfiguration: an argument, the data, the model or TF_CONFIG is wrong.
        OutputFinished: the output folder holds a finished training, and no more steps are requested.
        NotFinite: a loss, a gradient or a weight is NaN or infinite; the message names step and worker.
        WeightsDiverged: the workers' weights are no longer the same; the message names step and worker.
        PeerLost, PortInUse, OutputFull, OutputUnwritable, CheckpointMismatch, Preempted: if uncaught, they
            end the process with their exit code and one line instead of a traceback.
    """
    folder = {**vars(recipe or Recipe()), **settings}
    replica = join(output=folder["output"], resume=folder["resume"])
    request = _Request(
        model,
        with_class_weight(as_function(train, "train"), class_weight),
        as_function(heldout, "heldout"),
        recipe_of(recipe, settings),
        None if test is None else as_function(test, "test"),
        tuple(callbacks),
        verbose,
        {name: digest_of_arrays(tf.nest.flatten(one)) for name, one in ((DATA, train), (HELDOUT, heldout))},
    )
    check(request.recipe)
    _check_for(replica.task, request)
    if is_smoke(os.environ):
        request = _for_smoke(request)
    replica.store.keep = request.recipe.keep
    if replica.task.is_server:
        serve(replica)
    strategy = build_strategy(replica.task, progress=replica.progress)
    keras.utils.set_random_seed(request.recipe.seed)
    if replica.task.is_evaluator:
        if replica.environment.uid:
            trainings = current_process().trainings
            number = wait_for_training(trainings, _identify(request))
            replica = dataclasses.replace(replica, store=trainings.store(number))
        return _evaluate(replica, strategy, request)
    return _train(replica, strategy, request)


_NOT_THE_RESULT = ("epochs", "steps", "checkpoint_every", "keep", "export", "output", "resume")
"""Settings on which the result doesn't depend, or which may ask for more of it."""


def _identify(request: _Request) -> Identity:
    site, settings = find_site("train_and_evaluate"), vars(request.recipe).items()
    counting = {name: str(value) for name, value in settings if name not in _NOT_THE_RESULT}
    return Identity(site.name, particulars={**counting, **site.variables, **request.data})


def _placed(replica: Replica, strategy: Any, request: _Request, plan: TrainingPlan) -> Replica:
    """Return the replica with the checkpoints of this call: a script of a job may make several.

    Without a job the folder is the script's own choice, and holds one training.
    """
    if replica.environment.generation is None:
        return replica
    trainings, call = current_process().trainings, _identify(request)
    trainings.root.keep = replica.store.keep
    number = 0
    if replica.task.is_writer:
        found = trainings.find(call, replica.environment.reported_checkpoint)
        ended = trainings.store(found.number).ended() if found else None
        if found and found.identity != call and ended and ended.total_steps >= plan.total_steps:
            found = None
        if found is None:
            refuse_finished(
                find_start(trainings.root, 0, replica.environment.uid),
                trainings.root,
                plan.total_steps,
                replica.environment.how_to_start_over,
                replica.progress,
            )
        else:
            found.is_taken = True
            if ended and ended.total_steps < plan.total_steps:
                trainings.close()
        number = found.number if found else trainings.begin(call)
    (number,) = broadcast(strategy, replica.task, [number])
    return dataclasses.replace(replica, store=trainings.store(number))


def _check_for(task: Task, request: _Request) -> None:
    if task.has_parameter_servers and request.callbacks:
        raise InvalidConfiguration(
            "callbacks: with parameter servers they aren't called, since no process sees each step: leave "
            "them out, and use the recipe's settings (patience, keep_best, warmup_steps)"
        )
    for one in request.callbacks:
        monitor = str(getattr(one, "monitor", ""))
        if monitor.startswith(VALIDATION) and getattr(one, "save_best_only", True):
            raise InvalidConfiguration(
                f"callbacks: {type(one).__name__} monitors {monitor}, and callbacks see metrics of the "
                f"training alone: let it monitor {monitor.removeprefix(VALIDATION)}, or use the settings "
                "patience and keep_best, which go by held-out examples"
            )
    if task.has_parameter_servers and request.recipe.on_nan == OnNan.SKIP.value:
        raise InvalidConfiguration(
            'on_nan: "skip" can\'t be had with parameter servers, since metrics that several workers add to '
            'can\'t be put back: use "stop" or "ignore"'
        )


def _for_smoke(request: _Request) -> _Request:
    """Return the request for a smoke test: one step, with data for one batch of everything."""
    recipe = dataclasses.replace(request.recipe, epochs=None, steps=1, checkpoint_every=1)
    return dataclasses.replace(
        request,
        train=only_first(request.train, request.batch),
        heldout=only_first(request.heldout, request.batch),
        test=request.test and only_first(request.test, request.batch),
        recipe=recipe,
    )


def _train(replica: Replica, strategy: Any, request: _Request) -> Result:
    per_device = batch_of_a_device(request.batch, strategy.num_replicas_in_sync)
    task, recipe = replica.task, request.recipe
    source = _open(replica, strategy, request)
    plan = request.plan(source.examples)
    check_same_plan(strategy, replica.task, plan)
    replica = _placed(replica, strategy, request, plan)
    environment, reported = replica.environment, replica.environment.reported_checkpoint
    if environment.generation is not None:
        reported = None  # `_placed` has looked
    start = agree(
        strategy,
        replica.task,
        replica.store,
        plan.total_steps,
        environment.uid,
        reported,
        environment.spec,
    )
    refuse_finished(start, replica.store, plan.total_steps, environment.how_to_start_over, replica.progress)
    spec = _batch_spec(source.at(start.step), per_device)
    model = build_model(strategy, _as_recipe_says(request), spec, request.recipe.seed)
    score = _scoring(replica, strategy, request, model)
    with strategy.scope():
        groups, further = variable_groups(model), further_groups(model)
    known = {"global_batch": request.batch, "number_of_examples": source.examples}
    settings = settings_of(model.optimizer, seed=request.recipe.seed, **known)  # the restore replaces some
    saved = restore(strategy, replica.task, replica.store, start, groups, further)
    if start.verdict is Verdict.ENDED:
        return _restored(replica, strategy, start, model, saved)
    before = read_json(saved[SETTINGS]) if SETTINGS in saved else {}
    start_over = replica.environment.how_to_start_over
    remedy = start_over if replica.task.has_parameter_servers else f"{IN_A_CALLBACK}, or {start_over}"
    settings = go_on_with_settings(before, settings, remedy, is_writer=replica.task.is_writer)
    if not start.step and request.recipe.initial_weights:
        load_initial_weights(strategy, replica.task, model, request.recipe.initial_weights)
    rule = _rule(replica, strategy, request, plan, model)
    selection = Selection(replica, strategy, rule, plan.total_steps, score)
    if replica.task.is_writer:
        tell_unsaved(model)
        tell_unsynchronized(model, strategy.num_replicas_in_sync)
        replica.store.clear_final()
        policy = source.policy(task.num_workers, shuffle=recipe.shuffle)
        announce(policy.sentence(plan))
    export = _export(replica, request, spec) if request.recipe.export else None
    batches, to_read = distributed_batches(replica, strategy, source, request.recipe, start.step)
    training = Training(
        replica,
        strategy,
        model,
        plan,
        {**groups, **further},
        Recorder(replica, plan, prints_lines=str(request.verbose) not in ("0", "1")),
        selection,
        export,
        OnNan(request.recipe.on_nan),
        settings,
        request.recipe.compare_weights,
        request.callbacks,
        shows_bar=str(request.verbose) == "1",
    )
    if replica.task.is_coordinator:
        workers, watched = replica.task.num_workers, training.on_nan is OnNan.STOP
        engine = CoordinatedEngine(strategy, model, workers, watched=watched)
        ending = CoordinatorLoop(training, engine).run(batches, start.step, saved)
    else:
        ending = training.run(batches, start.step, saved, to_read)
    if not replica.task.is_distributed:
        _evaluate(as_evaluator(replica), strategy, request)
    return Result(model, ending.step, ending.metrics, ending.model_step)


_COMPARED = 16
"""Examples of each worker that are compared before training."""


def _open(replica: Replica, strategy: Any, request: _Request) -> TrainingSource:
    """Call the user's function of training data; all workers do so together."""
    task = replica.task
    source = TrainingSource(request.train, part_of(task), lambda one: gather(strategy, task, one))
    is_shared = not (source.takes_part or source.takes_step or task.is_coordinator) and task.num_workers > 1
    if is_shared and request.recipe.compare_data:
        rows = SameRows(strategy, task, of_batches=False, first=_COMPARED)
        for _ in rows.hashed(source.at(0).dataset.take(_COMPARED)):
            pass
        rows.compare(is_end=True)
    return source


def _restored(replica: Replica, strategy: Any, start: Start, model: Any, saved: HostGroups) -> Result:
    """Return the result of a training that an earlier attempt ended; what follows it is tried again."""
    ended = replica.store.ended() if replica.task.is_writer else None
    (step,) = broadcast(strategy, replica.task, [ended.ended_at if ended else start.step])
    if ended is not None:
        replica.store.mark_ended(dataclasses.replace(ended, job_uid=replica.environment.uid))
        announce(f"this training has {ended.words} before: its result is restored, and the script continues")
    replica.progress.update(state="finished", step=step, resumed_from=step, checkpoint_step=start.step)
    replica.progress.flush()
    return Result(model, step, read_results(saved.get(LAST_EPOCH, ())), start.step)


def _as_recipe_says(request: _Request) -> BuildModel:
    def build() -> Any:
        model = request.build()
        if getattr(model, "optimizer", None) is not None:
            scale_learning_rate(model, request.recipe)
        return model

    return build


def _export(replica: Replica, request: _Request, spec: Any) -> Callable[[HostGroups], None]:
    """Return what writes `<output>/model` with the final weights, on the writer alone.

    The model is built again, since saving one whose variables are spread over workers needs all workers.
    """

    def export(trained: HostGroups) -> None:
        with tf.device("CPU:0"):  # a GPU may have no memory for a second model
            build, here = _as_recipe_says(request), tf.distribute.get_strategy()
            model = build_model(here, build, spec, request.recipe.seed)
            assign(variable_groups(model), trained)
        save_model(replica, model.save, lambda path: model.export(path, verbose=False))

    return export


def _rule(replica: Replica, strategy: Any, request: _Request, plan: TrainingPlan, model: Any) -> Rule:
    recipe = request.recipe
    if not is_monitored(recipe):
        return Rule()
    is_alone = replica.task.is_coordinator  # it has the metrics of all workers
    names = list(scalars(model.get_metrics_result())) if is_alone else OverAll(strategy, model).names()
    rule = build_rule(recipe, model, names)
    if plan.epoch_steps is None and not rule.is_heldout:
        raise InvalidConfiguration(
            f"monitor: {rule.monitor} is measured once an epoch, and train() is endless; monitor "
            f"{VALIDATION}{rule.monitor}, which each checkpoint has"
        )
    return rule


def _scoring(
    replica: Replica, strategy: Any, request: _Request, trained: Any
) -> Callable[[int], Mapping[str, float]] | None:
    """Return what scores the present weights on the writer, if held-out examples decide about the training.

    All workers call it before `further_groups`: it resets the random state. A process that trains alone keeps
    the results as an evaluator does.
    """
    if not is_monitored(request.recipe) or not request.recipe.monitor.startswith(VALIDATION):
        return None
    score = None
    if replica.task.is_writer:
        alone = tf.distribute.get_strategy() if replica.task.is_distributed else strategy
        evaluator = as_evaluator(replica)
        _, scoring = _heldout_scoring(evaluator, alone, request)
        environment = evaluator.environment
        results = ResultsFile(environment.output_dir, environment.log_dir)

        def score(step: int) -> Mapping[str, float]:
            evaluation = Evaluation(step, scoring.score(read({"model": trained.variables})), final=False)
            if replica.task.is_distributed:
                announce_evaluation(evaluation)
            else:
                publish(evaluator, results, evaluation)
            return evaluation.metrics

    keras.utils.set_random_seed(request.recipe.seed)
    return score


def _heldout_scoring(replica: Replica, strategy: Any, request: _Request) -> tuple[Any, KerasScoring]:
    """Build the model again, and return it with what scores it on the held-out examples."""
    heldout = measure(request.heldout(), "heldout")
    model = build_model(strategy, request.build, _batch_spec(heldout, None), request.recipe.seed)
    return model, KerasScoring(model, "heldout", heldout, request.batch, replica)


def _evaluate(replica: Replica, strategy: Any, request: _Request) -> Result:
    model, scoring = _heldout_scoring(replica, strategy, request)

    if request.test is not None:
        test = KerasScoring(model, "test", measure(request.test(), "test"), request.batch, replica)

    def score_test(checkpoint: Checkpoint) -> Mapping[str, float]:
        host = replica.store.read(checkpoint)
        return {f"test_{name}": value for name, value in test.score(host).items()}

    final: Evaluation | None = evaluate_checkpoints(
        replica,
        lambda checkpoint: scoring.score(replica.store.read(checkpoint)),
        markers=[replica.store.ended, replica.store.final, current_process().trainings.root.final],
        score_final=None if request.test is None else score_test,
    )
    step = final.step if final else 0
    return Result(model, step, final.metrics if final else {}, step)


def _batch_spec(data: TrainingData, batch: int | None) -> Any:
    return tf.nest.map_structure(
        lambda part: tf.TensorSpec([batch, *part.shape], part.dtype), data.dataset.element_spec
    )
