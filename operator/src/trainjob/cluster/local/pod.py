"""The lifecycle of a pod as a process of this machine, and its status as a kubelet writes it."""

import asyncio
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from trainjob.api import TRAINER_CONTAINER
from trainjob.api.errors import trainer_of
from trainjob.cluster.local.launch import Launch
from trainjob.cluster.local.machine import (
    CannotRunHere,
    ReplicaPorts,
    agent_port_in_use_message,
    is_free,
    port_in_use_message,
)
from trainjob.cluster.local.output import check_writable
from trainjob.cluster.local.process import LogTail, ProcessExit, ReplicaLog, ReplicaProcess
from trainjob.cluster.protocol import Manifest
from trainjob.core.agent_reports import read_report
from trainjob_trainer.contract.exits import ExitCode

# The termination message of a container: a file that any of its processes may write.


LARGEST_MESSAGE = 4096
"""Bytes; the end of a longer file is kept, as by a kubelet."""


def read_termination_log(path: Path) -> str:
    """Return the termination message; empty if there is no regular file (any more)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return ""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return ""
        text = os.pread(fd, LARGEST_MESSAGE, max(0, status.st_size - LARGEST_MESSAGE))
    except OSError:
        return ""
    finally:
        os.close(fd)
    return text.decode("utf-8", "ignore").strip()


# The status of a pod, as a kubelet writes it.


Status = dict[str, Any]


def format_time(moment: datetime) -> str:
    """Return a time as Kubernetes writes it, with microseconds: they show which replica failed first."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def pending_status(image: str) -> Status:
    """Return the status of a pod that is scheduled and does not run yet."""
    state = {"waiting": {"reason": "ContainerCreating"}}
    return {"phase": "Pending", **_conditions(ready=False), **_containers(image, state)}


def running_status(image: str, started: datetime) -> Status:
    """Return the status of a pod whose process runs."""
    state = {"running": {"startedAt": format_time(started)}}
    return {
        "phase": "Running",
        "startTime": format_time(started),
        **_conditions(ready=True),
        **_containers(image, state, ready=True),
    }


def terminated_status(
    image: str, *, exit_code: int, signal: int | None, started: datetime, finished: datetime, message: str
) -> Status:
    """Return the status of a pod whose process has ended.

    Args:
        image: as in the manifest.
        exit_code: 0 to 255; 128+n for a death by signal n.
        signal: that signal, or None.
        started: when the process started.
        finished: when it ended.
        message: the termination message.
    """
    ended: dict[str, Any] = {
        "exitCode": exit_code,
        "reason": "Error" if exit_code else "Completed",
        "startedAt": format_time(started),
        "finishedAt": format_time(finished),
    }
    if signal is not None:
        ended["signal"] = signal
    if message:
        ended["message"] = message
    return {
        "phase": "Failed" if exit_code else "Succeeded",
        "startTime": format_time(started),
        **_conditions(ready=False),
        **_containers(image, {"terminated": ended}),
    }


def _conditions(*, ready: bool) -> Status:
    states = {"PodScheduled": True, "Initialized": True, "ContainersReady": ready, "Ready": ready}
    return {"conditions": [{"type": kind, "status": str(value)} for kind, value in states.items()]}


def _containers(image: str, state: dict[str, Any], *, ready: bool = False) -> Status:
    container = {
        "name": TRAINER_CONTAINER,
        "image": image,
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
        "lastState": {},
    }
    return {"containerStatuses": [container]}


# The progress file, which the training process replaces as a whole (keys: `docs/contract.md`).


LARGEST_REPORT = 1 << 16
"""Bytes; a report has a few hundred."""


