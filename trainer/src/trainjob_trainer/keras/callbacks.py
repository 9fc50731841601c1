"""The first and last callback of `fit`: one restores before the user's callbacks, one records after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from trainjob_trainer.checkpoint.snapshot import HostGroups, NamedArray, assign, read
from trainjob_trainer.distribution.collective import broadcast
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.evaluation import Scoring
from trainjob_trainer.keras.callback_state import put_back, remembered, remembered_weights
from trainjob_trainer.keras.fit_call import GROUP, FitCall, FitState
from trainjob_trainer.keras.metrics import METRICS, MetricState, OverAll, scalars
from trainjob_trainer.keras.model import checkpoint_groups
from trainjob_trainer.reporting.progress import ProgressFile, add_to_history, by_loss, notice
from trainjob_trainer.reporting.step_times import StepClock
from trainjob_trainer.session import Session


class AtBegin(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """First in the list, so that the user's callbacks see the restored model and write only if allowed."""

    def __init__(self, restore: Callable[[int | None], None], claim_output: Callable[..., None]) -> None:
        """Call `restore` once, with the steps per epoch, after the model is built and before the first step.

        `claim_output` is called before the other callbacks write or delete; it raises if they must not. At an
        epoch's end training must not wait for it: most callbacks write nothing.
        """
        super().__init__()
        self._restore = restore
        self._claim_output = claim_output

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras."""
        self._restore((self.params or {}).get("steps"))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras."""
        self._claim_output(waits=False)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras; BackupAndRestore deletes its folder at this point."""
        self._claim_output()


_SAVE, _STOP, _END = 1, 2, 4


class AtEnd(Scoring):
    """Last in the list, so that it sees the decisions of the user's callbacks."""

    async_safe = False

    def __init__(self, session: Session, call: FitCall, users: Sequence[Any]) -> None:
        super().__init__(session.progress)
        self.session = session
        self.call = call
        self.users = users
        self._held: HostGroups = {}
        self._clock = StepClock()
        self._step_before = 0
        self._batches = 0
        self._patience = 0.0
        self._has_rate_zero = False

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras, after the user's callbacks have reset their state, or restored another.

        Raises InvalidConfiguration if one has restored another epoch here than on the first worker.
        """
        self._over_all = OverAll(self.model.distribute_strategy, self.model)
        epoch = int(self.model._initial_epoch or 0)
        (theirs,) = broadcast(self.model.distribute_strategy, self.session.task, [epoch])
        if epoch != theirs:
            raise InvalidConfiguration(
                f"{self.session.task.replica} begins after {epoch} epochs, the first worker after {theirs}: "
                "a callback has restored another state here; have it use a folder that all workers share, "
                "such as $TRAINJOB_OUTPUT_DIR"
            )
        lost = put_back(self.users, self.call.remembered, self.call.resumed_groups)
        if lost and self.session.is_writer:
            notice(
                "these callbacks start without the state that they had at the checkpoint: "
                f"{', '.join(lost)}. Only the state of Keras's own callbacks is saved: write that of yours "
                "to a file, and read it in on_train_begin"
            )
        if self.call.midway[1]:
            self._held = read(checkpoint_groups(self.model))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras, with the epoch's number, from 0.

        In a resumed epoch, undo what the user's callbacks did just now, since the restored variables include
        it: one may multiply the learning rate each time.
        """
        session, call, steps = self.session, self.call, (self.params or {}).get("steps")
        if epoch > call.epoch and steps:  # another callback restored a later epoch
            session.step += (epoch - call.epoch) * int(steps)
        call.epoch = epoch
        host, call.resumed_groups = call.resumed_groups, {}
        held, self._held = self._held, {}
        if call.batches_before:
            assign(checkpoint_groups(self.model), held)
            MetricState(self.model).put_back(host.get(METRICS, ()), is_writer=session.is_writer)
        self._batches = call.batches_before
        self._step_before = session.step - self._batches
        if steps and session.is_writer:
            self._say_once_if_the_rate_stays_zero(int(steps) * (call.epochs - epoch) - self._batches)
        session.progress.update(
            step=session.step,
            total_steps=self._step_before + int(steps) * (call.epochs - epoch) if steps else None,
            epoch=epoch + 1,
            total_epochs=call.epochs,
        )

    def _say_once_if_the_rate_stays_zero(self, steps_left: int) -> None:
        """Give a notice of a schedule that has come to its end: a warm-up or a cycle leaves zero again.

        Only Keras's own are asked: a script's may take nothing but a tensor, or count its calls.
        """
        optimizer = self.model.optimizer
        schedule: Any = getattr(optimizer, "_learning_rate", None)
        is_keras = type(schedule).__module__.startswith("keras.src.optimizers.schedules.")
        if self._has_rate_zero or not is_keras:
            return
        done = int(optimizer.iterations)
        self._has_rate_zero = not any(
            float(schedule(done + step)) for step in {0, steps_left // 2, steps_left - 1}
        )
        if self._has_rate_zero:
            notice(
                f"the learning rate is 0 after {done} steps, by {type(schedule).__name__}: the {steps_left} "
                "remaining steps change no weight. Give the schedule as many steps as the training has"
            )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called by Keras, with the last batch's number within the epoch, from 0."""
        steps = (self.params or {}).get("steps")
        self._batches = done = min(batch + 1, int(steps)) if steps else batch + 1
        self.session.step = self._step_before + done
        own = self.call.own_time
        self.session.progress.update(
            state="training",
            step=self.session.step,
            **({} if own is None else {"work_seconds": own.work, "input_seconds": own.input}),
            **self._clock.look(self.session.step, self.call.batch_size),
            **by_loss(self.figures(logs)),
        )
        is_last = steps and done == int(steps)
        if not (is_last or self.call.is_ahead):
            self._between_calls(done)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras; `save_end` saves the state after the last epoch, once all callbacks have ended."""
        call = self.call
        call.epoch = epoch + 1
        call.kept.epochs.append(epoch)
        for name, value in (logs or {}).items():
            call.kept.history.setdefault(name, []).append(value)
        figures = self.figures(logs)
        self.session.progress.end_epoch(**by_loss(figures))
        if self.session.is_writer:
            add_to_history(self.session.environment, self.session.step, figures)
        if epoch + 1 < call.epochs:
            self._between_calls()

    def on_test_begin(self, logs: Any = None) -> None:
        """Called by Keras; a stop needn't wait for the end of a validation, which has nothing to save."""
        if self._batches:
            self._between_calls(self._batches, before_validation=True)
        super().on_test_begin(logs)
        stop = self.session.stop
        self._patience, stop.patience_seconds = stop.patience_seconds, 0.0

    def on_test_end(self, logs: Any = None) -> None:
        """Called by Keras."""
        super().on_test_end(logs)
        self.session.stop.patience_seconds = self._patience

    def figures(self, logs: Any) -> dict[str, float]:
        """Return those of Keras's `logs` that are single numbers, and the number of skipped updates."""
        if not isinstance(logs, Mapping):
            return {}
        return {**scalars(logs), **self.call.watch.metrics}

    def _between_calls(self, batches: int = 0, *, before_validation: bool = False) -> None:
        """Save if a checkpoint is due, end the process if a stop is requested. All workers call it together.

        `batches` is the number of batches taken of the current epoch; 0 at an epoch's end. Training ends on
        all workers if the writer's `stop_training` is set, and nothing is saved. Before a validation a
        checkpoint is saved only if a stop is requested: otherwise it waits for the epoch's end and the
        epoch's metrics.

        Raises:
            OutputUnwritable: an earlier checkpoint can't be written.
            Fenced, OutputTaken: a newer start of this job, or another job, has taken over the output.
            NotFinite: the weights are not finite.
            WeightsDiverged, PeerLost: as `WeightsWatch.compare`.
            Preempted: a stop was requested; the current state is saved.
        """
        session, call, writer = self.session, self.call, self.call.record.writer

        def wishes() -> int:
            if self.model.stop_training and not before_validation:
                return _END
            if not session.is_writer:
                return 0
            writer.watch()
            is_due = call.times.is_due(session.step, epoch_ends=not batches, is_writing=writer.is_writing)
            return _SAVE * (is_due and not before_validation) + _STOP * session.stop.requested

        may_end = not batches or (call.seen.batches and not before_validation)
        now = may_end or before_validation or call.times.has_come(session.step)
        wished = call.looks.after_call(wishes, now=now)
        if may_end:
            self.model.stop_training = bool(wished & _END)
        if not wished or wished & _END:
            return
        with call.times.saving(session.step):
            call.weights.compare(checkpoint_groups(self.model), session.step)
            metrics = self._over_all.state() if batches else []
            writer.between_steps(
                session.step,
                call.epoch,
                True,
                lambda: self.saved(batches, metrics),
                call.record.ends,
                is_stopping=bool(wished & _STOP),
            )

    def saved(
        self, batches: int = 0, metrics: Sequence[NamedArray] = (), *, complete: bool = False
    ) -> HostGroups:
        """Read what a checkpoint holds; raises NotFinite if the weights are not finite."""
        call, past = self.call, list(self.call.record.past)
        if not complete:
            past.append(call.as_past(batches))
        state = FitState(
            call=call.number,
            epochs_done=call.epoch,
            epochs_asked=call.epochs,
            complete=complete,
            past=tuple(past),
            callbacks=remembered(self.users),
            settings=call.settings,
            batches_done=batches,
        )
        variables = checkpoint_groups(self.model)
        values = read(variables)
        call.watch.check_weights(variables, values)
        return {
            **values,
            METRICS: list(metrics),
            **remembered_weights(self.users),
            GROUP: state.to_arrays(),
        }


def listed(callbacks: Any) -> list[Any]:
    """Return the script's callbacks as a flat list, from any form that Keras accepts."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return [one for one in keras.tree.flatten(callbacks) if one is not None]


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
    """Return the callbacks of an evaluation or prediction, with ours once; the list from `fit` has it."""
    users = listed(callbacks)
    if isinstance(callbacks, keras.callbacks.CallbackList) or any(isinstance(one, Scoring) for one in users):
        return callbacks
    return [*users, Scoring(progress)]
