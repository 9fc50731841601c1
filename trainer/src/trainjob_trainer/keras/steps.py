"""Many training steps in one TensorFlow call: Python code runs twice a second, not at each step."""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as losses

from trainjob_trainer.keras.data import Batches
from trainjob_trainer.keras.gradients import GradientPath, any_of, has_fixed_rows
from trainjob_trainer.keras.metrics import (
    MetricState,
    OverAll,
    have_effects,
    read_over_all,
    results_noted,
)
from trainjob_trainer.keras.not_finite import Found, OnNan
from trainjob_trainer.keras.shares import retried
from trainjob_trainer.keras.trainer import has_keras_steps, shared
from trainjob_trainer.keras.work_time import OwnTime, data_moment, moment_after, own_seconds
from trainjob_trainer.reporting.progress import announce
from trainjob_trainer.session import current_session

# XLA for Keras's own training and test steps, with any number of workers.
#
# XLA can't compile collectives: TensorFlow refuses them on CPUs and ends the process on GPUs. So the two
# passes of a training step are one compiled function, outside which gradients are summed and applied. A test
# step has no collectives, and is one as a whole.


def in_parts(model: Any, step: Callable[..., Any], *, is_writer: bool) -> Callable[..., Any]:
    """Return a device's step, with what XLA can compile of it compiled if the model asks for XLA.

    What can't be compiled is left to TensorFlow, and the writer logs why. That is known while the step is
    traced: no batch is lost, and all workers find the same.
    """
    if not model.jit_compile or model.run_eagerly:
        return step

    def leave_out(reason: str) -> None:
        model.jit_compile = False
        if is_writer:
            announce(f"XLA (jit_compile) is left out: {reason}")

    own = reason_against(model)
    if own is not None and step.__name__ != "predict_step":
        leave_out(own)

    @functools.wraps(step)
    def compiled(data: Any) -> Any:
        if not model.jit_compile:
            return step(data)
        # Each device has its own function, which holds that device's variables.
        trains = step.__name__ == "train_step"
        parts: Any = _passes(model) if trains else step
        function = tf.function(parts, jit_compile=True, autograph=False)
        reason = _reason_of_xla(function, data)
        if reason is not None:
            leave_out(reason)
            return step(data)
        return _applied(model, data, function(data), parts.have_fixed_rows) if trains else function(data)

    return compiled


def _reason_of_xla(function: Any, data: Any) -> str | None:
    """Return why XLA can't compile a function of the step that is being traced; None if it can.

    XLA is asked for its program. Open dimensions get a size: which operations it knows doesn't depend on it.
    """
    concrete = function.get_concrete_function(data)
    inputs = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    try:
        specs = [tf.TensorSpec([size or 8 for size in one.shape], one.dtype) for one in inputs]
        with tf.device(tf.zeros([]).device), tf.init_scope():
            importlib.import_module("tensorflow.python.eager.context").context().get_compiler_ir(
                device_name=tf.identity(tf.zeros([])).device,
                platform_name=None,
                function_name=concrete.name,
                flat_args=specs,
                captured_inputs=[_outside(one) for one in concrete.captured_inputs],
                stage="hlo",
            )
    except (ValueError, tf.errors.OpError) as error:
        return str(error).removeprefix("Failed getting HLO text: '").partition("{{")[0].partition("\n")[0]
    return None


def _outside(tensor: Any) -> Any:
    """Return the value outside all graphs that a captured tensor stands for; zeros for one of a graph."""
    while hasattr(tensor, "graph"):
        known = [one for one, inner in getattr(tensor.graph, "captures", ()) if inner is tensor]
        if not known:
            return tf.zeros([size or 8 for size in tensor.shape], tensor.dtype)
        tensor = known[0]
    return tensor


def reason_against(model: Any) -> str | None:
    """Return why XLA can't compile this model's steps; None if it can."""
    for name in ("train_step", "test_step"):
        if not getattr(type(model), name).__module__.startswith("keras."):
            return f"{type(model).__name__} has a {name} of its own"
    for layer in model._flatten_layers():
        if getattr(layer, "synchronized", False):
            return f"the layer {layer.name} meets the other workers in the forward pass"
    return None


def _passes(model: Any) -> Any:
    """Return the forward and the backward pass of a training step, as a function of a batch."""
    have_fixed_rows: list[bool] = []

    def passes(data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True) if model._call_has_training_arg else model(x)
            loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weights, training=True)
            scaled = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_weights)
        have_fixed_rows[:] = map(has_fixed_rows, gradients)  # this is not visible outside
        return y_pred, loss, gradients

    passes.have_fixed_rows = have_fixed_rows  # type: ignore[attr-defined]
    return passes


