"""Log lines, and progress reports: one small JSON file, replaced once or twice a second."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainjob_trainer.atomic_file import open_appending, write_atomically
from trainjob_trainer.contract.curves import (
    MOST_CURVES,
    MOST_POINTS,
    read_curves,
    thinned,
    write_curves,
)
from trainjob_trainer.contract.files import HISTORY
from trainjob_trainer.contract.reports import (
    LARGEST_TERMINATION_MESSAGE,
    LONGEST_NOTICE,
    MOST_NOTICES,
    Report,
    as_json,
    shorten,
)
from trainjob_trainer.contract.wire import integer
from trainjob_trainer.environment import Environment
from trainjob_trainer.task import of_the_job


def announce(message: str) -> None:
    """Write one line to the log at once."""
    print(f"trainjob: {message}", file=sys.stderr, flush=True)


def notice(message: str) -> None:
    """Log what was computed otherwise than the script says; in a job, also keep the line with the job."""
    announce(message)
    progress = ProgressFile.from_environment(os.environ)
    text = shorten(" ".join(message.split()), LONGEST_NOTICE)
    notices = dict.fromkeys((*(progress.last.notices or ()), text))
    progress.update(notices=tuple(notices)[:MOST_NOTICES])
    progress.flush()  # the process may end next


MIN_SECONDS_BETWEEN_WRITES = 0.5
MAX_SECONDS_BETWEEN_WRITES = 1.0
"""Plus the time between two checks: while the process lives, the file is never older than two seconds."""
_TRIES_OF_LAST = 3


class ProgressFile:
    """The last report of this process, on disk. Write errors are ignored: reports must not disturb training.

    Without `path` there is no file. `termination_log` gets the last report of a process that has finished, as
    the termination message of its container. For a process that fails, the last lines of the log are the
    message.
    """

    def __init__(
        self,
        path: Path | None,
        termination_log: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._termination_log = termination_log
        self._clock = clock
        self._now = now
        self._last = Report("starting")
        self._written_at = -math.inf
        self._lock = threading.RLock()  # checkpoints report from their own thread
        self._is_kept_fresh = False
        self._has_stepped = False
        self._curves: ReportedCurves | None = None

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> ProgressFile:
        """Return the job's progress file, even if the rest of the environment is invalid.

        All callers in this process get the same instance: two that are kept fresh would overwrite each other.
        """
        env = of_the_job(env)
        return _report_at(_path(env, "TRAINJOB_PROGRESS_FILE"), _path(env, "TRAINJOB_TERMINATION_LOG"))

    @property
    def last(self) -> Report:
        """The last report, written or not."""
        return self._last

    def keep_curves(self, file: Path) -> None:
        """Report the curves of all metrics from now on: this process's values are the job's.

        `file` has those of earlier processes, one JSON line each, with `step` and `metrics`.
        """
        with self._lock:
            if self._curves is None and (self._path or self._termination_log) is not None:
                self._curves = ReportedCurves(file)

    def update(self, **changes: Any) -> None:
        """Change the named fields of `Report`.

        A change of state is written at once, and so is the wait for storage and the first step, which shows
        that training runs again. Other changes are written soon.
        """
        with self._lock:
            before, self._last = self._last, replace(self._last, **changes)
            if self._curves is not None:
                self._curves.observe(self._last, changes, self._clock())
            is_first_step = (
                not self._has_stepped and before.step is not None and self._last.step != before.step
            )
            self._has_stepped = self._has_stepped or is_first_step
            due = self._clock() - self._written_at >= MIN_SECONDS_BETWEEN_WRITES
            is_wait = self._last.waiting_for_storage != before.waiting_for_storage
            if due or is_first_step or is_wait or self._last.state != before.state:
                self.flush()

    def end_epoch(self, **changes: Any) -> None:
        """Change the named fields, among them metrics that are those of a whole epoch."""
        with self._lock:
            self.update(**changes)
            if self._curves is not None:
                self._curves.observe(self._last, changes, self._clock(), is_whole=True)

    def keep_fresh(self, wait: Callable[[float], object] = time.sleep) -> None:
        """Start a thread that writes the last report again about every second.

        The writes stop if the process or its interpreter is frozen, but continue in a long step. The final
        report of a process is not written again.
        """
        with self._lock:
            if self._is_kept_fresh or self._path is None:
                return
            self._is_kept_fresh = True
        threading.Thread(target=self._repeat, args=(wait,), name="trainjob-progress", daemon=True).start()

    def _repeat(self, wait: Callable[[float], object]) -> None:
        while True:
            with self._lock:
                is_old = self._clock() - self._written_at >= MAX_SECONDS_BETWEEN_WRITES
                if is_old and self._last.state not in ("finished", "failed"):
                    self.flush()
            wait(MIN_SECONDS_BETWEEN_WRITES)

    def fail(self, reason: str, message: str, replicas: Sequence[str] = ()) -> None:
        """Report the failure that ends this process, and replicas that it is about, if not only this."""
        about = {"replicas": list(replicas)} if replicas else {}
        self.update(state="failed", error={"reason": reason, "message": message, **about})
        self.flush()

    def flush(self) -> None:
        """Write the last report now."""
        with self._lock:
            self._written_at = self._clock()
            texts = self._curves.texts if self._curves is not None else {}
            report = {**replace(self._last, curves=texts or None).to_json(), "time": self._now()}
            if self._path is not None:
                text = json.dumps({**report, "pid": os.getpid()}, allow_nan=False)
                # No further report replaces the last one.
                for _ in range(_TRIES_OF_LAST if self._last.state in ("finished", "failed") else 1):
                    with contextlib.suppress(OSError):  # a full disk must not end training
                        write_atomically(self._path, text)
                        break
            if self._termination_log is not None and self._last.state == "finished":
                _write_termination_message(self._termination_log, report)


@functools.cache
def _report_at(path: Path | None, termination_log: Path | None) -> ProgressFile:
    return ProgressFile(path, termination_log)


def _path(env: Mapping[str, str], variable: str) -> Path | None:
    path = env.get(variable)
    return Path(path).absolute() if path else None


def _write_termination_message(path: Path, report: dict[str, Any]) -> None:
    """Write the report in place: the kubelet's file is a mount, which exists only on a cluster."""
    curves = read_curves(report.pop("curves", {}))
    text = json.dumps(report, allow_nan=False)
    for name in ("notices", "metrics", "evaluation"):
        if len(text) > LARGEST_TERMINATION_MESSAGE:
            report = {key: value for key, value in report.items() if key != name}
            text = json.dumps(report, allow_nan=False)
    texts = write_curves(curves, LARGEST_TERMINATION_MESSAGE - len(text) - len(', "curves": '))
    text = json.dumps({**report, **({"curves": texts} if texts else {})}, allow_nan=False)
    with contextlib.suppress(OSError):
        if path.exists():
            path.write_text(text, encoding="utf-8")


