"""What a job changes of Keras's `fit`, `evaluate` and `predict`: a class below `keras.Model`.

`keras.Model` gets `JobTrainer` as its base class instead of Keras's own trainer (`patches.py`). Each method
here says what is wrong or missing in Keras's under a mirrored strategy, of one worker or several; without one
it does what Keras's does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import trainer

from trainjob_trainer.distribution.collective import is_collective
from trainjob_trainer.distribution.strategy import is_mirrored
from trainjob_trainer.environment import is_smoke
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.keras.callback_state import TEST_METHODS, sees_batches
from trainjob_trainer.keras.data import UNEQUAL_ROWS, Batches, JobEpochs, of_one_replica
from trainjob_trainer.keras.shares import added, by_share, retried, without_share
from trainjob_trainer.keras.strategy import bring_in, meet
from trainjob_trainer.patches import fit_class
from trainjob_trainer.reporting.progress import notice
from trainjob_trainer.session import assigned, current_session

KerasTrainer: Any = fit_class(trainer)
_SIGNATURES = {
    name: inspect.signature(getattr(KerasTrainer, name)) for name in ("fit", "evaluate", "predict")
}
_MAKERS = ("make_train_function", "make_test_function")
_KERAS_OWN = ("train_step", "test_step", "compute_metrics", "get_metrics_result")


def replace_classes(module: Any) -> None:
    """Replace two classes of `keras.src.backend.tensorflow.trainer`, before anything else imports them."""
    setattr(module, KerasTrainer.__name__, JobTrainer)
    module.TFEpochIterator = JobEpochs


def replace_base(models: ModuleType) -> None:
    """Give `Model` of `keras.src.models.model` this base class, where Keras has been imported before."""
    kind = models.Model
    kind.__bases__ = tuple(JobTrainer if one is KerasTrainer else one for one in kind.__bases__)


class JobTrainer(KerasTrainer):  # type: ignore[misc]
    """What Keras's `Model` inherits in a job."""

    predict_function: Any

    @functools.wraps(KerasTrainer.fit)
    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Train, or score checkpoints in the evaluator.

        A `fit` within another `fit` (a callback that trains a second model) is left to Keras.
        """
        session = current_session()
        call = session.call
        if call is not None:
            with assigned(session, "call", None):
                return super().fit(*args, **kwargs)
        if not session.manages:
            return super().fit(*args, **kwargs)
        bound = _SIGNATURES["fit"].bind(self, *args, **kwargs)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name != "self"}

        if session.task.is_evaluator:
            from trainjob_trainer.keras.evaluator import follow_training  # noqa: PLC0415 - needs all of Keras

            follow_training(session, self, arguments)
        if session.task.type not in ("chief", "worker"):
            return super().fit(**arguments)
        from trainjob_trainer.keras.fit import train  # noqa: PLC0415 - as above

        return train(session, KerasTrainer.fit, self, arguments)

    @functools.wraps(KerasTrainer.evaluate)
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Score, and report that; callbacks decide how many batches a call takes within `fit`."""
        with self._scored("evaluate", {"steps": 1}, args, kwargs) as (positional, named):
            call = current_session().call
            if call is None:
                return super().evaluate(*positional, **named)
            given = _SIGNATURES["evaluate"].bind(self, *positional, **named).arguments.get("callbacks")
            is_validation = type(given).__name__ == "CallbackList"
            sees_tests = call.seen.tests if is_validation else see_tests(given)
            sees_tests |= not are_keras_own(type(self), _MAKERS)  # such a function may take one batch a call
            with assigned(call, "sees_tests", sees_tests), assigned(call, "is_scoring", True):
                results = super().evaluate(*positional, **named)
            call.kept.validations += is_validation
            return results

    @functools.wraps(KerasTrainer.predict)
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predict, and report that."""
        with self._scored("predict", {}, args, kwargs) as (positional, named):
            return super().predict(*positional, **named)

    @contextlib.contextmanager
    def _scored(self, name: str, in_smoke: dict[str, Any], args: Any, kwargs: Any) -> Iterator[Any]:
        """Yield the arguments of `evaluate` or `predict`, with the callback that reports progress.

        A smoke test calls it with the arguments `in_smoke`.
        """
        session = current_session()
        if not session.manages:
            yield args, kwargs
            return
        bound = _SIGNATURES[name].bind(self, *args, **kwargs)
        if is_smoke(os.environ):
            bound.arguments.update(in_smoke)
        if session.task.is_evaluator:
            with assigned(session, "is_scoring", True):
                yield bound.args[1:], bound.kwargs
            return
        meet(session, self, name)
        from trainjob_trainer.keras.callbacks import with_scoring  # noqa: PLC0415 - needs all of Keras

        bound.arguments["callbacks"] = with_scoring(bound.arguments.get("callbacks"), session.progress)
        with errors_explained():
            yield bound.args[1:], bound.kwargs

    @functools.wraps(KerasTrainer.train_on_batch)
    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Train on a batch, all workers one model."""
        bring_in(self)
        return super().train_on_batch(*args, **kwargs)

    @functools.wraps(KerasTrainer.predict_on_batch)
    def predict_on_batch(self, x: Any) -> Any:
        """Predict this worker's own batch alone; Keras returns the rows of all workers."""
        strategy = self.distribute_strategy
        if not is_mirrored(strategy):
            return super().predict_on_batch(x)
        self.make_predict_function()  # type: ignore[call-arg]
        predict = getattr(self.predict_function, "on_this_worker", None)
        if predict is None:

            def predict(data: Any) -> Any:
                return strategy.run(self.predict_step, args=(data,))

            if not self.run_eagerly:
                predict = tf.function(predict, autograph=False, reduce_retracing=True)
            self.predict_function.on_this_worker = predict
        return trainer.tree.map_structure(
            lambda value: trainer.convert_to_np_if_not_ragged(strategy.experimental_local_results(value)[0]),
            predict((x,)),
        )

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Build the model and its optimizer; Keras's fails under several workers.

        It reads no batch, which would advance a shuffled data set, and takes a model without `call()`.
        """
        strategy = self._distribute_strategy
        # Before the step is traced, not for each `train_on_batch`.
        is_new = self.train_function is None or (iterator is not None and self.test_function is None)
        bring_into_strategy(self, self.variables if strategy is not None and is_new else ())
        call = current_session().call
        if strategy is None:
            # A checkpoint to resume needs the variables now; Keras would create them in the first step.
            record = getattr(call, "record", None)
            goes_on = record is not None and record.store.steps()
            if iterator is not None and self.train_function is None and goes_on:
                spec = _batch_spec(iterator)
                self._symbolic_build(data_batch=spec) if has_call(self) else _build_by_its_step(self, spec)
            return
        if not is_mirrored(strategy):
            super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)
            return
        if iterator is not None:
            data_batch = _batch_spec(iterator)
        if iterator is not None and data_batch is None:
            for *_, batches in iterator:
                data_batch = trainer.tree.map_structure(
                    lambda value: strategy.experimental_local_results(value)[0], without_share(next(batches))
                )
                break
        if iterator is not None and call is not None:
            replicas = strategy.num_replicas_in_sync
            trouble = fixed_batch_trouble(_fixed_rows(self), call.batch_size, replicas)
            if trouble:
                raise InvalidConfiguration(trouble)
        for optimizer in _optimizers_of(self):  # Keras uses the scope of its creation, which may be none
            optimizer._distribution_strategy = strategy
        if has_call(self):
            super()._maybe_symbolic_build(data_batch=data_batch)
        elif self.train_function is None:
            _build_by_its_step(self, data_batch)
        of_optimizers = [one for optimizer in _optimizers_of(self) for one in optimizer.variables]
        bring_into_strategy(self, [*self.metrics_variables, *of_optimizers] if is_new else ())

    def _aggregate_additional_loss(self, loss: Any) -> Any:
        """Count what a layer adds to the loss once, as `shares` has it."""
        return added(loss, super()._aggregate_additional_loss(loss))

    def _resolve_auto_jit_compile(self) -> bool:
        """Have `jit_compile="auto"` mean under a strategy what it means without: XLA on GPUs."""
        strategy = self._distribute_strategy
        is_left_out = strategy is not None and not _compiles_in_parts(strategy)
        with assigned(self, "_distribute_strategy", strategy if is_left_out else None):
            return bool(super()._resolve_auto_jit_compile())

    def _make_function(self, step_function: Callable[..., Any]) -> Any:
        """Make a function that takes many batches in one TensorFlow call, where `JobEpochs` passes them.

        Keras's own `steps_per_execution` fails under several workers. Models that run eagerly are left to
        Keras's, one call per batch.
        """
        from trainjob_trainer.keras.gradients import GradientPath  # noqa: PLC0415 - needs all of Keras
        from trainjob_trainer.keras.metrics import read_over_all  # noqa: PLC0415 - as above
        from trainjob_trainer.keras.model import optimizers_of  # noqa: PLC0415 - as above
        from trainjob_trainer.keras.steps import TracedSteps, in_parts  # noqa: PLC0415 - as above

        strategy, jit_compile = self.distribute_strategy, self.jit_compile
        takes_many = self._takes_many()
        if takes_many or _compiles_in_parts(strategy):
            step_function = in_parts(self, step_function, is_writer=current_session().is_writer)
            jit_compile = False  # Keras would compile the collectives, too
        joint = step_function
        if is_mirrored(strategy):
            path = GradientPath(strategy, optimizers_of(self))
            weighed = shared(self, step_function, step_function.__name__)

            @functools.wraps(step_function)
            def joint(data: Any) -> Any:
                with path.summing(), read_over_all(self):
                    return weighed(data)

        with assigned(self, "jit_compile", jit_compile):
            by_keras = retried(super()._make_function(joint))
        reduce = functools.partial(trainer.reduce_per_replica, strategy=strategy, reduction="auto")
        steps = TracedSteps(self, step_function, reduce) if takes_many else None

        def function(iterator: Any) -> Any:
            if not isinstance(iterator, Batches):
                return by_keras(iterator)
            try:
                if steps is not None:
                    return steps.take(iterator)
                for data, count in iterator.in_calls(self.steps_per_execution):
                    logs = by_keras(list(itertools.islice(data, count)))
            except tf.errors.FailedPreconditionError as error:
                if is_collective(strategy) or _ENDLESS not in str(error):
                    raise
                raise StopIteration from error  # the data has ended within an epoch
            return logs

        call = current_session().call
        function.steps = steps  # type: ignore[attr-defined]
        function.watched_for = call and call.watch.on_nan  # type: ignore[attr-defined]
        return function

    def _takes_many(self) -> bool:
        """Return whether a call may take many batches: the steps are traced, and by Keras."""
        is_ours = is_mirrored(self.distribute_strategy)
        return is_ours and not self.run_eagerly and are_keras_own(type(self), _MAKERS)

    @functools.wraps(KerasTrainer.make_predict_function)
    def make_predict_function(self, force: bool = False) -> Any:
        """Compile predictions with XLA as `steps.in_parts` has it."""
        is_made = self.predict_function is not None and not force
        if is_made or not (self.jit_compile and _compiles_in_parts(self.distribute_strategy)):
            return super().make_predict_function(force)
        from trainjob_trainer.keras.steps import in_parts  # noqa: PLC0415 - needs all of Keras

        step = in_parts(self, self.predict_step, is_writer=current_session().is_writer)
        other = _With(self, predict_step=step, jit_compile=False)
        KerasTrainer.make_predict_function(other, force)
        self.predict_function = other.predict_function
        return self.predict_function

    def _get_metrics_result_or_logs(self, logs: Any) -> Any:
        """Reduce all metrics over all workers in one call, at the end of an epoch or evaluation."""
        over_all, call = self._over_all(), current_session().call
        is_resumed = call is not None and call.batches_before > 0  # at its end there may be no batch left
        if over_all is None or not (logs or is_resumed):
            given = self.get_metrics_result() if is_resumed and not logs else logs
            return super()._get_metrics_result_or_logs(given)
        results = over_all.results()
        is_own = logs and not (isinstance(logs, dict) and set(logs) == set(results))
        return logs if is_own else results  # as Keras chooses

    def reset_metrics(self) -> None:
        """Reset all metrics in one call; Keras contacts the other workers once per variable."""
        from trainjob_trainer.keras.metrics import has_own_reset  # noqa: PLC0415 - needs all of Keras

        over_all = self._over_all()
        super().reset_metrics() if over_all is None or has_own_reset(self) else over_all.reset()

    def _over_all(self) -> Any:
        """Return the `OverAll` of a model whose metrics are reduced at an epoch's end, else None."""
        call = current_session().call
        if call is None:
            return None
        function = self.test_function if call.is_scoring else self.train_function
        steps = getattr(function, "steps", None)
        return steps and steps.over_all


