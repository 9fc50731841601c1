"""What a training replica reports (progress, TensorBoard summaries, log lines), and the model it leaves."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from trainjob_trainer.checkpoint.files import Files
from trainjob_trainer.checkpoint_manager import Ending
from trainjob_trainer.engine.work_time import OwnTime
from trainjob_trainer.errors import first_line, is_tensorflows
from trainjob_trainer.recipe import TrainingPlan
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.machine import Machine
from trainjob_trainer.reporting.progress import add_to_history, announce, by_loss, notice
from trainjob_trainer.reporting.summaries import Summaries

_SECONDS_BETWEEN_LINES = 2.0
SECONDS_BETWEEN_FIGURES = 15.0
"""Interval of machine and step time figures in TensorBoard."""


class Recorder:
    """Reports of one training; of other workers than the writer, TensorBoard gets the GPUs' figures alone."""

    def __init__(
        self,
        replica: Replica,
        plan: TrainingPlan,
        clock: Callable[[], float] = time.monotonic,
        machine: Machine | None = None,
        *,
        prints_lines: bool = True,
    ) -> None:
        self._replica = replica
        self._plan = plan
        self._clock = clock
        self._is_writer = replica.task.is_writer
        self._prints_lines = self._is_writer and prints_lines
        logs = replica.environment.log_dir
        self._summaries = Summaries(logs if self._is_writer else logs.with_name(replica.task.replica))
        self._machine = machine or Machine()
        self._steps = 0
        self._seconds = self._known_seconds = self._waited = 0.0
        self._line_at = self._figures_at = self._metrics_at = clock()
        self._speed = 0.0

    def begin(self, step: int) -> None:
        """Report that training starts at `step`."""
        self._replica.progress.update(
            state="training",
            step=step,
            total_steps=self._plan.total_steps,
            epoch=self._plan.epoch_at(step),
            total_epochs=self._plan.total_epochs,
            resumed_from=step or None,
            global_batch=self._plan.global_batch,
        )

    def record_call(
        self, step: int, count: int, seconds: float, own: OwnTime, logs: Mapping[str, float]
    ) -> None:
        """Report that `count` steps took `seconds` and ended at `step`.

        `own` is this process's own time in one step; `logs` are this worker's own metrics.
        """
        self._steps += count
        self._seconds += seconds
        if own.input is not None:
            self._known_seconds += seconds
            self._waited += count * own.input
        self._speed = count * self._plan.global_batch / max(seconds, 1e-9)
        self._replica.progress.update(
            state="training",
            step=step,
            epoch=self._plan.epoch_at(step),
            examples_per_second=self._speed,
            step_seconds=seconds / max(count, 1),
            work_seconds=own.work,
            input_seconds=own.input,
            **by_loss(logs),
        )
        if self._clock() - self._figures_at >= SECONDS_BETWEEN_FIGURES:
            self._write_figures(step, logs)

    def record_epoch(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report that an epoch ended at `step`; `metrics` are reduced over all workers."""
        self._replica.progress.update(**by_loss(metrics))
        if self._is_writer:
            add_to_history(self._replica.environment, step, metrics)
            self._summaries.write(step, {**metrics, "examples_per_second": self._speed})
        self._metrics_at = self._clock()
        if self._prints_lines and self._clock() - self._line_at >= _SECONDS_BETWEEN_LINES:
            self._line_at = self._clock()
            shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            done = f"step {step}/{self._plan.total_steps}"
            announce(f"{done}, {shown}, {self._speed:,.0f} examples/s")

    def end(self, ending: Ending) -> None:
        """Report that training has ended."""
        self._write_figures(ending.step, {})
        self._summaries.flush()
        self._replica.progress.update(
            state="finished",
            step=ending.step,
            stopped_early=ending.stopped_early or None,
            **by_loss(ending.metrics),
        )
        self._replica.progress.flush()

    def _write_figures(self, step: int, logs: Mapping[str, float]) -> None:
        """Write figures of step times and machine; in long epochs also this worker's metrics so far."""
        is_long = self._metrics_at <= self._figures_at
        self._figures_at = self._clock()
        figures = self._machine.figures()
        if not self._is_writer:
            of_gpus = {name: value for name, value in figures.items() if name.startswith("gpu_")}
            self._summaries.write(step, of_gpus)
            return
        if self._steps:
            figures["step_seconds"] = self._seconds / self._steps
        if self._known_seconds > 0:  # two clocks measure them
            figures["input_share"] = min(1.0, max(0.0, self._waited / self._known_seconds))
        self._steps, self._seconds, self._known_seconds, self._waited = 0, 0.0, 0.0, 0.0
        metrics = {**logs, "examples_per_second": self._speed} if logs and is_long else {}
        self._summaries.write(step, {**metrics, **figures})
        self._summaries.flush()


# The trained model as files that don't need this package: Keras's own format, and a SavedModel.


FOLDER = "model"
KERAS_FILE = "model.keras"
SAVED_MODEL = "saved_model"


def save_model(replica: Replica, save: Callable[[Path], None], export: Callable[[Path], None]) -> None:
    """Write `<output>/model` by two functions of a path, for Keras's own format and then a SavedModel.

    A format that fails is logged and left out; the weights are in the final checkpoint anyway. Raises
    OutputFull, OutputUnwritable, Fenced or OutputTaken if the folder can't be written.
    """
    folder = replica.environment.output_dir / FOLDER

    def fill(place: Path) -> None:
        _write(place / KERAS_FILE, save)
        _write(place / SAVED_MODEL, export)

    replica.store.publish(folder, fill)
    written = [path.name for path in (folder / KERAS_FILE, folder / SAVED_MODEL) if path.exists()]
    if written:
        announce(f"the model is in {folder}: {' and '.join(written)}")
    else:
        folder.rmdir()


def _write(path: Path, write: Callable[[Path], None]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from Keras and NumPy, not from the user
            write(path)
    except Exception as error:
        if isinstance(error, OSError) or is_tensorflows(error):
            raise  # of the folder; whatever a layer of the user's may raise is another
        Files().remove(path)  # it may be incomplete
        why = first_line(error)
        notice(f"the model can't be written as {path.name}: {why}")