class ProgressFile:
    """Reads the file again only when it has been replaced.

    Attributes:
        report: the latest complete report, or None. It is dropped when the file is removed: an agent does
            that when it restarts the training process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.report: Mapping[str, Any] | None = None
        self._seen: tuple[int, int] | None = None

    def has_changed(self) -> bool:
        """Check the file, update `report`, and return whether that changed."""
        try:
            stat = self.path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns)
            if seen == self._seen or stat.st_size > LARGEST_REPORT:
                return False
            self._seen = seen
            report = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return self._is_taken_away()
        except (OSError, ValueError, RecursionError):
            return False
        if not isinstance(report, dict):
            return False
        self.report = read_report(report).to_json()
        return True

    def _is_taken_away(self) -> bool:
        # If the folder is gone too, the pod is gone, and its last report stays.
        if self.report is None or not self.path.parent.exists():
            return False
        self.report = self._seen = None
        return True

    @property
    def error_message(self) -> str | None:
        """Return the failure message that the process reported, or None."""
        return ((self.report or {}).get("error") or {}).get("message") or None


# The lifecycle of a pod as a process of this machine.


_CANNOT_START = 128
"""The exit code that container runtimes report when they can't start a container."""


@dataclass(frozen=True, kw_only=True)
class PodSetting:
    """What a pod needs from its cluster.

    Attributes:
        replica: its name, such as `worker-0`.
        ports: of its hostname.
        base_port: the caller's choice, for messages.
        private: the pod's own folder, created here and removed with the pod.
        log_path: its log file.
        held: descriptors that its launcher keeps open.
        clock: returns the time.
        on_line: receives the replica's name and each line that it prints. Must not raise.
        changed: called with the manifest after each change of its status.
    """

    replica: str
    ports: ReplicaPorts
    base_port: int | None
    private: Path
    log_path: Path
    held: tuple[int, ...]
    clock: Callable[[], datetime]
    on_line: Callable[[str, str], None]
    changed: Callable[[Manifest], None]


