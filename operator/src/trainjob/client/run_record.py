"""The records of runs on this machine: one in each folder, their index, and whether a run is finished."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from trainjob.client.presenter import describe_age, main_metric
from trainjob.client.problems import NoJob
from trainjob.client.request import Request
from trainjob.client.view import JobView, Outcome
from trainjob.cluster.local import has_content, is_taken
from trainjob_trainer.contract.files import FINAL, output_folders


def identify_process(pid: int) -> str | None:
    """Return what distinguishes a living process from a later one of its number; None if there is none.

    It is empty on a system without /proc, which doesn't say when a process started.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # The second field is the program's name in parentheses, which may contain anything.
        state, *_, started = stat.rpartition(")")[2].split()[:20]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return ""
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else f"{boot}:{started}"


RECORD_NAME = ".trainjob.json"
_RETRY_SECONDS = (0.1, 0.3, 1.0)

RunEnd = Literal["complete", "failed", "interrupted", "deleted"]


class RunRecord(BaseModel):
    """The record of one run, as it lies in the run's folder.

    Attributes:
        view: the job as it was when the record was written.
        host: the machine that it runs on.
        pid: of its process.
        process: see `identify_process`.
        socket: where it is reached while it runs; empty if it can't be.
        command: the command line that continues it.
        request: what it was asked for.
        continued: a sentence on what differs from the request whose training it continues, if anything.
        log_starts: the size of each log file when the run began, by its name without `.log`.
        began: the time of its start.
        ended: the time of its end; None while it runs, and if it was killed.
        end: how it ended; of a job that is over, its outcome.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, defer_build=True)

    version: Literal[1] = 1
    view: JobView
    host: str = ""
    pid: int = 0
    process: str = ""
    socket: str = ""
    command: str = ""
    request: Request = Field(default_factory=Request)
    continued: str = ""
    log_starts: Mapping[str, int] = Field(default_factory=dict)
    began: datetime
    ended: datetime | None = None
    end: RunEnd | Literal[""] = ""

    def write(self, folder: Path) -> None:
        """Replace the record of this folder; it survives a loss of power. What fails for a moment is retried.

        Raises:
            OSError: it can't be written.
        """
        for delay in _RETRY_SECONDS:
            with suppress(OSError):
                return self._write(folder)
            time.sleep(delay)
        return self._write(folder)

    def _write(self, folder: Path) -> None:
        text = self.model_dump_json(by_alias=True)
        temporary = folder / f"{RECORD_NAME}.{os.getpid()}"
        try:
            temporary.unlink(missing_ok=True)
            with temporary.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(folder / RECORD_NAME)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise


_KILLED = "its process is gone: killed, or the machine went down"
_STOPPED = "it was stopped"


@dataclass(frozen=True)
class Run:
    """A run of this machine: a folder with a record.

    Attributes:
        folder: the output folder, absolute.
        record: as it was read.
    """

    folder: Path
    record: RunRecord

    @property
    def name(self) -> str:
        """Return the folder's name: that of the job, or such as `digits.1` of an earlier run."""
        return self.folder.name

    @property
    def is_here(self) -> bool:
        """Return whether this machine runs it, or has run it; a folder may be shared by several."""
        return self.record.host == platform.node()

    @property
    def is_running(self) -> bool:
        """Return whether its process lives."""
        if self.record.ended is not None:
            return False
        if not self.is_here:
            return is_taken(self.folder)
        return identify_process(self.record.pid) == self.record.process

    @property
    def is_finished(self) -> bool:
        """Return whether it has nothing left to do: its final marker says so, or without one its record.

        The writer's process has ended with 0 then; an evaluator may have been interrupted.
        """
        record, marker = self.record, _read_marker(self.folder)
        if marker is None:
            return record.end == "complete" and has_content(self.folder)
        own = bool(marker) and marker.get("jobUid", record.view.uid) == record.view.uid
        return own and record.end not in ("failed", "deleted")

    @property
    def view(self) -> JobView:
        """Return the job as the record has it; interrupted, if it had not ended when its process did."""
        view = replace(self.record.view, name=self.name, folder=str(self.folder), request=self.record.request)
        if view.outcome is not Outcome.GOING_ON or self.is_running:
            return view
        step = view.status.progress.step if view.status.progress else None
        at = f" at step {step}" if step is not None else ""
        again = f"; continue with the same command: {self.record.command}" if self.record.command else ""
        message = f"{_STOPPED if self.record.ended else _KILLED}{at}{again}"
        status = view.status.model_copy(update={"message": message})
        replicas = tuple(replace(replica, state="ended") for replica in view.replicas)
        return replace(view, interrupted=True, status=status, replicas=replicas)