def _applied(model: Any, data: Any, passed: Any, are_fixed: list[bool]) -> Any:
    (x, y, weights), (y_pred, loss, gradients) = keras.utils.unpack_x_y_sample_weight(data), passed
    for gradient, is_fixed in zip(gradients, are_fixed, strict=True):
        if is_fixed:
            gradient.has_fixed_rows = True
    model.optimizer.scale_loss(loss)  # for watchers of the loss, which can't see the call in `passes`
    examples = tf.shape(next(one for one in tf.nest.flatten(x) if one is not None))[0]
    model._loss_tracker.update_state(losses.unscale_loss_for_distribution(loss), sample_weight=examples)
    if gradients:
        model.optimizer.apply(gradients, model.trainable_weights)
    return model.compute_metrics(x, y, y_pred, sample_weight=weights)


_MANY_VARIABLES = 50
"""From this number on, preparing the first step takes seconds."""


def announce_first_step(model: Any) -> None:
    """Log what a start waits for, if that takes seconds; call it before the first step."""
    count = len(model.trainable_variables)
    if count >= _MANY_VARIABLES:
        announce(
            f"the model is built, with {count} variables to train; its first step is being traced and "
            "optimized, which takes far longer than later steps"
        )


@contextlib.contextmanager
def rewritten_once() -> Iterator[None]:
    """Make TensorFlow rewrite the graphs called in this context once before their first run, not twice.

    The second pass takes as long as the first and finds almost nothing: of 4,206 operations of a model of
    100 variables it removes one. All calls of a function need this context, or TensorFlow rewrites it again.
    """
    eager = importlib.import_module("tensorflow.python.eager.context").context()
    options = eager.function_call_options
    config = tf.compat.v1.ConfigProto.FromString(options.config_proto_serialized)
    rewriting = config.graph_options.rewrite_options
    rewriting.meta_optimizer_iterations = rewriting.ONE
    eager.function_call_options = type(options)(options.executor_type, config)
    try:
        yield
    finally:
        eager.function_call_options = options


class ManySteps:
    """A device's step, run many times in one call, and `results` after the last step.

    What a step returns is dropped, so that only the gradients are reduced over the workers. With `reduce`, a
    call takes one step, and returns what this makes of the step's own results on all devices. `own_time` and
    `found` describe the last call.
    """

    def __init__(
        self,
        strategy: Any,
        step: Callable[[Any], Any],
        results: Callable[[], Any] = dict,
        path: GradientPath | None = None,
        *,
        reduce: Callable[[Any], Any] | None = None,
    ) -> None:
        self._strategy = strategy
        self._step = step
        self._results = results
        self._reduce = reduce
        self._path = path or GradientPath(strategy)
        self._call = retried(tf.function(self._traced, autograph=False, reduce_retracing=True))
        self.own_time = OwnTime()
        self.found = Found()

    def take(self, iterator: Any, count: int) -> Any:
        """Take `count` steps, the same count on every worker; return `results` of the devices.

        Instead of an iterator it may be a list of one batch, for one step.
        """
        with rewritten_once():
            results, spent, *found = self._call(iterator, tf.constant(count, tf.int32))
        self.own_time = OwnTime.of(spent, count)  # waits for the call's end
        if found:
            first = self._strategy.experimental_local_results(found[0])[0]
            self.found = Found([round(float(one)) for one in first.numpy()], int(found[1]))
        return results

    def _traced(self, iterator: Any, count: Any) -> Any:
        watched, reduced = self._path.on_nan is not OnNan.IGNORE, list[Any]()

        def body(done: Any, spent: Any, *found: Any) -> Any:
            began = moment_after([done])
            with tf.control_dependencies([began]):
                data = iterator[0] if isinstance(iterator, list) else next(iterator)
            had = data_moment(data)
            one, returned = self._strategy.run(self._one_step, args=(data,))
            if self._reduce is not None:
                reduced.append(self._reduce(returned))
            later = self._noted(done, found, one) if watched else ()
            own = own_seconds(self._strategy, began, had, one["ready"])
            return (done + 1, spent + own, *later)

        none = (tf.constant(0), tf.constant(0)) if watched else ()
        begin = (tf.constant(0), tf.zeros([2], tf.float64), *none)
        if self._reduce is not None:
            _, spent, *found = body(*begin)
        else:
            _, spent, *found = tf.while_loop(lambda done, *_: done < count, body, begin)
        results, first = self._strategy.run(self._told, args=tuple(found[:1]))
        faults = (first, found[1]) if watched else ()
        return reduced[0] if reduced else results, spent, *faults

    def _one_step(self, data: Any) -> tuple[dict[str, Any], Any]:
        returned: list[Any] = []
        traced = self._path.trace(lambda: returned.append(self._step(data)))
        return vars(traced), returned[0] if self._reduce is not None else ()

    def _noted(self, done: Any, found: Any, one: dict[str, Any]) -> tuple[Any, Any]:
        first, skipped = found
        local = self._strategy.experimental_local_results
        is_first = any_of(local(one["fault"])) & (first == 0)
        is_skipped = any_of(local(one["skipped"]))
        return tf.where(is_first, done + 1, first), skipped + tf.cast(is_skipped, tf.int32)

    def _told(self, first: Any = None) -> tuple[Any, Any]:
        """Return the results, and each device's first step with a fault: all devices exchange it."""
        results = self._results()
        if first is None:
            return results, None
        # As float32, like the metrics: it counts the steps of even the longest call exactly.
        context = tf.distribute.get_replica_context()
        mine = tf.one_hot(context.replica_id_in_sync_group, self._strategy.num_replicas_in_sync)
        return results, context.all_reduce(tf.distribute.ReduceOp.SUM, mine * tf.cast(first, tf.float32))


