"""Repairs of Keras 3 under a mirrored strategy, of one worker or several.

Three of them prevent errors of `fit`: two "PerReplica" errors (Keras issue 20585), and the refusal of a model
without `call()`. The build reads no batch, which would advance a shuffled data set. They replace private
functions, so they are applied only where Keras's source shows the fault; a test fails as soon as Keras fixes
it. The others make `predict` and `predict_on_batch` return every row once, in order.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from trainjob_trainer.distribution.strategy import is_mirrored
from trainjob_trainer.engine.replica_share import without_share
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.plain.process import current_process
from trainjob_trainer.reporting.progress import announce

_MARK = "_trainjob_repaired"


def repair_keras(trainer: Any) -> bool:
    """Repair `keras.src.backend.tensorflow.trainer` in place, once.

    Returns whether training with several workers should work. If not, a line in the log says what to do.
    """
    if getattr(trainer, _MARK, False):
        return True
    if not _has_expected_shape(trainer):
        announce(
            "this version of Keras has other functions than this release repairs: with several workers `fit` "
            'may end in "ValueError: ... PerReplica". Install a tested version, or a newer trainjob'
        )
        return False
    if has_build_fault(trainer):
        fit_class(trainer)._maybe_symbolic_build = _repaired_build(trainer)
    if has_reduce_fault(trainer):
        trainer.reduce_per_replica = _repaired_reduce(trainer)
        fit_class(trainer).predict_on_batch = _repaired_predict_on_batch(trainer)
    setattr(trainer, _MARK, True)
    return True


def fit_class(trainer: Any) -> Any:
    """Return the class that has `fit`; Keras 3.16 renamed it."""
    return getattr(trainer, "TensorFlowTrainer", None) or trainer.Trainer


def has_build_fault(trainer: ModuleType) -> bool:
    """Return whether Keras still reduces the first batch, a tuple of per-replica values, as one tensor."""
    source = inspect.getsource(fit_class(trainer)._maybe_symbolic_build)
    return re.search(r"distribute_strategy\.reduce\(", source) is not None


def has_reduce_fault(trainer: ModuleType) -> bool:
    """Return whether Keras still averages scalar metrics over an axis that they do not have."""
    source = inspect.getsource(trainer.reduce_per_replica)
    return re.search(r'strategy\.reduce\("MEAN", v, axis=0\)', source) is not None


def _repaired_build(trainer: ModuleType) -> Callable[..., None]:
    original = fit_class(trainer)._maybe_symbolic_build

    @functools.wraps(original)
    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self._distribute_strategy
        # Before the step is traced, not for each `train_on_batch`.
        is_new = self.train_function is None or (iterator is not None and self.test_function is None)
        bring_into_strategy(self, self.variables if strategy is not None and is_new else ())
        if strategy is None:
            # A checkpoint to resume needs the variables now; Keras would create them in the first step.
            record = getattr(current_process().call, "record", None)
            goes_on = record is not None and record.store.steps()
            if iterator is not None and self.train_function is None and goes_on:
                spec = _batch_spec(iterator)
                self._symbolic_build(data_batch=spec) if has_call(self) else _build_by_its_step(self, spec)
            return
        if not is_mirrored(strategy):
            original(self, iterator=iterator, data_batch=data_batch)
            return
        if iterator is not None:
            data_batch = _batch_spec(iterator)
        if iterator is not None and data_batch is None:
            for *_, batches in iterator:
                data_batch = trainer.tree.map_structure(
                    lambda value: strategy.experimental_local_results(value)[0], without_share(next(batches))
                )
                break
        call = current_process().call
        if iterator is not None and call is not None:
            replicas = strategy.num_replicas_in_sync
            trouble = fixed_batch_trouble(_fixed_rows(self), call.batch_size, replicas)
            if trouble:
                raise InvalidConfiguration(trouble)
        for optimizer in _optimizers_of(self):  # Keras uses the scope of its creation, which may be none
            optimizer._distribution_strategy = strategy
        if has_call(self):
            original(self, data_batch=data_batch)
        elif self.train_function is None:
            _build_by_its_step(self, data_batch)
        of_optimizers = [one for optimizer in _optimizers_of(self) for one in optimizer.variables]
        bring_into_strategy(self, [*self.metrics_variables, *of_optimizers] if is_new else ())

    return _maybe_symbolic_build


def bring_into_strategy(model: Any, variables: Sequence[Any]) -> None:
    """Create again, in the scope, what a call of the model, `compile()` or a metric has created outside it.

    Otherwise each worker has its own weights and counts only its own rows, and a step counts once for each
    device of a worker.
    """
    strategy, tf = model.distribute_strategy, importlib.import_module("tensorflow")
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
    tf = importlib.import_module("tensorflow")
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
    tf = importlib.import_module("tensorflow")
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


def of_one_replica(spec: Any) -> Any:
    """Return the spec of one device's part; None if a device may get nothing."""
    components = getattr(spec, "_component_specs", None)
    if type(spec).__name__ == "PerReplicaSpec" and components:
        spec = components[0]
    return None if type(spec).__name__ == "OptionalSpec" else spec


