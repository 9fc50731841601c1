"""Many batches in one call under Keras's own `fit` and `evaluate`, if no callback has to see each of them.

Keras calls TensorFlow once per batch (`steps_per_execution`), and with several devices reduces every metric
over them each time. Here a call takes as many batches as fit in half a second; the workers' metrics are
reduced at the end of an epoch. If a callback of the script asks for batches, it gets Keras's calls, with
reduced metrics. Models that run eagerly are left to Keras, one call per batch.

The replaced functions of Keras are private; `has_expected_shape` checks them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any

from trainjob_trainer.distribution.collective import broadcast, is_collective
from trainjob_trainer.distribution.strategy import is_mirrored
from trainjob_trainer.engine.callbacks import TEST_METHODS, sees_batches
from trainjob_trainer.engine.replica_share import by_share, retried
from trainjob_trainer.engine.steps_per_execution import StepsPerExecution
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.plain.fit_call import FitCall, Seen
from trainjob_trainer.plain.keras_repair import fit_class, of_one_replica
from trainjob_trainer.plain.process import PlainProcess, assigned, current_process
from trainjob_trainer.reporting.progress import notice

# The batches of one call, and their data set.


@dataclass
class Batches:
    """What Keras's loop passes on as the iterator: the data, and how many batches the call takes.

    Attributes:
        is_seen: a callback looks at the metrics, so they must be those of all workers.
        most: how many of the batches one TensorFlow call may take.
        is_open: nobody knows where the data ends; the workers read each batch together, before its step.
        at_end: is called once if it ends here.
    """

    iterator: Any
    count: int
    is_seen: bool = False
    most: int = sys.maxsize
    is_open: bool = False
    at_end: Callable[[], None] | None = None

    def __iter__(self) -> Batches:
        """Return itself: Keras reads a first batch to learn the shapes."""
        return self

    def __next__(self) -> Any:
        return next(self.iterator)

    def in_calls(self, most: int = sys.maxsize) -> list[tuple[Any, int]]:
        """Return the data of each TensorFlow call, and how many batches it takes of them, up to `most`.

        Data is an iterator, or a list of one batch if it is open; raises StopIteration at its end.
        """
        if self.is_open:
            read = list(itertools.islice(self.iterator, self.count))
            if not read:
                if self.at_end:
                    self.at_end()
                raise StopIteration
            return [([one], 1) for one in read]
        most = min(self.most, most)
        return [(self.iterator, min(most, self.count - done)) for done in range(0, self.count, most)]


EVALUATION_BATCHES = 32
"""Batches per call of an evaluation if no callback looks at them."""


class Use(Enum):
    """The use of a data set in Keras."""

    FIT = "fit"
    EVALUATE = "evaluate"
    PREDICT = "predict"

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Use:
        """Return the use, by Keras's arguments: only `fit` has class weights, only `predict` no labels."""
        if "class_weight" in arguments:
            return cls.FIT
        return cls.EVALUATE if "y" in arguments else cls.PREDICT


class Shapes(Enum):
    """What is known about the shapes of a data set's batches."""

    EQUAL = "equal"
    LAST_SMALLER = "last-smaller"
    UNKNOWN = "unknown"

    @classmethod
    def of(cls, adapter: Any) -> Shapes:
        """Return the shapes of the batches from one of Keras's adapters."""
        kind, tf = type(adapter).__name__, importlib.import_module("tensorflow")
        if kind == "ArrayDataAdapter":
            if any(type(one).__name__ == "RaggedTensor" for one in tf.nest.flatten(adapter._inputs)):
                return cls.UNKNOWN
            return cls.LAST_SMALLER if adapter.has_partial_batch else cls.EQUAL
        if kind != "TFDatasetAdapter":
            return cls.UNKNOWN
        specs = [of_one_replica(one) for one in tf.nest.flatten(adapter.get_tf_dataset().element_spec)]
        are_known = all(hasattr(one, "shape") and one.shape.is_fully_defined() for one in specs)
        return cls.EQUAL if are_known else cls.UNKNOWN


