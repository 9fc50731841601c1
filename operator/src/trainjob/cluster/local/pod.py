"""The lifecycle of a pod as a process of this machine, and its status as a kubelet writes it."""

import asyncio
import json
import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from trainjob.api import TRAINER_CONTAINER
from trainjob.api.errors import trainer_of
from trainjob.cluster.local.launch import Launch
from trainjob.cluster.local.machine import CannotRunHere
from trainjob.cluster.local.memory import MemoryGroup
from trainjob.cluster.local.output import MOMENTARY, check_writable
from trainjob.cluster.local.process import LogTail, ProcessExit, ReplicaLog, ReplicaProcess
from trainjob.cluster.local.sandbox import Sandbox, replica_name
from trainjob.cluster.protocol import Manifest
from trainjob.core.agent_reports import read_report
from trainjob_trainer.contract.exits import ExitCode
from trainjob_trainer.contract.processes import can_listen

LARGEST_MESSAGE = 4096
"""Bytes of a termination message; the end of a longer file is kept, as by a kubelet."""

LARGEST_REPORT = 1 << 16
"""Bytes; a report has a few hundred."""

_CANNOT_START = 128
"""The exit code that container runtimes report when they can't start a container."""


def read_termination_log(path: Path) -> str:
    """Return the termination message, which any process of the container may write; empty without a file."""
    flags = os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        with open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return ""
            file.seek(max(0, status.st_size - LARGEST_MESSAGE))
            return file.read(LARGEST_MESSAGE).decode("utf-8", "ignore").strip()
    except OSError:
        return ""


def format_time(moment: datetime) -> str:
    """Return a time as Kubernetes writes it, with microseconds: they show which replica failed first."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class ProgressFile:
    """The progress file, which the training process replaces as a whole (keys: `docs/contract.md`).

    It is read again only when it has been replaced.

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
            status = self.path.stat()
            seen = (status.st_ino, status.st_mtime_ns)
            if seen == self._seen or status.st_size > LARGEST_REPORT:
                return False
            data = self.path.read_bytes()
            self._seen = seen  # else it is read again: it may be the last one of its process
            report = json.loads(data)
        except FileNotFoundError:
            # If the folder is gone too, the pod is gone, and its last report stays.
            if self.report is None or not self.path.parent.exists():
                return False
            self.report = self._seen = None
            return True
        except (OSError, ValueError, RecursionError):
            return False
        if not isinstance(report, dict):
            return False
        self.report = read_report(report).to_json()
        return True


