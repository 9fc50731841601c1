"""TensorFlow's profiler on demand: it records steps of a running training for TensorBoard.

Each replica decides by itself between two calls of many steps. Workers don't have to agree, since a recorded
call is as long as any other. So the profiler records the whole calls that contain the requested steps.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainjob_trainer.atomic_file import version_of, write_atomically
from trainjob_trainer.environment import Environment
from trainjob_trainer.errors import first_line
from trainjob_trainer.reporting.machine import give_back, resident_bytes
from trainjob_trainer.reporting.progress import announce
from trainjob_trainer.task import Task

# Request and answer of `trainjob profile` for one replica: two small files in the output folder.
#
# `profile/worker-0.json` is the request, `profile/worker-0.answer.json` the answer. The client writes the
# request and may withdraw it. The replica replaces the answer, and removes the request at the end.


FOLDER = "profile"
_MOST_BYTES = 4096


@dataclass(frozen=True)
class Request:
    """The steps from `first`, counted from 1, to `last`; `id` is unique to the request."""

    id: str
    first: int
    last: int

    @classmethod
    def parse(cls, raw: Mapping[str, Any], done: int) -> Request:
        """Parse `{"id", "first", "last"}` or `{"id", "count"}` of steps after `done`, or raise ValueError."""
        if not isinstance(raw.get("id"), str):
            raise ValueError("no object with an id")  # noqa: TRY004 - of the file, not of an argument
        if "count" in raw:
            return cls(raw["id"], done + 1, done + _number(raw["count"]))
        first, last = _number(raw.get("first")), _number(raw.get("last"))
        if last < first:
            raise ValueError("last is less than first")
        return cls(raw["id"], first, last)

    def refusal(self, done: int, total: int | None) -> str | None:
        """Return why these steps can't be recorded; None if they can."""
        if self.last <= done:
            return f"steps {self.first}-{self.last} are over: {done} steps are done"
        if total is not None and self.first > total:
            return f"training ends with step {total}"
        return None


class RequestFiles:
    """The two files of one replica, such as `worker-0`; errors of the file system are ignored."""

    def __init__(self, output: Path, replica: str) -> None:
        self._request = output / FOLDER / f"{replica}.json"
        self._answer = output / FOLDER / f"{replica}.answer.json"
        self._seen: tuple[int, ...] | None = None

    def has_changed(self) -> bool:
        """Return whether the request is another one than before, or gone; costs one `stat`."""
        before, self._seen = self._seen, version_of(self._request)
        return self._seen != before

    def read(self) -> Mapping[str, Any] | None:
        """Return the request, empty if it isn't a JSON object; None without one."""
        try:
            with self._request.open(encoding="utf-8") as file:
                raw = json.loads(file.read(_MOST_BYTES))
        except OSError:
            return None
        except ValueError:
            raw = {}
        return raw if isinstance(raw, dict) else {}

    def answer(self, **facts: Any) -> None:
        """Replace the answer."""
        with contextlib.suppress(OSError):
            write_atomically(self._answer, json.dumps(facts))

    def remove(self) -> None:
        """Remove the request that was read, but not one that has replaced it."""
        if version_of(self._request) == self._seen:
            with contextlib.suppress(OSError):
                self._request.unlink()
            self._seen = version_of(self._request)  # one that can't be removed must not count as a new one


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a step is a number from 1")
    return value


SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_WORDS = 5.0
"""Between two answers of a replica that waits for the first step."""
MOST_SECONDS = 20.0
"""Browsers can't open a longer recording."""
MOST_MEGABYTES = 256
"""Growth of the process during a recording, since a pod has a limit; checked only between calls."""


class Trace:
    """Records with TensorFlow's profiler."""

    def start(self, folder: Path) -> None:
        """Start recording."""
        _profiler().start(str(folder))

    def stop(self, *, save: bool) -> None:
        """Stop recording, and write the record below the folder or drop it."""
        try:
            _profiler().stop(save=save)
        finally:
            give_back()  # about a megabyte for each step

    def mark(self, step: int) -> Any:
        """Return a context whose content is shown as one step of this number."""
        return _profiler().Trace("train", step_num=step, _r=1)


@dataclass(frozen=True)
class _Recording:
    """The recorded request, and the steps done, the time and the memory when the recording began."""

    request: Request
    done_before: int
    began: float
    memory: int

    def why_over(self, done: int, now: float, memory: int) -> str | None:
        """Return why it ends now: empty if all steps are recorded, else a sentence; None to continue."""
        if done >= self.request.last:
            return ""
        if now - self.began >= MOST_SECONDS:
            return f"ended after {MOST_SECONDS:.0f} s, the most that one record may take"
        if memory - self.memory >= MOST_MEGABYTES * 2**20:
            return f"ended with {MOST_MEGABYTES} MB of memory, the most that one record may take"
        return None