def take_many_batches(trainer: ModuleType) -> None:
    """Replace methods of two classes in `keras.src.backend.tensorflow.trainer`."""
    kind = fit_class(trainer)
    if hasattr(kind._make_function, "__wrapped__") or not has_expected_shape(trainer):
        return
    kind._make_function = _making(kind._make_function)
    kind.make_predict_function = _making_predictions(kind.make_predict_function)
    kind._resolve_auto_jit_compile = _resolving(kind._resolve_auto_jit_compile)
    kind._get_metrics_result_or_logs = _reading(kind._get_metrics_result_or_logs)
    kind.reset_metrics = _resetting(kind.reset_metrics)
    kind.evaluate = _evaluating(kind.evaluate)
    trainer.TFEpochIterator._enumerate_iterator = _enumerating(trainer.TFEpochIterator._enumerate_iterator)


def has_expected_shape(trainer: ModuleType) -> bool:
    """Return whether the private functions still have the expected parameters."""
    try:
        kind = fit_class(trainer)
        expected = (
            (kind._make_function, ["self", "step_function"]),
            (kind._get_metrics_result_or_logs, ["self", "logs"]),
            (trainer.TFEpochIterator._enumerate_iterator, ["self"]),
        )
        return all(list(inspect.signature(one).parameters) == names for one, names in expected)
    except (AttributeError, TypeError, ValueError):
        return False


_MAKERS = ("make_train_function", "make_test_function")
_KERAS_OWN = ("train_step", "test_step", "compute_metrics", "get_metrics_result")


def takes_many(model: Any) -> bool:
    """Return whether a call of this model may take many batches: its steps are traced, and by Keras."""
    call = current_process().call
    is_ours = is_mirrored(model.distribute_strategy) or (call is not None and call.any_step)
    return is_ours and not model.run_eagerly and are_keras_own(type(model), _MAKERS)


def has_keras_steps(model: Any) -> bool:
    """Return whether the steps are Keras's, which return the metrics and nothing else."""
    return are_keras_own(type(model), _KERAS_OWN)


def are_keras_own(kind: type, methods: Iterable[str]) -> bool:
    """Return whether a class has these methods from Keras or not at all; the class of None has none."""
    found = (getattr(kind, name, None) for name in methods)
    return all(method is None or method.__module__.startswith("keras.") for method in found)


def build_executions(process: PlainProcess, model: Any, callbacks: Sequence[Any]) -> StepsPerExecution | None:
    """Return the steps per execution of a `fit` with the script's callbacks; None: as many as Keras's."""
    call, strategy = process.call, model.distribute_strategy
    if call is None or not is_mirrored(strategy):
        return None
    call.seen = Seen.by_any(strategy, process.task, callbacks)
    if call.seen.batches or not takes_many(model):
        return None
    return StepsPerExecution(lambda value: broadcast(strategy, process.task, [value])[0])


def see_tests(callbacks: Any) -> bool:
    """Return whether a callback of an evaluation, besides ours, looks at its batches."""
    from trainjob_trainer.evaluation import Scoring  # noqa: PLC0415 - needs all of Keras
    from trainjob_trainer.plain.callbacks import listed  # noqa: PLC0415 - as above

    users = [one for one in listed(callbacks) if not isinstance(one, Scoring)]
    return any(sees_batches(one, TEST_METHODS) for one in users)