_MANY_EPOCHS = 10
_SECONDS_BETWEEN_POINTS = 0.1


class ReportedCurves:
    """The curves of what a process has reported, thinned out, after those of the processes before it.

    Where training goes back, the values of the later start count. A training of many epochs is known by
    their ends: values within an epoch are averages over its first batches.
    """

    def __init__(self, file: Path) -> None:
        self._file: Path | None = file
        self._whole: dict[str, dict[int, float]] = {}
        self._within: dict[str, dict[int, float]] = {}
        self._latest: tuple[int, dict[str, Any]] | None = None
        self._added_at = -math.inf

    def observe(
        self, report: Report, changes: Mapping[str, Any], now: float, *, is_whole: bool = False
    ) -> None:
        """Add what a change of the report says; the first one reads the earlier values.

        Most steps of a fast training are left out, since each step waits for this.
        """
        loss, metrics = changes.get("loss"), changes.get("metrics")
        evaluation = changes.get("evaluation")
        if evaluation or loss is not None or metrics or changes.get("already_finished"):
            self._read()
        if evaluation:
            self._add(self._whole, evaluation["step"], evaluation["metrics"])
        elif report.step is not None and (loss is not None or metrics):
            self._latest = report.step, {"loss": loss, **(metrics or {})}
            if is_whole or now - self._added_at >= _SECONDS_BETWEEN_POINTS:
                self._add_latest(self._whole if is_whole else self._within)
                self._added_at = now

    @property
    def texts(self) -> dict[str, str]:
        """Return them as a report has them."""
        self._add_latest(self._within)
        curves: dict[str, dict[int, float]] = {}
        for name in dict.fromkeys((*self._whole, *self._within)):
            whole, within = self._whole.get(name, {}), self._within.get(name, {})
            if len(whole) >= _MANY_EPOCHS or not within:
                curves[name] = whole
            else:
                curves[name] = dict(sorted({**within, **whole}.items())) if whole else within
        return write_curves({name: points for name, points in curves.items() if points})

    def _add_latest(self, curves: dict[str, dict[int, float]]) -> None:
        if self._latest is not None:
            self._add(curves, *self._latest)
            self._latest = None

    def _add(self, curves: dict[str, dict[int, float]], step: int, metrics: Mapping[str, Any]) -> None:
        if integer(step, 0) is None:
            return
        for name, value in metrics.items():
            with contextlib.suppress(TypeError, ValueError, OverflowError):  # no single number
                number = float(as_json(value))
                for known in (self._whole.get(name, {}), self._within.get(name, {})):
                    while known and next(reversed(known)) >= step:
                        known.popitem()
                if not math.isfinite(number) or (name not in curves and len(curves) >= MOST_CURVES):
                    continue
                curves.setdefault(name, {})[step] = number
                if len(curves[name]) > 4 * MOST_POINTS:
                    curves[name] = thinned(curves[name], 2 * MOST_POINTS)

    def _read(self) -> None:
        path, self._file = self._file, None
        with contextlib.suppress(OSError):
            if path is None or not path.is_file():  # to open a pipe takes for ever
                return
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError):
                    result = json.loads(line)  # the last one may be half written
                    self._add(self._whole, result["step"], result["metrics"])