class _With:
    """A model, with other attributes for Keras's maker of a function, which also sets some."""

    def __init__(self, model: Any, **others: Any) -> None:
        self.__dict__.update(others, _model=model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def has_keras_steps(model: Any) -> bool:
    """Return whether the steps are Keras's, which return the metrics and nothing else."""
    return are_keras_own(type(model), _KERAS_OWN)


def are_keras_own(kind: type, methods: Iterable[str]) -> bool:
    """Return whether a class has these methods from Keras or not at all; the class of None has none."""
    found = (getattr(kind, name, None) for name in methods)
    return all(method is None or method.__module__.startswith("keras.") for method in found)


def see_tests(callbacks: Any) -> bool:
    """Return whether a callback of an evaluation, besides ours, looks at its batches."""
    from trainjob_trainer.evaluation import Scoring  # noqa: PLC0415 - needs all of Keras
    from trainjob_trainer.keras.callbacks import listed  # noqa: PLC0415 - as above

    users = [one for one in listed(callbacks) if not isinstance(one, Scoring)]
    return any(sees_batches(one, TEST_METHODS) for one in users)


def shared(model: Any, step: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the training or test step, as `by_share`; `name` is Keras's of it."""
    return by_share(model, step, name, os.environ, notice if current_session().is_writer else lambda _: None)


def _compiles_in_parts(strategy: Any) -> bool:
    return is_mirrored(strategy) or type(strategy).__name__.startswith("OneDeviceStrategy")


_ENDLESS = "contain an infinite number of elements"
_CAUSES = {
    _ENDLESS: (
        "the data ended within an epoch of steps_per_epoch batches, and several workers can't continue from "
        "there: pass as many steps as there are batches for all epochs, repeat() a tf.data.Dataset, or "
        "leave steps_per_epoch out; then the workers find its end together"
    ),
    UNEQUAL_ROWS: (
        "the components of a batch have different numbers of rows, so it isn't known which rows belong to "
        "one worker: batch the components together, or train with one worker. A script that shares its rows "
        "out itself sets the data's auto_shard_policy to AutoShardPolicy.OFF"
    ),
}


@contextlib.contextmanager
def errors_explained() -> Iterator[None]:
    """Raise InvalidConfiguration for an error of TensorFlow whose cause is the script's data."""
    try:
        yield
    except tf.errors.OpError as error:
        for text, cause in _CAUSES.items():
            if text in str(error):
                raise InvalidConfiguration(cause) from error
        raise


# How a model is built under a strategy.


def bring_into_strategy(model: Any, variables: Sequence[Any]) -> None:
    """Create again, in the scope, what a call of the model, `compile()` or a metric has created outside it.

    Otherwise each worker has its own weights and counts only its own rows, and a step counts once for each
    device of a worker.
    """
    strategy = model.distribute_strategy
    values = [(one, one.value) for one in variables] if is_mirrored(strategy) else []
    outside = [
        (one, value)
        for one, value in values
        if isinstance(value, tf.Variable) and not isinstance(value, tf.distribute.DistributedValues)
    ]
    if outside:
        with strategy.scope():
            for one, value in outside:
                one._initialize(value.numpy())
                one._value._primary._unique_id = value._unique_id  # an optimizer knows the variable by it


def _optimizers_of(model: Any) -> list[Any]:
    keras = importlib.import_module("keras")
    return [one for one in vars(model).values() if isinstance(one, keras.optimizers.Optimizer)]


def fixed_batch_trouble(fixed: int | None, rows: int | None, replicas: int) -> str | None:
    """Return why a model with a fixed batch size, as stateful RNNs need it, can't train; None if it can.

    `fixed` is the model's rows per batch, None for any number; `rows` is a global batch's, None if unknown.
    """
    if fixed is None or rows is None or fixed * replicas == rows:
        return None
    part = f"{rows / replicas:g}"
    build = (
        f"build it with batch_size={part}" if rows % replicas == 0 else f"use a batch that {replicas} divide"
    )
    return (
        f"each of {replicas} replicas gets {part} of a batch's {rows} rows, and the model's input has room "
        f"for exactly {fixed}: {build} (a stateful RNN needs that; its states are then each replica's own), "
        "or leave batch_size out of keras.Input"
    )


def _fixed_rows(model: Any) -> int | None:
    """Return the rows of a batch that the model has state for; a mere first batch has built any other."""
    if not any(getattr(layer, "stateful", False) for layer in model._flatten_layers()):
        return None
    inputs = getattr(model, "inputs", None) or ()
    return next((one.shape[0] for one in inputs if one.shape and one.shape[0] is not None), None)


def has_call(model: Any) -> bool:
    """Return whether a model has a `call()`; a GAN, for example, may have only a `train_step`."""
    return type(model).call is not importlib.import_module("keras").Model.call


def _build_by_its_step(model: Any, batch: Any) -> None:
    """Create the variables of a model without `call()`, which Keras creates while it traces the first step.

    Under a strategy Keras makes a symbolic call instead. Here the training step is traced symbolically, and
    not executed. Its optimizers are built for the variables that the step passes to them.
    """
    keras, backend = importlib.import_module("keras"), importlib.import_module("keras.src.backend")
    symbols = keras.tree.map_structure(
        lambda one: (
            None if one is None else keras.KerasTensor(one.shape, keras.backend.standardize_dtype(one.dtype))
        ),
        batch,
    )
    with model.distribute_strategy.scope():
        with _without_gradients(model) as applied:
            backend.compute_output_spec(model.train_step, symbols)
        for optimizer, variables in applied:
            if not optimizer.built:
                optimizer.build(variables)


@contextlib.contextmanager
def _without_gradients(model: Any) -> Iterator[list[tuple[Any, Any]]]:
    """Replace gradients, which need a replica context, by zeros, and only record what is applied."""
    applied: list[tuple[Any, Any]] = []

    def zeros(self: Any, target: Any, sources: Any, *args: Any, **words: Any) -> Any:  # noqa: ARG001
        return tf.nest.map_structure(
            lambda one: tf.zeros_like(one) if tf.is_tensor(one) else tf.zeros(one.shape, one.dtype), sources
        )

    def noting(one: Any) -> Callable[..., None]:
        def apply(grads: Any, trainable_variables: Any = None) -> None:  # noqa: ARG001 - Keras's names
            if trainable_variables is not None:
                applied.append((one, list(trainable_variables)))

        return apply

    with contextlib.ExitStack() as stack:
        stack.callback(setattr, tf.GradientTape, "gradient", tf.GradientTape.gradient)
        tf.GradientTape.gradient = zeros
        for one in _optimizers_of(model):
            stack.callback(delattr, one, "apply")
            one.apply = noting(one)
        yield applied


def _batch_spec(epoch: Any) -> Any:
    """Return the spec of a device's batch, if the data has one: reading a batch takes another iterator.

    Keras's spec of a generator lacks the width of sparse rows, but it has read the first batches.
    """
    first, *_ = getattr(epoch.data_adapter, "_first_batches", [None])
    if any("sparse" in type(one).__module__ for one in tf.nest.flatten(first)):
        return first
    try:
        spec = without_share(epoch._distributed_dataset.element_spec)
        parts = tf.nest.map_structure(of_one_replica, spec)
        known = all(part is None or part.shape.rank is not None for part in tf.nest.flatten(parts))
    except (AttributeError, TypeError, ValueError):
        return first
    return parts if known else first


# A value of each device, as one.


def repair_reduce(module: Any) -> None:
    """Replace `reduce_per_replica` of `keras.src.backend.tensorflow.trainer`.

    Keras averages scalar metrics over an axis that they don't have, and joins the rows of `predict` in an
    order that the workers don't have them in.
    """
    original = module.reduce_per_replica

    @functools.wraps(original)
    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if reduction == "concat" and is_mirrored(strategy):
            # A worker's rows are contiguous, in the order of its devices; Keras assumes another order.
            return trainer.tree.map_structure(lambda value: _gathered(strategy, value), values)
        if reduction not in ("auto", "mean") or not is_mirrored(strategy):
            return original(values, strategy, reduction)

        def reduce(value: Any) -> Any:
            local = strategy.experimental_local_results(value)[0]
            if not tf.is_tensor(local):
                return local  # a number of Python, the same on all workers
            if local.shape.rank == 0:
                return strategy.reduce("MEAN", value, axis=None)
            return original(value, strategy, reduction)

        return trainer.tree.map_structure(reduce, values)

    module.reduce_per_replica = reduce_per_replica


def _gathered(strategy: Any, value: Any) -> Any:
    """Return the rows of all devices in order; ragged ones are gathered as flat values and lengths."""
    if not isinstance(strategy.experimental_local_results(value)[0], tf.RaggedTensor):
        return strategy.gather(value, axis=0)
    flat, *lengths = strategy.run(lambda one: (one.flat_values, *one.nested_row_lengths()), args=(value,))
    return tf.RaggedTensor.from_nested_row_lengths(
        strategy.gather(flat, axis=0), [strategy.gather(one, axis=0) for one in lengths]
    )
