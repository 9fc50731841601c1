"""The agent's training process: started, watched, asked to stop, killed with all descendants."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainjob_trainer.agent.cgroup import OomCounter, thread_variables
from trainjob_trainer.agent.log import LogCopy, Sink, log
from trainjob_trainer.agent.process_tree import Reaper, fatal_error, is_stopped, main_thread, request_stacks
from trainjob_trainer.agent.stall import ProgressWatch
from trainjob_trainer.agent.standby import StandbyKeeper
from trainjob_trainer.contract.exits import ExitCode
from trainjob_trainer.contract.processes import NOT_EXECUTABLE, can_listen, exit_code, kill_tree, send, spawn
from trainjob_trainer.contract.replicas import read_names
from trainjob_trainer.contract.wire import integer

_KILL_SECONDS = 0.02
_PORT_SECONDS = 10.0
_PORT_LOOK_SECONDS = 0.05
_COMPLAIN_SECONDS = 5.0

Launch = Callable[[Callable[[int], None]], "tuple[int, LogCopy]"]
"""Starts the process and returns its id and its output; calls back with its wait status at its end."""


class ProcessRun:
    """A training process with all its descendants; the constructor needs a running loop.

    Its start waits until the TCP port `port` is free. The agent's children in `spared` do not belong to it.
    Before the start, `pid` is 0 and `log` None.
    """

    def __init__(self, launch: Launch, *, port: int | None, spared: Callable[[], set[int]]) -> None:
        self.pid = 0
        self.log: LogCopy | None = None
        self._launch = launch
        self._port = port
        self._spared = spared
        self._status: int | None = None
        self._asked_to_end = False
        self._kill_at: float | None = None
        self._wake = asyncio.Event()

    @property
    def is_alive(self) -> bool:
        """Return whether the main process has started and not ended."""
        return self.pid != 0 and self._status is None

    async def last(self) -> tuple[int, int | None]:
        """Start it and wait until no process is left; return its exit code, 128+n for signal n, and n."""
        if not await self._wait_for_port():
            number = int(signal.SIGTERM if self._asked_to_end else signal.SIGKILL)
            return 128 + number, number
        try:
            self.pid, self.log = self._launch(self._ended)
        except OSError as error:  # the system has no free process or descriptor
            log(f"can't start the training process: {error}")
            return NOT_EXECUTABLE, None
        while self._status is None:
            await self._wait()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill()
                self._kill_at = time.monotonic() + _KILL_SECONDS
        await self._end_descendants()
        if self.log is not None:
            self.log.finish()
        return exit_code(self._status)

    def end(self, grace: float) -> None:
        """End it: SIGTERM to the main process now, SIGKILL to all after `grace` seconds."""
        if grace > 0 and not self._asked_to_end and self.is_alive:
            send(self.pid, signal.SIGTERM)
        self._asked_to_end = self._asked_to_end or grace > 0
        latest = time.monotonic() + max(0.0, grace)
        self._kill_at = latest if self._kill_at is None else min(self._kill_at, latest)
        self._wake.set()

    def _ended(self, wait_status: int) -> None:
        self._status = wait_status
        self._wake.set()

    async def _wait_for_port(self) -> bool:
        """Wait until the port is free, at most `_PORT_SECONDS`; return whether to start."""
        until = time.monotonic() + _PORT_SECONDS
        while self._kill_at is None:
            if self._port is None or can_listen(self._port) or time.monotonic() >= until:
                return True
            await asyncio.sleep(_PORT_LOOK_SECONDS)
        return False

    async def _wait(self) -> None:
        timeout = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
        try:
            await asyncio.wait_for(self._wake.wait(), timeout)
        except asyncio.TimeoutError:
            return
        self._wake.clear()

    async def _end_descendants(self) -> None:
        """Kill descendants until none is left: the next start needs their files and ports."""
        complain_at = time.monotonic() + _COMPLAIN_SECONDS
        while True:
            left = self._kill()
            if not left:
                return
            if time.monotonic() >= complain_at:
                log(f"waiting for processes that have not ended after SIGKILL: {sorted(left)}")
                complain_at = time.monotonic() + 60
            await asyncio.sleep(_KILL_SECONDS)

    def _kill(self) -> set[int]:
        groups = (self.pid,) if self._status is None else ()
        try:
            return kill_tree(os.getpid(), without=self._spared(), groups=groups)
        except OSError:  # no descriptor to read /proc: some may be left
            return {self.pid}


BOOTSTRAP = Path(__file__).parent.parent / "bootstrap"

_LOOK_SECONDS = 0.25
_CLOSE_SECONDS = 5.0
_CLOSE_LOOKS = 250
_SECONDS_WITHOUT_STEP = 15.0
_LONG_PAUSE = 60.0
_LONGEST_LINE = 200
_NOT_PASSED_ON = ("TRAINJOB_AGENT", "TRAINJOB_PID")


def remove_private_files(pids: Iterable[int]) -> None:
    """Remove the folders that `keras/writers.py` has made in processes that have ended."""
    host = os.uname().nodename
    with contextlib.suppress(OSError):  # a container may have no folder for temporary files
        for pid in pids:
            for folder in Path(tempfile.gettempdir()).glob(f"trainjob-private-{host}-{pid}-*"):
                shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class ChildExit:
    """How a training process ended.

    Attributes:
        code: its exit code, 128+n after a death by `signal` n.
        out_of_memory: whether the kernel killed it because the container's memory was used up.
        log_tail: the last lines of its output, at most 2,048 characters; of a crash of native code, its
            error and the main thread's innermost frames.
        message: the error in its last report, else the last line of its output, or that of a crash.
        reason: the reason in its last report, or "".
        step: the step in its last report.
        time: when it ended, Unix time in seconds.
        replicas: those that its last report says the error is about, if not only this one.
        memory: the bytes that the container could use when it ended, or None if that is unknown.
    """

    code: int
    signal: int | None
    out_of_memory: bool
    log_tail: str
    message: str
    reason: str
    step: int | None
    time: float
    replicas: tuple[str, ...] = ()
    memory: int | None = None


class Child:
    """The agent's training process: one at a time, and any number of starts.

    While it is open it waits for every child of this process, adopted ones included. It calls `changed` in
    the event loop when `exit` or `report` may have changed. A start waits until `tf_port` is free.
    `code` comes before the folders of the variable PYTHONPATH. `first` is a program that becomes the command,
    which it has as its arguments; a warm standby has begun without it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        state_dir: Path,
        tf_port: int | None,
        changed: Callable[[], None],
        standby: bool = False,
        code: Path | None = None,
        first: Sequence[str] = (),
    ) -> None:
        self._command = list(command)
        self._first = list(first)
        self._env = {name: value for name, value in env.items() if name not in _NOT_PASSED_ON}
        self._threads = thread_variables(self._env)
        self._progress_file = state_dir / "progress.json"
        self._port = tf_port
        self._code = code
        self._changed = changed
        self._sink = Sink()
        self._reaper = Reaper()
        self._progress = ProgressWatch(self._progress_file)
        self._oom = OomCounter()
        self._standby = StandbyKeeper(self._command, self._reaper, wanted=standby, lost=self._oom.mark)
        self._run: ProcessRun | None = None
        self._task: asyncio.Task[None] | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._started_at = 0.0
        self._variables: Mapping[str, str] = {}
        self.exit: ChildExit | None = None
        """The end of the latest start, set once no process of it is left."""

    @property
    def running(self) -> bool:
        """Return whether a process of the latest start is left."""
        return self._run is not None

    @property
    def report(self) -> Mapping[str, Any] | None:
        """Return the latest whole progress report of this start; None before the first."""
        return self._progress.report

    @property
    def report_age(self) -> float | None:
        """Return the seconds since the progress file was last replaced."""
        return self._progress.age

    @property
    def log_line(self) -> str:
        """Return the last line of its log once it has taken no step for a minute, else an empty text."""
        if self._run is None or self._run.log is None or self._progress.pause < _LONG_PAUSE:
            return ""
        lines = (line.strip() for line in reversed(self._run.log.tail.splitlines()))
        return next(filter(None, lines), "")[:_LONGEST_LINE]

    @property
    def is_stopped(self) -> bool:
        """Return whether SIGSTOP or a debugger has stopped its main process."""
        return self._run is not None and self._run.is_alive and is_stopped(self._run.pid)

    def start(self, changes: Mapping[str, str]) -> None:
        """Start it with `changes` to the container's environment; never blocks. RuntimeError if it runs."""
        if self._run is not None:
            raise RuntimeError("the training process runs already")
        self._open()
        self.exit = None
        self._progress.begin()
        self._oom.mark()
        self._variables = {**self._env, **self._added(), **changes}
        self._started_at = time.monotonic()
        self._run = ProcessRun(self._launch, port=self._port, spared=lambda: self._standby.pids)
        self._task = asyncio.get_running_loop().create_task(self._follow(self._run))

    async def stop(self, grace: float) -> None:
        """End it, and return when no process of it is left.

        SIGTERM goes to the main process, SIGKILL after `grace` seconds to all, for 0 at once. A second call
        may shorten the time, not lengthen it.
        """
        if self._run is not None and self._task is not None:
            self._run.end(grace)
            await asyncio.shield(self._task)

    async def dump_stacks(self, wait: float = 1.0) -> str:
        """Print its threads' stacks to the log; return what came of the main thread's within `wait` seconds.

        A process that was stopped continues after that.
        """
        run = self._run
        if run is None or not run.is_alive or run.log is None:
            return ""
        stopped = is_stopped(run.pid)
        request_stacks(run.pid)
        if stopped:
            send(run.pid, signal.SIGCONT)
        await run.log.settle(wait)
        return main_thread(run.log.recent)

    async def close(self) -> None:
        """Kill all processes and write the remaining output."""
        self._standby.close()
        await self.stop(0)
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
        for _ in range(_CLOSE_LOOKS):
            if not kill_tree(os.getpid()):
                break
            await asyncio.sleep(_CLOSE_SECONDS / _CLOSE_LOOKS)
        self._reaper.close()
        await asyncio.get_running_loop().run_in_executor(None, self._sink.drain, _CLOSE_SECONDS)

    def _open(self) -> None:
        self._reaper.listen()
        if self._ticker is None:
            self._ticker = asyncio.get_running_loop().create_task(self._tick())

    def _added(self) -> dict[str, str]:
        folders = (BOOTSTRAP, self._code, self._env.get("PYTHONPATH"))
        return {
            **self._threads,
            "PYTHONHASHSEED": self._env.get("PYTHONHASHSEED", "0"),  # a set has one order in all replicas
            "TRAINJOB_PROGRESS_FILE": str(self._progress_file),
            "PYTHONPATH": os.pathsep.join(str(folder) for folder in folders if folder),
        }

    def _launch(self, ended: Callable[[int], None]) -> tuple[int, LogCopy]:
        taken = self._standby.take(self._variables, self._sink, ended)
        if taken is not None:
            return taken
        log = LogCopy(self._sink)
        log.begin()
        try:
            with open(os.devnull, "rb") as nothing:  # noqa: PTH123
                words = self._first + self._command
                pid = spawn(words, self._variables, stdin=nothing.fileno(), output=log.writer)
        finally:
            log.close_writer()
        self._reaper.expect(pid, ended)
        return pid, log

    async def _follow(self, run: ProcessRun) -> None:
        code, number = await run.last()
        self._progress.look()
        pids = {run.pid, (self.report or {}).get("pid", run.pid)}  # a launcher's child reports its own
        await asyncio.get_running_loop().run_in_executor(None, remove_private_files, pids)
        self.exit = self._describe(run, code, number)
        self._run = None
        self._changed()

    def _describe(self, run: ProcessRun, code: int, number: int | None) -> ChildExit:
        report = self._progress.report or {}
        reported = report.get("error")
        error = reported if isinstance(reported, dict) else {}
        tail = run.log.tail if run.log is not None else ""
        crash = fatal_error(run.log.recent) if run.log is not None and number is not None else ""
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        last = crash.partition("\n")[0] or (lines[-1] if lines else "")
        message = str(error.get("message") or last)
        if code == ExitCode.NCCL_FAILED and run.log is not None:
            message += next((f" ({one})" for one in run.log.recent.splitlines() if "NCCL WARN" in one), "")
        return ChildExit(
            code=code,
            signal=number,
            out_of_memory=code == 128 + signal.SIGKILL and self._oom.changed(),
            log_tail=crash or tail,
            message=message,
            reason=str(error.get("reason") or ""),
            step=integer(report.get("step")),
            time=time.time(),
            replicas=read_names(error.get("replicas")),
            memory=self._oom.limit(),
        )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._reaper.reap()  # a signal may have been missed
            if self._run is None:
                continue
            if self._progress.look():
                self._changed()
            run = self._run
            if run is not None and run.is_alive and self._may_take_a_processor():
                self._standby.consider(run.pid, self._variables)

    def _may_take_a_processor(self) -> bool:
        """Return whether the training process has probably built its model and traced its steps.

        A launcher, whose child is the training process, reports nothing: a standby would import for nothing.
        """
        report, run = self.report, self._run
        if report is None or run is None or report.get("pid", run.pid) != run.pid:
            return False
        if report.get("state") in ("finished", "failed"):
            return False
        return self._progress.has_stepped or time.monotonic() - self._started_at > _SECONDS_WITHOUT_STEP