UNEQUAL_ROWS = "trainjob: unequal rows"
"""The text of an error of TensorFlow, of which `errors_explained` makes a sentence."""
_ENDLESS = "contain an infinite number of elements"
_CAUSES = {
    _ENDLESS: (
        "the data ended within an epoch of steps_per_epoch batches, and several workers can't go on from "
        "there: pass as many steps as there are batches for all epochs, repeat() a tf.data.Dataset, or leave "
        "steps_per_epoch out; then the workers find its end together"
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
    errors = importlib.import_module("tensorflow").errors
    try:
        yield
    except errors.OpError as error:
        for text, cause in _CAUSES.items():
            if text in str(error):
                raise InvalidConfiguration(cause) from error
        raise


def _compiles_in_parts(strategy: Any) -> bool:
    return is_mirrored(strategy) or type(strategy).__name__.startswith("OneDeviceStrategy")


def _resolving(original: Callable[..., Any]) -> Callable[..., Any]:
    """Have `jit_compile="auto"` mean under a strategy what it means without: XLA on GPUs."""

    @functools.wraps(original)
    def _resolve_auto_jit_compile(self: Any) -> bool:
        strategy = self._distribute_strategy
        is_left_out = strategy is not None and not _compiles_in_parts(strategy)
        with assigned(self, "_distribute_strategy", strategy if is_left_out else None):
            return bool(original(self))

    return _resolve_auto_jit_compile


class _With:
    """A model, with other attributes for Keras's maker of a function, which also sets some."""

    def __init__(self, model: Any, **others: Any) -> None:
        self.__dict__.update(others, _model=model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _making_predictions(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compile predictions with XLA as `in_parts` has it."""

    @functools.wraps(original)
    def make_predict_function(self: Any, force: bool = False) -> Any:
        from trainjob_trainer.engine.stepping import in_parts  # noqa: PLC0415 - Keras is imported just now

        is_made = self.predict_function is not None and not force
        if self.jit_compile and not is_made and _compiles_in_parts(self.distribute_strategy):
            step = in_parts(self, self.predict_step, is_writer=current_process().is_writer)
            other = _With(self, predict_step=step, jit_compile=False)
            original(other, force)
            self.predict_function = other.predict_function
            return self.predict_function
        return original(self, force)

    return make_predict_function


def _making(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _make_function(self: Any, step_function: Callable[..., Any]) -> Any:
        import tensorflow as tf  # noqa: PLC0415 - as below

        from trainjob_trainer.engine.stepping import in_parts  # noqa: PLC0415 - as below
        from trainjob_trainer.plain.traced_steps import TracedSteps  # noqa: PLC0415

        many, strategy, jit_compile = takes_many(self), self.distribute_strategy, self.jit_compile
        if many or _compiles_in_parts(strategy):
            step_function = in_parts(self, step_function, is_writer=current_process().is_writer)
            jit_compile = False  # Keras would compile the collectives, too
        with assigned(self, "jit_compile", jit_compile):
            by_keras = retried(original(self, _joint(self, step_function)))
        trainer = importlib.import_module("keras.src.backend.tensorflow.trainer")
        reduce = functools.partial(trainer.reduce_per_replica, strategy=strategy, reduction="auto")
        steps = TracedSteps(self, step_function, reduce) if many else None

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

        function.steps = steps  # type: ignore[attr-defined]
        call = current_process().call
        function.watched_for = call and call.watch and call.watch.on_nan  # type: ignore[attr-defined]
        return function

    return _make_function


def _joint(model: Any, step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step for Keras's own calls, whose gradients and metrics are those of all workers."""
    from trainjob_trainer.engine.gradient_path import GradientPath  # noqa: PLC0415 - Keras is imported just now
    from trainjob_trainer.engine.metric_state import read_over_all  # noqa: PLC0415
    from trainjob_trainer.engine.model_state import optimizers_of  # noqa: PLC0415

    if not is_mirrored(model.distribute_strategy):
        return step
    path = GradientPath(model.distribute_strategy, optimizers_of(model))
    weighed = shared(model, step, step.__name__)

    @functools.wraps(step)
    def joint(data: Any) -> Any:
        with path.summing(), read_over_all(model):
            return weighed(data)

    return joint


def shared(model: Any, step: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the training or test step, as `by_share`; `name` is Keras's of it."""
    return by_share(model, step, name, os.environ, notice if current_process().is_writer else lambda _: None)


def _reading(original: Callable[..., Any]) -> Callable[..., Any]:
    """Reduce all metrics over all workers in one call, at the end of an epoch or evaluation."""

    @functools.wraps(original)
    def _get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        over_all, call = _over_all(self), current_process().call
        is_resumed = call is not None and call.batches_before > 0  # at its end there may be no batch left
        if over_all is None or not (logs or is_resumed):
            return original(self, self.get_metrics_result() if is_resumed and not logs else logs)
        results = over_all.results()
        is_own = logs and not (isinstance(logs, dict) and set(logs) == set(results))
        return logs if is_own else results  # as Keras chooses

    return _get_metrics_result_or_logs


def _resetting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Reset all metrics in one call; Keras contacts the other workers once per variable."""

    @functools.wraps(original)
    def reset_metrics(self: Any) -> None:
        from trainjob_trainer.engine.metric_state import has_own_reset  # noqa: PLC0415 - needs all of Keras

        over_all = _over_all(self)
        original(self) if over_all is None or has_own_reset(self) else over_all.reset()

    return reset_metrics


def _over_all(model: Any) -> Any:
    """Return the `OverAll` of a model whose metrics are reduced at an epoch's end, else None."""
    call = current_process().call
    if call is None:
        return None
    function = model.test_function if call.is_scoring else model.train_function
    steps = getattr(function, "steps", None)
    return steps and steps.over_all


def _evaluating(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let the callbacks of an evaluation within `fit` decide how many batches one call takes."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = current_process().call
        if call is None:
            return original(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs).arguments.get("callbacks")
        is_validation = type(given).__name__ == "CallbackList"
        sees_tests = call.seen.tests if is_validation else see_tests(given)
        sees_tests |= not are_keras_own(type(self), _MAKERS)  # such a function may take one batch a call
        with assigned(call, "sees_tests", sees_tests), assigned(call, "is_scoring", True):
            results = original(self, *args, **kwargs)
        call.validations += is_validation
        return results

    return evaluate


def _enumerating(original: Callable[..., Any]) -> Callable[..., Any]:
    # Older versions of Keras number a call by one of its batches; callbacks then get the last one's number.
    by_pairs = "yield step, iterator" in inspect.getsource(original)

    @functools.wraps(original)
    def _enumerate_iterator(self: Any) -> Iterator[tuple[Any, ...]]:
        call, use = current_process().call, self._trainjob_use
        if call is not None and use is Use.FIT:
            self._trainjob_go_on(call)
        steps = self.steps_per_epoch or self._num_batches or 0
        is_ours = is_mirrored(self._distribute_strategy) or (call is not None and call.any_step)
        if not is_ours or self._trainjob_is_open:
            calls = original(self)
            passed = call.batches_before if call is not None and use is Use.FIT else 0
            if call is not None and passed:
                rereading = None if self.steps_per_epoch else self._trainjob_rereading(passed)
                calls = _after(passed, calls, self.steps_per_execution, rereading)
            if is_ours and use is not Use.PREDICT:
                calls = _open_calls(self, calls, is_seen=_is_seen(call, use))
            yield from calls
            return
        self.data_adapter.on_epoch_begin()
        if self._current_iterator is None or not (self.steps_per_epoch or self._trainjob_endless):
            self._current_iterator, self._steps_seen = iter(self._get_iterator()), 0
        for begin, end, batches in _executions_of(self, steps, call):
            yield (end, batches) if by_pairs else (begin, end, batches)
        if self._num_batches and self._steps_seen >= self._num_batches:
            self._steps_seen = 0
            if self.steps_per_epoch:
                self._current_iterator = iter(self._get_iterator())
            self._trainjob_reopen()
        self.data_adapter.on_epoch_end()

    return _enumerate_iterator


def _open_calls(epoch: Any, calls: Iterator[tuple[Any, ...]], *, is_seen: bool) -> Iterator[tuple[Any, ...]]:
    """Yield Keras's calls on data whose end isn't known before it is reached."""
    rows, count = epoch._trainjob_rows, epoch.steps_per_execution
    at_end = functools.partial(rows.compare, is_end=True) if rows else None
    for *numbers, data in calls:
        yield (*numbers, Batches(data, count, is_seen, is_open=True, at_end=at_end))
        if rows:
            rows.take(count, is_end=epoch._steps_seen == epoch._num_batches)  # known from the first epoch


def reads_over() -> bool:
    """Return whether an epoch can begin after the batches that an earlier attempt took."""
    trainer = importlib.import_module("keras.src.backend.tensorflow.trainer")
    return hasattr(trainer.TFEpochIterator._enumerate_iterator, "__wrapped__")


def _after(
    passed: int, calls: Iterator[tuple[Any, ...]], batches: int, rereading: Any
) -> Iterator[tuple[Any, ...]]:
    """Yield Keras's calls of `batches` batches each, after `passed` batches, which are read if need be."""
    done = passed // batches * batches
    for one in calls:
        if one[0] + batches > passed:
            yield one
        elif rereading is not None:
            if rereading.read(one[-1], done) < done:
                return  # data of unknown length, whose last call got fewer batches
            rereading = None


def _is_seen(call: FitCall | None, use: Use) -> bool:
    """Return whether a callback looks at the metrics of each call; outside `fit` that isn't asked."""
    return call is None or (call.seen.batches if use is Use.FIT else call.sees_tests)


def _executions_of(epoch: Any, steps: int, call: FitCall | None) -> Iterator[tuple[int, int, Any]]:
    """Yield the calls of one epoch: numbers of the first and the last batch, and the data.

    If somebody may look at them, a call has the numbers that Keras gives it: `steps_per_execution` of them,
    even if fewer batches are left. An epoch of `steps_per_epoch` ends with a whole call, as in Keras.
    """
    use, is_seen = epoch._trainjob_use, _is_seen(call, epoch._trainjob_use)
    rows = epoch._trainjob_rows
    trains = call if use is Use.FIT else None
    shapes = Shapes.EQUAL
    if trains and epoch._trainjob_files is None:
        shapes = Shapes.of(epoch.data_adapter)
    whole = 1 if call is not None and call.any_step else epoch.steps_per_execution
    step, total = trains.batches_before if trains else 0, -(-steps // whole) * whole
    if trains and step:
        if not epoch.steps_per_epoch:
            epoch._trainjob_rereading(step).read(epoch._current_iterator, step)
            if rows:
                rows.take(step)
        epoch._steps_seen += step
    if trains and trains.last_step is not None:
        total = min(total, step + trains.last_step - current_process().step)
    while step < total:
        left = (epoch._num_batches or math.inf) - epoch._steps_seen
        if left <= 0:
            if epoch.steps_per_epoch and step < steps:
                epoch._interrupted_warning()
            break
        left = int(min(left, total - step))
        most = most_at_once(left, shapes, gathers=trains.gathers) if trains else left
        count, numbers = min(left, whole), whole
        if trains and trains.executions is not None:
            until_due = most if trains.every is None else trains.every - current_process().step % trains.every
            count = numbers = trains.executions.next_call(min(most, until_due))
        elif use is Use.EVALUATE and not is_seen:
            count = numbers = min(left, EVALUATION_BATCHES)
        epoch._steps_seen += count
        batches: Any = Batches(epoch._current_iterator, count, is_seen, most)
        if use is Use.PREDICT:
            batches = itertools.islice(epoch._current_iterator, count)
        yield step, step + numbers - 1, batches
        step += numbers
        if rows:
            rows.take(count, is_end=step >= total or epoch._steps_seen == epoch._num_batches)


def most_at_once(left: int, shapes: Shapes, *, gathers: bool) -> int:
    """Return how many of the batches that are left one call may take.

    Within one call TensorFlow gathers rows of the first batch's shape (measured with 2.21), so batches of
    another shape need another call.
    """
    if not gathers or shapes is Shapes.EQUAL:
        return left
    return max(1, left - 1) if shapes is Shapes.LAST_SMALLER else 1