class Profiler:
    """Handles requests between calls. Errors never end training; the answer reports them.

    `total` is the last step of the training, None if unknown.
    """

    def __init__(
        self,
        task: Task,
        environment: Environment,
        total: int | None = None,
        *,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.monotonic,
        memory: Callable[[], int] = resident_bytes,
    ) -> None:
        logs = environment.log_dir
        self._folder = logs if task.is_writer else logs.with_name(task.replica)
        self._files = RequestFiles(environment.output_dir, task.replica)
        self._total = total
        self._trace: Trace = trace or Trace()
        self._clock = clock
        self._memory = memory
        self._looked_at = self._told_at = float("-inf")
        self._request: Request | None = None
        self._recording: _Recording | None = None

    def between_calls(self, done: int, ahead: int) -> None:
        """Handle requests after `done` steps, before the next call of at most `ahead` steps."""
        now = self._clock()
        if self._recording is not None:
            why = self._recording.why_over(done, now, self._memory())
            if why is not None:
                self._stop(self._recording, done, why)
                return
        if now - self._looked_at >= SECONDS_BETWEEN_LOOKS:
            self._looked_at = now
            self._look(done)
        if self._recording is not None or self._request is None:
            return
        if done + ahead >= self._request.first:
            self._start(self._request, done)
        elif now - self._told_at >= SECONDS_BETWEEN_WORDS:
            self._told_at = now
            self._tell(self._request, "waiting", step=done)

    def mark(self, done: int) -> Any:
        """Return a context that shows the next call as one step; an empty one without a recording."""
        return contextlib.nullcontext() if self._recording is None else self._trace.mark(done)

    def pause(self, done: int) -> None:
        """End the recording: no more steps come for now."""
        if self._recording is not None:
            self._stop(self._recording, done, "ended with the steps that there are for now")

    def finish(self, done: int) -> None:
        """End the recording and refuse requests: no more steps will come."""
        self.pause(done)
        self._look(done)
        if self._request is not None:
            self._refuse(self._request, f"training has ended with step {done}")

    def _look(self, done: int) -> None:
        if not self._files.has_changed():
            return
        self._request = None
        self._forget()
        raw = self._files.read()
        if raw is None:
            return
        try:
            request = Request.parse(raw, done)
        except ValueError as error:
            given = str(raw.get("id", ""))
            self._files.answer(id=given, state="refused", message=f"the request is malformed: {error}")
            self._files.remove()
            return
        refusal = request.refusal(done, self._total)
        if refusal is not None:
            self._refuse(request, refusal)
            return
        self._request, self._told_at = request, float("-inf")

    def _start(self, request: Request, done: int) -> None:
        try:
            self._trace.start(self._folder)
        except Exception as error:  # noqa: BLE001 - one of the script's own is running, for example
            self._refuse(request, f"TensorFlow can't record now: {first_line(error)}")
            return
        self._recording = _Recording(request, done, self._clock(), self._memory())
        self._tell(request, "profiling", first=done + 1)

    def _stop(self, recording: _Recording, done: int, why: str) -> None:
        request, first = recording.request, recording.done_before + 1
        self._recording = self._request = None
        try:
            self._trace.stop(save=True)
        except Exception as error:  # noqa: BLE001 - a full disk, for example
            self._refuse(request, f"what was recorded can't be written: {first_line(error)}")
            return
        cut = {"message": why} if why and done < request.last else {}
        self._tell(request, "written", first=first, last=done, folder=str(self._folder), **cut)
        self._files.remove()
        announce(f"profile of steps {first}-{done} written to {self._folder}")

    def _forget(self) -> None:
        """Drop the recording: its request is gone."""
        if self._recording is not None:
            self._recording = None
            with contextlib.suppress(Exception):
                self._trace.stop(save=False)

    def _refuse(self, request: Request, message: str) -> None:
        self._request = None
        self._tell(request, "refused", message=message)
        self._files.remove()

    def _tell(self, request: Request, state: str, **facts: Any) -> None:
        self._files.answer(id=request.id, state=state, **facts)


def _profiler() -> Any:
    import tensorflow as tf  # noqa: PLC0415 - scripts that are never profiled need not import it here

    return tf.profiler.experimental