class LocalPod:
    """Starts the process once the replica's earlier pods have ended, and writes the status as a kubelet does.

    Args:
        manifest: the stored pod; its status is kept up to date in place.
        launch: the process to start.
        setting: what the pod needs from its cluster.
    """

    def __init__(self, manifest: Manifest, launch: Launch, setting: PodSetting) -> None:
        self.manifest = manifest
        self.launch = launch
        self.setting = setting
        self.tail = LogTail()
        self.progress = ProgressFile(launch.progress)
        self._process: ReplicaProcess | None = None
        self._log: ReplicaLog | None = None
        self._ended = asyncio.Event()
        self._image = trainer_of(manifest["spec"]).get("image", "")
        manifest["status"] = pending_status(self._image)

    @property
    def name(self) -> str:
        """Return the pod's name."""
        return str(self.manifest["metadata"]["name"])

    @property
    def has_ended(self) -> bool:
        """Return whether none of its processes runs or will run."""
        return self._ended.is_set()

    @property
    def is_running(self) -> bool:
        """Return whether its process runs."""
        return self._process is not None and not self.has_ended

    @property
    def is_deleting(self) -> bool:
        """Return whether it has been asked to end."""
        return "deletionTimestamp" in self.manifest["metadata"]

    async def wait_ended(self) -> None:
        """Wait until none of its processes runs or will run."""
        await self._ended.wait()

    async def run(self, predecessors: Iterable["LocalPod"]) -> None:
        """Wait for the replica's earlier pods to end, start the process, and follow it to its end."""
        try:
            for earlier in predecessors:
                await earlier.wait_ended()
            if not self.is_deleting:
                await self._run()
        finally:
            self._ended.set()
            if self._log is not None:
                self._log.close()

    def end(self, grace_seconds: float) -> None:
        """Ask it to end within `grace_seconds`; 0 kills it."""
        metadata = self.manifest["metadata"]
        until = self.setting.clock() + timedelta(seconds=grace_seconds)
        metadata.setdefault("deletionTimestamp", format_time(until))
        metadata["deletionGracePeriodSeconds"] = int(grace_seconds)
        self.setting.changed(self.manifest)
        if self._process is not None:
            self._process.terminate(grace_seconds)

    def clear(self) -> None:
        """Remove the pod's own folder."""
        shutil.rmtree(self.setting.private, ignore_errors=True)

    async def _run(self) -> None:
        started = self.setting.clock()
        try:
            self._process = self._start()
        except _NotStarted as failure:
            self._set_not_started(started, failure.code, failure.message)
            return
        except (OSError, ValueError) as error:  # no descriptors, no memory, or text that no program accepts
            self._set_not_started(started, _CANNOT_START, f"can't start a process: {error}")
            return
        self._set_status(running_status(self._image, started))
        end = await self._process.wait()
        self.progress.has_changed()
        self._set_terminated(started, end, self._termination_message(end))

    def _start(self) -> ReplicaProcess:
        self._prepare_folders()
        self._check_ports()
        self._log = ReplicaLog(self.setting.log_path, self._header())
        if self._log.problem:
            self.setting.on_line(self.setting.replica, f"trainjob: {self._log.problem}")
        return ReplicaProcess(self.launch, self._take_line, self.setting.held)

    def _check_ports(self) -> None:
        ports = self.setting.ports
        if not is_free(ports.tensorflow):
            message = port_in_use_message(ports.tensorflow, self.setting.base_port)
        elif self.launch.has_agent and not is_free(ports.agent):
            message = agent_port_in_use_message(ports.agent)
        else:
            return
        raise _NotStarted(ExitCode.PORT_IN_USE, message)

    def _header(self) -> str:
        # An agent starts training more than once, and logs each attempt itself.
        attempt = "" if self.launch.has_agent else f"attempt {self.launch.env.get('TRAINJOB_ATTEMPT', '1')}, "
        return f"--- {attempt}pod {self.name}, {format_time(self.setting.clock())} ---"

    def _prepare_folders(self) -> None:
        try:
            if self.launch.output is not None:
                check_writable(self.launch.output)
        except CannotRunHere as cannot:
            raise _NotStarted(ExitCode.OUTPUT_UNWRITABLE, str(cannot)) from cannot
        for folder in (self.setting.private, *self.launch.folders):
            try:
                if not folder.exists():
                    folder.mkdir(parents=True)
            except OSError as error:
                message = f"can't create the folder {folder}: {error.strerror}"
                raise _NotStarted(_CANNOT_START, message) from error
        self.launch.termination_log.touch()

    def _termination_message(self, end: ProcessExit) -> str:
        """Return the termination message, by the rule of `FallbackToLogsOnError`."""
        said = read_termination_log(self.launch.termination_log)
        if said or not end.code:
            return said
        # With an agent, the report may be from an earlier attempt.
        explained = None if self.launch.has_agent else self.progress.error_message
        if explained and not self.tail.lines:
            self._take_line(f"trainjob: {explained}")
        return explained or self.tail.text

    def _take_line(self, line: str) -> None:
        self.tail.add(line)
        self.setting.on_line(self.setting.replica, line)
        if self._log is not None and self._log.problem is None:
            self._log.write(line)
            if self._log.problem:
                self.setting.on_line(self.setting.replica, f"trainjob: {self._log.problem}")

    def _set_not_started(self, started: datetime, code: int, message: str) -> None:
        if not self.tail.lines:
            self._take_line(f"trainjob: {message}")
        self._set_terminated(started, ProcessExit(code, None, self.setting.clock()), message)

    def _set_terminated(self, started: datetime, end: ProcessExit, message: str) -> None:
        status = terminated_status(
            self._image,
            exit_code=end.code,
            signal=end.signal,
            started=started,
            finished=end.time,
            message=message,
        )
        self._set_status(status)

    def _set_status(self, status: dict[str, Any]) -> None:
        self.manifest["status"] = status
        self.setting.changed(self.manifest)


class _NotStarted(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