def read_run_folder(folder: Path) -> Run | None:
    """Return the run of this folder; None if it has no record that can be read."""
    try:
        return Run(folder, RunRecord.model_validate_json((folder / RECORD_NAME).read_bytes()))
    except (OSError, ValidationError, RecursionError):
        return None


# The index: a link to each run's folder in the user's state folder. No file is shared, so none is locked.


def index_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the links, which may not exist.

    Raises:
        OSError: the user has no home folder.
    """
    state = environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        return Path(state).expanduser() / "trainjob" / "runs"
    except RuntimeError as error:
        raise OSError(f"{error}; set HOME or XDG_STATE_HOME") from error


def remember(folder: Path) -> None:
    """Add a run's folder to the index.

    Raises:
        OSError: the index can't be written.
    """
    link = index_folder() / index_name(folder)
    link.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        link.symlink_to(folder.absolute())


def forget(folder: Path) -> None:
    """Remove a folder from the index."""
    with suppress(OSError):
        (index_folder() / index_name(folder)).unlink()


def all_runs() -> tuple[Run, ...]:
    """Return the runs that this user has started on this machine, the latest first."""
    found: list[Run] = []
    try:
        folders = [link.readlink() for link in index_folder().iterdir()]
    except OSError:
        return ()
    for folder in folders:
        run = read_run_folder(folder)
        if run is not None:
            found.append(run)
        elif folder.parent.is_dir() and not folder.exists():  # not: a disk that isn't mounted now
            forget(folder)
    return tuple(sorted(found, key=lambda run: run.record.began, reverse=True))


def find_run(name: str, *, certain: bool = False) -> Run | None:
    """Return the run of this name, or in this folder; None if there is none.

    Of several runs of one name that one counts which lies below the working directory, then the only one
    that is running.

    Args:
        name: of the run, or its folder.
        certain: leave none out because another one is running.

    Raises:
        NoJob: several have that name, or the folder has no record of a run.
    """
    if os.sep in name:
        run = read_run_folder(Path(name).absolute())
        if run is None:
            raise NoJob(f"there is no run in the folder {name}: `trainjob list` shows all runs")
        return run
    found = [run for run in all_runs() if run.name == name]
    found = [run for run in found if run.folder.is_relative_to(Path.cwd())] or found
    if len(found) > 1 and not certain:
        found = [run for run in found if run.is_running] or found
    if len(found) > 1:
        folders = ", ".join(str(run.folder) for run in found)
        raise NoJob(f"several runs are named {name}: name one by its folder: {folders}")
    return found[0] if found else None


def index_state() -> frozenset[tuple[str, int]]:
    """Return what changes with each run that comes, goes, or writes its record."""
    found = set[tuple[str, int]]()
    with suppress(OSError):
        for link in index_folder().iterdir():
            with suppress(OSError):
                found.add((link.name, (link / RECORD_NAME).stat().st_mtime_ns))
    return frozenset(found)


def index_name(folder: Path) -> str:
    """Return what the index calls a run's folder."""
    return hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]


_LARGEST_MARKER = 1 << 20


def describe_finished(run: Run, now: datetime) -> str:
    """Return the sentence about a run that has nothing left to do."""
    view, ended = run.view, run.record.ended
    marker = _read_marker(run.folder) or {}
    step = marker.get("endedAt") or marker.get("step") or view.figures.step
    facts = [f"step {step}"] if step is not None else []
    score = view.last_evaluation
    if score is not None and (metric := main_metric(score.metrics)):
        facts.append(metric)
    facts += [describe_age(now - ended)] if ended is not None else []
    known = f" ({', '.join(facts)})" if facts else ""
    again = "--fresh" if run.name == run.record.view.name else f"trainjob delete {run.name}"
    more, words = "", run.record.request.asked.get("arguments", ())
    epochs = max((replica.report.total_epochs or 0 for replica in view.replicas), default=0)
    if epochs and all(str(word).startswith("--epochs") for word in words[::2]):  # the trainer's own option
        more = f"continue training: request more, such as -- --epochs {2 * epochs}; "
    return f"{run.name} is finished{known}; {more}start over: {again}"


def _read_marker(folder: Path) -> Mapping[str, Any] | None:
    """Return the final marker; an empty one if it can't be read, and None if there is none."""
    path = Path(output_folders(str(folder), "worker").checkpoints, FINAL)
    try:
        marker = json.loads(path.read_bytes()) if path.stat().st_size <= _LARGEST_MARKER else {}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return marker if isinstance(marker, dict) else {}