storage_is_away = threading.Event()
"""Set while this process waits for files that can't be read or written: then it can't save anything."""


def report_storage(trouble: str | None, *, is_away: bool = True) -> None:
    """Report that this process waits for storage, and why, which is away or slow; None once it has waited."""
    (storage_is_away.set if trouble and is_away else storage_is_away.clear)()
    progress = ProgressFile.from_environment(os.environ)
    is_news = (progress.last.waiting_for_storage is None) != (trouble is None)
    progress.update(waiting_for_storage=trouble)
    if is_news:
        announce(f"waiting for storage: {trouble}" if trouble else "no longer waiting for storage")


def add_to_history(environment: Environment, step: int, metrics: Mapping[str, Any]) -> None:
    """Append the metrics of an epoch to `logs/history.jsonl`; write errors are ignored, as in reports.

    Nothing is written where the volume has gone: the folder of checkpoints, which the writer has made, tells.

    Args:
        environment: of this process.
        step: steps done.
        metrics: by name, the loss as `loss`.
    """
    line = {"step": step, "metrics": as_json(metrics)}
    path = environment.output_dir / HISTORY
    with contextlib.suppress(OSError):
        if not environment.output_uri:
            environment.checkpoint_dir.stat()
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_appending(path) as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")


def by_loss(metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return metrics as fields of `Report`, which has the loss by itself; no fields without metrics."""
    others = {name: value for name, value in metrics.items() if name != "loss"}
    return {"loss": metrics.get("loss"), "metrics": others} if metrics else {}


def report(
    step: int,
    *,
    total_steps: int | None = None,
    epoch: int | None = None,
    total_epochs: int | None = None,
    loss: float | None = None,
    metrics: Mapping[str, float] | None = None,
    checkpoint_step: int | None = None,
    state: str = "training",
) -> None:
    """Report the progress of a training loop that is not this library's, such as one with Horovod.

    Steps count over all attempts, also after a restart. Every rank should report, or the watchdog for stalls
    takes a rank for one that doesn't report. It needs no TensorFlow, and does nothing outside a job.

    Args:
        step: optimizer steps done.
        total_steps: steps of the whole training.
        epoch: the current one, from 1.
        total_epochs: epochs of the whole training.
        loss: the latest one of this replica.
        metrics: the latest ones, by name.
        checkpoint_step: step of the newest checkpoint that the script has written.
        state: `saving` before work that takes minutes without a step.
    """
    known = {
        "total_steps": total_steps,
        "epoch": epoch,
        "total_epochs": total_epochs,
        "loss": None if loss is None else float(loss),
        "metrics": None if metrics is None else {name: float(value) for name, value in metrics.items()},
        "checkpoint_step": checkpoint_step,
    }
    progress = ProgressFile.from_environment(os.environ)
    changes = {name: value for name, value in known.items() if value is not None}
    progress.update(state=state, step=int(step), **changes)
    if progress.last.step == progress.last.total_steps:
        progress.flush()  # the process may end next
    progress.keep_fresh()