# The calls of a compiled model's training or test step, for Keras's own `fit` and `evaluate`.


class _ResultsAreUsed(Exception):
    """A step of the user's uses a metric's result, which then must be that of all workers."""


class TracedSteps:
    """Takes many batches of a compiled model in one TensorFlow call.

    For a step of the user's, `reduce` is Keras's reduction of what it returns: that of the last batch counts.
    A metric that such a step reads is one of all workers. That takes a meeting, and so is done in the last
    batch alone, unless the step does more with the result than return it.
    """

    def __init__(self, model: Any, step: Callable[..., Any], reduce: Callable[[Any], Any]) -> None:
        self._model = model
        self._strategy = model.distribute_strategy
        self._trains = step.__name__ == "train_step"
        path, call = None, current_session().call
        step = shared(model, step, step.__name__)
        if self._trains and call is not None:
            path = GradientPath.of(model, self._strategy, call.watch.on_nan)
        with_optionals = getattr(model, "_autoconvert_optionals", None)  # only in newer versions of Keras
        self._step = step = with_optionals(step) if with_optionals else step
        self._is_own, self._uses_results, self._done = not has_keras_steps(model), False, 0
        if self._is_own:
            self._local = ManySteps(self._strategy, self._unread, path=path)
            self._seen = ManySteps(self._strategy, self._reading, path=path, reduce=reduce)
        else:
            self._local = ManySteps(self._strategy, step, model.get_metrics_result, path)
            self._seen = ManySteps(self._strategy, step, self._results_over_all, path)
        self.over_all = OverAll(self._strategy, model)
        self._is_announced = not (self._trains and current_session().is_writer)

    def take(self, batches: Batches) -> Any:
        """Take the batches; return what a step of the user's returns, or else the metrics.

        Those are this worker's, or of all workers if a callback looks at them. Raises NotFinite if a loss or
        a gradient is not finite, and that ends the training.
        """
        if not self._is_announced:
            self._is_announced = True
            announce_first_step(self._model)
        call, began = current_session().call, time.perf_counter()
        self._done = 0
        for data, count in batches.in_calls():
            if not self._is_own:
                results = self._run(self._seen if batches.is_seen else self._local, data, count)
                continue
            unread, left = count - (self._done + count == batches.count or batches.is_open), count
            if unread and not self._uses_results:
                try:
                    results = self._run(self._local, data, unread)
                    left -= unread
                except _ResultsAreUsed:
                    self._uses_results = True
            for _ in range(left):
                results = self._run(self._seen, data, 1)
        if call is not None and self._trains:
            if call.executions is not None:
                call.executions.record(batches.count, time.perf_counter() - began)
            call.gathers = any(getattr(one, "is_gathered", False) for one in self._model.trainable_variables)
        if self._is_own:
            return results
        return {name: self._strategy.experimental_local_results(one)[0] for name, one in results.items()}

    def _run(self, steps: ManySteps, data: Any, count: int) -> Any:
        session = current_session()
        results, call = steps.take(data, count), session.call
        if call is not None and self._trains:
            call.own_time = steps.own_time
            call.watch.look(steps.found, session.step + self._done)
        self._done += count
        return results

    def _results_over_all(self) -> Any:
        state = MetricState(self._model)
        return state.results(state.reduced())

    def _reading(self, data: Any) -> Any:
        with read_over_all(self._model):
            return self._step(data)

    def _unread(self, data: Any) -> None:
        with results_noted(self._model) as noted:
            self._step(data)
        if have_effects(noted):
            raise _ResultsAreUsed
