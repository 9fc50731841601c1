"""One pod's life as a process of this machine."""

import asyncio
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from trainjob.api import TRAINER_CONTAINER
from trainjob.cluster.local import pod_status
from trainjob.cluster.local.launch import Launch
from trainjob.cluster.local.lines import LogTail
from trainjob.cluster.local.output_folder import check_writable
from trainjob.cluster.local.ports import ReplicaPorts, agent_port_in_use_message, is_free, port_in_use_message
from trainjob.cluster.local.process import Exit, ReplicaProcess
from trainjob.cluster.local.progress import ProgressFile
from trainjob.cluster.local.refusal import CannotRunHere
from trainjob.cluster.local.replica_log import ReplicaLog
from trainjob.cluster.local.termination_log import read_termination_log
from trainjob.cluster.protocol import Manifest
from trainjob.core.exits import OUTPUT_UNWRITABLE, PORT_IN_USE

_CANNOT_START = 128
"""What container runtimes report when they can't start a container."""


@dataclass(frozen=True, kw_only=True)
class PodSetting:
    """What a pod needs of its surroundings.

    Attributes:
        replica: such as `worker-0`.
        ports: of its hostname.
        base_port: what the caller chose, for messages.
        private: the pod's own folder, created here and removed with the pod.
        log_path: the file that keeps its log.
        held: descriptors that its launcher keeps open.
        clock: gives the time.
        on_line: gets each line that it prints, with the replica's name. Must not raise.
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
    """Starts the process when the seat's earlier pod has gone, and writes the pod's status as a kubelet does.

    Args:
        manifest: the stored pod; its status is kept up to date in place.
        launch: its translation.
        setting: its surroundings.
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
        self._image = next(
            c.get("image", "") for c in manifest["spec"]["containers"] if c["name"] == TRAINER_CONTAINER
        )
        manifest["status"] = pod_status.pending_status(self._image)

    @property
    def name(self) -> str:
        """Return the pod's name."""
        return str(self.manifest["metadata"]["name"])

    @property
    def has_ended(self) -> bool:
        """Tell whether nothing of it runs or will run."""
        return self._ended.is_set()

    @property
    def is_running(self) -> bool:
        """Tell whether its process runs."""
        return self._process is not None and not self.has_ended

    @property
    def is_deleting(self) -> bool:
        """Tell whether it has been asked to end."""
        return "deletionTimestamp" in self.manifest["metadata"]

    async def wait_ended(self) -> None:
        """Return once nothing of it runs or will run."""
        await self._ended.wait()

    async def run(self, predecessors: Iterable["LocalPod"]) -> None:
        """Live: wait for the pods that had this seat before, start, and follow the process to its end."""
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
        metadata.setdefault("deletionTimestamp", pod_status.format_time(until))
        metadata["deletionGracePeriodSeconds"] = int(grace_seconds)
        self.setting.changed(self.manifest)
        if self._process is not None:
            self._process.terminate(grace_seconds)

    def clear(self) -> None:
        """Remove what was the pod's own."""
        shutil.rmtree(self.setting.private, ignore_errors=True)

    async def _run(self) -> None:
        started = self.setting.clock()
        try:
            self._process = self._start()
        except _NotStarted as failure:
            self._set_not_started(started, failure.code, failure.message)
            return
        except (OSError, ValueError) as error:  # no descriptors, no memory, or a text that no program can get
            self._set_not_started(started, _CANNOT_START, f"can't start a process: {error}")
            return
        self._set_status(pod_status.running_status(self._image, started))
        end = await self._process.wait()
        self.progress.has_changed()
        self._set_terminated(started, end, self._last_words(end))

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
        raise _NotStarted(PORT_IN_USE, message)

    def _header(self) -> str:
        # An agent starts training more than once, and says so by itself.
        attempt = "" if self.launch.has_agent else f"attempt {self.launch.env.get('TRAINJOB_ATTEMPT', '1')}, "
        return f"--- {attempt}pod {self.name}, {pod_status.format_time(self.setting.clock())} ---"

    def _prepare_folders(self) -> None:
        try:
            if self.launch.output is not None:
                check_writable(self.launch.output)
        except CannotRunHere as cannot:
            raise _NotStarted(OUTPUT_UNWRITABLE, str(cannot)) from cannot
        for folder in (self.setting.private, *self.launch.folders):
            try:
                if not folder.exists():
                    folder.mkdir(parents=True)
            except OSError as error:
                message = f"can't create the folder {folder}: {error.strerror}"
                raise _NotStarted(_CANNOT_START, message) from error
        self.launch.termination_log.touch()

    def _last_words(self, end: Exit) -> str:
        """Return the termination message, by the rule of `FallbackToLogsOnError`."""
        said = read_termination_log(self.launch.termination_log)
        if said or not end.code:
            return said
        # What a training process said under an agent may be of an earlier attempt.
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
        self._set_terminated(started, Exit(code, None, self.setting.clock()), message)

    def _set_terminated(self, started: datetime, end: Exit, message: str) -> None:
        status = pod_status.terminated_status(
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