class LocalPod:
    """Starts the process once the replica's earlier pods have ended, and writes the status as a kubelet does.

    Args:
        manifest: the stored pod; its status is kept up to date in place.
        launch: the process to start.
        sandbox: the resources of the run.
        log_path: its log file.
        clock: returns the time.
        on_line: receives the replica's name and each line that it prints. Must not raise.
        changed: called with the manifest after each change of its status.
    """

    def __init__(
        self,
        manifest: Manifest,
        launch: Launch,
        sandbox: Sandbox,
        *,
        log_path: Path,
        clock: Callable[[], datetime],
        on_line: Callable[[str, str], None],
        changed: Callable[[Manifest], None],
    ) -> None:
        self.manifest = manifest
        self.launch = launch
        self.log_path = log_path
        self._sandbox = sandbox
        self._private = sandbox.private_folder(manifest)
        self._replica = replica_name(manifest)
        self._clock = clock
        self._on_line = on_line
        self._changed = changed
        self.tail = LogTail()
        self.progress = ProgressFile(launch.progress)
        self._process: ReplicaProcess | None = None
        self._log: ReplicaLog | None = None
        self._memory: MemoryGroup | None = None
        self._ended = asyncio.Event()
        self._set_status("Pending", {"waiting": {"reason": "ContainerCreating"}})

    @property
    def name(self) -> str:
        """Return the pod's name."""
        return str(self.manifest["metadata"]["name"])

    @property
    def has_ended(self) -> bool:
        """Return whether none of its processes runs or will run."""
        return self._ended.is_set()

    @property
    def is_deleting(self) -> bool:
        """Return whether it has been asked to end."""
        return "deletionTimestamp" in self.manifest["metadata"]

    async def run(self, predecessors: Iterable["LocalPod"]) -> None:
        """Wait for the replica's earlier pods to end, start the process, and follow it to its end."""
        try:
            for earlier in predecessors:
                await earlier._ended.wait()
            if not self.is_deleting:
                await self._run()
        finally:
            self._ended.set()
            if self._log is not None:
                self._log.close()
            if self._memory is not None:
                self._memory.remove()

    def resize(self, memory: int) -> None:
        """Let its processes use so many bytes."""
        if self._memory is not None and not self.has_ended:
            self._memory.set_limit(memory)

    def end(self, grace_seconds: float) -> None:
        """Ask it to end within `grace_seconds`; 0 kills it."""
        metadata = self.manifest["metadata"]
        until = self._clock() + timedelta(seconds=grace_seconds)
        metadata.setdefault("deletionTimestamp", format_time(until))
        metadata["deletionGracePeriodSeconds"] = int(grace_seconds)
        self._changed(self.manifest)
        if self._process is not None:
            self._process.terminate(grace_seconds)

    def clear(self) -> None:
        """Remove the pod's own folder."""
        shutil.rmtree(self._private, ignore_errors=True)

    async def _run(self) -> None:
        started = self._clock()
        try:
            self._process = self._start()
        except _NotStarted as failure:
            code, message = failure.args
        except (OSError, ValueError) as error:  # no descriptors, no memory, or text that no program accepts
            code, message = _code_of(error, _CANNOT_START), f"can't start a process: {error}"
        else:
            self._set_status("Running", {"running": {"startedAt": format_time(started)}}, started)
            end = await self._process.wait()
            self.progress.has_changed()
            self._set_terminated(started, end, self._read_message(end))
            return
        if not self.tail.lines:
            self._take_lines([f"trainjob: {message}"])
        self._set_terminated(started, ProcessExit(code, None, self._clock()), message)

    def _start(self) -> ReplicaProcess:
        try:
            if self.launch.output is not None:
                check_writable(self.launch.output)
        except CannotRunHere as cannot:
            code = _code_of(cannot.__cause__, ExitCode.OUTPUT_UNWRITABLE)
            raise _NotStarted(code, str(cannot)) from cannot
        for folder in (self._private, *self.launch.folders):
            try:
                if not folder.exists():
                    folder.mkdir(parents=True)
            except OSError as error:
                message = f"can't create the folder {folder}: {error.strerror}"
                raise _NotStarted(_code_of(error, _CANNOT_START), message) from error
        self.launch.termination_log.touch()
        if self._sandbox.network is None:
            self._check_ports()
        # An agent starts training more than once, and logs each attempt itself.
        attempt = "" if self.launch.has_agent else f"attempt {self.launch.env.get('TRAINJOB_ATTEMPT', '1')}, "
        self._log = ReplicaLog(
            self.log_path, f"--- {attempt}pod {self.name}, {format_time(self._clock())} ---"
        )
        if self._log.problem:
            self._on_line(self._replica, f"trainjob: {self._log.problem}")
        network = self._sandbox.network
        namespaces = network.namespaces if network is not None else ()
        self._memory = self._sandbox.memory_group(self.name, self.launch.memory)
        group = self._memory.folder if self._memory is not None else None
        return ReplicaProcess(self.launch, self._take_lines, self._sandbox.held, namespaces, group)

    def _check_ports(self) -> None:
        ports, base_port = self._sandbox.ports_of(self.manifest), self._sandbox.base_port
        port = ports.tensorflow
        if not can_listen(port):
            choice = "others with --base-port"
            if base_port is not None:
                choice = f"another --base-port than {base_port}"
            message = (
                f"port {port} of this machine is in use by another program: end it "
                f"(`ss -ltnp sport = :{port}` names it), or choose {choice}"
            )
            raise _NotStarted(ExitCode.PORT_IN_USE, message)
        port = ports.agent
        if self.launch.has_agent and not can_listen(port):
            message = (
                f"port {port} of this machine, chosen for an agent, has been taken by another program (`ss "
                f"-ltnp sport = :{port}` names it): start again to choose other ports"
            )
            raise _NotStarted(ExitCode.PORT_IN_USE, message)

    def _read_message(self, end: ProcessExit) -> str:
        """Return the termination message, by the rule of `FallbackToLogsOnError`."""
        message = read_termination_log(self.launch.termination_log)
        if message or not end.code:
            return message
        # With an agent, the report may be from an earlier attempt.
        report = {} if self.launch.has_agent else self.progress.report or {}
        message = (report.get("error") or {}).get("message") or ""
        if message and not self.tail.lines:
            self._take_lines([f"trainjob: {message}"])
        return message or self.tail.text

    def _take_lines(self, lines: list[str]) -> None:
        for line in lines:
            self.tail.add(line)
            self._on_line(self._replica, line)
        if self._log is not None:
            before = self._log.problem
            self._log.write(lines)
            if self._log.problem and before is None:
                self._on_line(self._replica, f"trainjob: {self._log.problem}")

    def _set_terminated(self, started: datetime, end: ProcessExit, message: str) -> None:
        reason = "Error" if end.code else "Completed"
        if end.code == 128 + signal.SIGKILL and self._memory is not None and self._memory.has_killed():
            reason = "OOMKilled"
        state: dict[str, Any] = {
            "exitCode": end.code,
            "reason": reason,
            "startedAt": format_time(started),
            "finishedAt": format_time(end.time),
        }
        if end.signal is not None:
            state["signal"] = end.signal
        if message:
            state["message"] = message
        self._set_status("Failed" if end.code else "Succeeded", {"terminated": state}, started)

    def _set_status(self, phase: str, state: dict[str, Any], started: datetime | None = None) -> None:
        is_ready = phase == "Running"
        conditions = {
            "PodScheduled": True,
            "Initialized": True,
            "ContainersReady": is_ready,
            "Ready": is_ready,
        }
        container = {
            "name": TRAINER_CONTAINER,
            "image": trainer_of(self.manifest["spec"]).get("image", ""),
            "imageID": "",
            "ready": is_ready,
            "started": is_ready,
            "restartCount": 0,
            "state": state,
            "lastState": {},
        }
        self.manifest["status"] = {
            "phase": phase,
            **({"startTime": format_time(started)} if started is not None else {}),
            "conditions": [{"type": kind, "status": str(value)} for kind, value in conditions.items()],
            "containerStatuses": [container],
        }
        self._changed(self.manifest)


def _code_of(error: BaseException | None, otherwise: int) -> int:
    """Return the exit code of a replica that can't be started: storage that is away counts as no failure."""
    is_away = isinstance(error, OSError) and error.errno in MOMENTARY
    return ExitCode.STORAGE_UNAVAILABLE if is_away else otherwise


class _NotStarted(Exception):
    """The exit code and the message of a process that can't be started."""