def _repaired_reduce(trainer: ModuleType) -> Callable[..., Any]:
    original = trainer.reduce_per_replica

    @functools.wraps(original)
    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if reduction == "concat" and is_mirrored(strategy):
            # A worker's rows are contiguous, in the order of its devices; Keras assumes another order.
            return trainer.tree.map_structure(lambda value: _gathered(strategy, value), values)
        if reduction not in ("auto", "mean") or not is_mirrored(strategy):
            return original(values, strategy, reduction)

        def reduce(value: Any) -> Any:
            local = strategy.experimental_local_results(value)[0]
            if not trainer.tf.is_tensor(local):
                return local  # a number of Python, the same on all workers
            if local.shape.rank == 0:
                return strategy.reduce("MEAN", value, axis=None)
            return original(value, strategy, reduction)

        return trainer.tree.map_structure(reduce, values)

    return reduce_per_replica


def _gathered(strategy: Any, value: Any) -> Any:
    """Return the rows of all devices in order; ragged ones are gathered as flat values and lengths."""
    ragged = importlib.import_module("tensorflow").RaggedTensor
    if not isinstance(strategy.experimental_local_results(value)[0], ragged):
        return strategy.gather(value, axis=0)
    flat, *lengths = strategy.run(lambda one: (one.flat_values, *one.nested_row_lengths()), args=(value,))
    return ragged.from_nested_row_lengths(
        strategy.gather(flat, axis=0), [strategy.gather(one, axis=0) for one in lengths]
    )


def _repaired_predict_on_batch(trainer: ModuleType) -> Callable[..., Any]:
    """Have each worker predict its own batch alone; Keras returns the rows of all workers."""
    original = fit_class(trainer).predict_on_batch

    @functools.wraps(original)
    def predict_on_batch(self: Any, x: Any) -> Any:
        strategy = self.distribute_strategy
        if not is_mirrored(strategy):
            return original(self, x)
        self.make_predict_function()
        predict = getattr(self.predict_function, "on_this_worker", None)
        if predict is None:
            predict = self.predict_function.on_this_worker = _predicting(self, strategy)
        return trainer.tree.map_structure(
            lambda value: trainer.convert_to_np_if_not_ragged(strategy.experimental_local_results(value)[0]),
            predict((x,)),
        )

    return predict_on_batch


def _predicting(model: Any, strategy: Any) -> Callable[[Any], Any]:
    tf = importlib.import_module("tensorflow")

    def predict(data: Any) -> Any:
        return strategy.run(model.predict_step, args=(data,))

    return predict if model.run_eagerly else tf.function(predict, autograph=False, reduce_retracing=True)


def _has_expected_shape(trainer: ModuleType) -> bool:
    try:
        build = inspect.signature(fit_class(trainer)._maybe_symbolic_build)
        reduce = inspect.signature(trainer.reduce_per_replica)
    except (AttributeError, TypeError, ValueError):
        return False
    return list(build.parameters) == ["self", "iterator", "data_batch"] and list(reduce.parameters) == [
        "values",
        "strategy",
        "reduction",
    ]
