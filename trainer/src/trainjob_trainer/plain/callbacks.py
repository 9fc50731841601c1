"""The first and last callback of `fit`: one restores before the user's callbacks, one records after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras

from trainjob_trainer.checkpoint.snapshot import HostGroups
from trainjob_trainer.engine.callbacks import put_back
from trainjob_trainer.engine.metric_state import scalars
from trainjob_trainer.plain.fit_call import ResumePlan, ScriptCall
from trainjob_trainer.plain.process import PlainProcess
from trainjob_trainer.plain.saving import between_calls, read_variables, resume_midway
from trainjob_trainer.reporting.profiler import Profiler
from trainjob_trainer.reporting.progress import ProgressFile, add_to_history
from trainjob_trainer.reporting.step_times import StepClock


class AtBegin(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """First in the list, so that the user's callbacks see the restored model and write only if allowed."""

    def __init__(self, restore: Callable[[int | None], None], claim_output: Callable[[], None]) -> None:
        """Call `restore` once, with the steps per epoch, after the model is built and before the first step.

        `claim_output` is called before the other callbacks write or delete; it raises if they must not.
        """
        super().__init__()
        self._restore = restore
        self._claim_output = claim_output

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras."""
        self._restore((self.params or {}).get("steps"))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras."""
        self._claim_output()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras; BackupAndRestore deletes its folder at this point."""
        self._claim_output()


class Scoring(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """Reports the progress of evaluations and predictions, which may take longer than a step."""

    async_safe = True

    def __init__(self, progress: ProgressFile) -> None:
        super().__init__()
        self._progress = progress
        self._before = progress.last.state

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras, also as `on_predict_begin`."""
        self._before = self._progress.last.state
        self._progress.update(state="evaluating", evaluated_batches=None)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras, also as `on_predict_batch_end`, with the last batch's number, from 0."""
        self._progress.update(evaluated_batches=batch + 1)

    def on_test_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras, also as `on_predict_end`."""
        self._progress.update(state=self._before, evaluated_batches=None)

    on_predict_begin, on_predict_batch_end, on_predict_end = on_test_begin, on_test_batch_end, on_test_end


class AtEnd(Scoring):
    """Last in the list, so that it sees the decisions of the user's callbacks."""

    async_safe = False

    def __init__(self, process: PlainProcess, call: ScriptCall, users: list[Any]) -> None:
        super().__init__(process.progress)
        self._process = process
        self._call = call
        self._users = users
        self._clock = StepClock()
        self._profiler = Profiler(process.task, process.environment)
        self._step_before = 0
        self._batches = 0
        self._patience = 0.0
        self._held: HostGroups = {}

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras, after the user's callbacks have reset their state."""
        resumed = self._call.resumed
        if resumed is not None and self._call.plan is ResumePlan.RESUME and not resumed.complete:
            put_back(self._users, resumed.callbacks, self._call.resumed_groups)
        if self._call.midway[1]:
            self._held = read_variables(self.model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras, with the epoch's number, from 0."""
        process, call, steps = self._process, self._call, (self.params or {}).get("steps")
        if epoch > call.epoch and steps:  # another callback restored a later epoch
            process.step += (epoch - call.epoch) * int(steps)
        call.epoch = epoch
        before, self._held = self._held, {}
        resume_midway(process, call, self.model, before)
        self._batches = call.batches_before
        self._step_before = process.step - self._batches
        process.progress.update(
            step=process.step,
            total_steps=self._step_before + int(steps) * (call.epochs - epoch) if steps else None,
            epoch=epoch + 1,
            total_epochs=call.epochs,
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called by Keras, with the last batch's number within the epoch, from 0."""
        steps = (self.params or {}).get("steps")
        self._batches = done = min(batch + 1, int(steps)) if steps else batch + 1
        self._process.step = self._step_before + done
        self._process.progress.update(
            state="training",
            step=self._process.step,
            **self._own_time(),
            **self._clock.look(self._process.step, self._call.batch_size),
            **self._figures(logs),
        )
        self._profiler.between_calls(
            self._process.step, self._call.executions.longest if self._call.executions else 1
        )
        is_last = steps and done == int(steps)
        if not is_last and self._call.times.within_epochs:
            between_calls(self._process, self._call, self.model, self._users, done)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras; the script may call `fit` again."""
        self._profiler.pause(self._process.step)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras; `training` saves the state after the last epoch, once all callbacks have ended."""
        call = self._call
        call.epoch = epoch + 1
        call.epochs_run.append(epoch)
        for name, value in (logs or {}).items():
            call.history.setdefault(name, []).append(value)
        figures = self._figures(logs)
        self._process.progress.update(**figures)
        if self._process.is_writer:
            loss = {} if figures.get("loss") is None else {"loss": figures["loss"]}
            metrics = {**loss, **(figures.get("metrics") or {})}
            add_to_history(self._process.environment, self._process.step, metrics)
        if epoch + 1 < call.epochs:
            between_calls(self._process, call, self.model, self._users)

    def on_test_begin(self, logs: Any = None) -> None:
        """Called by Keras; a stop needn't wait for the end of a validation, which has nothing to save."""
        if self._batches and self._call.times.within_epochs:
            between_calls(
                self._process, self._call, self.model, self._users, self._batches, before_validation=True
            )
        super().on_test_begin(logs)
        stop = self._process.stop
        self._patience, stop.patience_seconds = stop.patience_seconds, 0.0

    def on_test_end(self, logs: Any = None) -> None:
        """Called by Keras."""
        super().on_test_end(logs)
        self._process.stop.patience_seconds = self._patience

    def _own_time(self) -> dict[str, Any]:
        own = self._call.own_time
        return {} if own is None else {"work_seconds": own.work, "input_seconds": own.input}

    def _figures(self, logs: Any) -> dict[str, Any]:
        watched = self._call.watch.metrics if self._call.watch else {}
        return _figures({**logs, **watched}) if isinstance(logs, Mapping) else {}


def listed(callbacks: Any) -> list[Any]:
    """Return the script's callbacks as a flat list, from any form that Keras accepts."""
    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    if isinstance(callbacks, (list, tuple)):
        return [one for item in callbacks for one in listed(item)]
    return [callbacks]


def with_ours(callbacks: Any, first: Any, last: Any, model: Any) -> Any:
    """Return the script's callbacks between ours; its own `CallbackList` stays the same object."""
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        return [first, *listed(callbacks), last]
    others = [one for one in callbacks.callbacks if not isinstance(one, (AtBegin, AtEnd))]
    callbacks.callbacks = [first, *others, last]
    for ours in (first, last):
        ours.set_model(model)
        ours.set_params(callbacks.params)
    return callbacks


def with_scoring(callbacks: Any, progress: ProgressFile) -> Any:
    """Return the callbacks of an evaluation or prediction, and ours; the list from `fit` already has it."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return [*listed(callbacks), Scoring(progress)]


def _figures(logs: Mapping[str, Any]) -> dict[str, Any]:
    numbers = scalars(logs)
    loss = numbers.pop("loss", None)
    return {"loss": loss, "metrics": numbers}
