"""Real training processes on 127.0.0.1, for tests: started together, collected, and never left behind."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from testbed.ports import free_ports

from support.trainer.forking import QUIET, Forked, can_fork, fork
from trainjob_trainer.agent.ending import mark_finished

REPOSITORY = Path(__file__).resolve().parents[3]
DEADLINE_SECONDS = 400.0
"""For a whole run; only a hang reaches it."""


@dataclass
class Process:
    """One replica; its output is collected by a thread, so that it can never block on a full pipe."""

    replica: str
    popen: subprocess.Popen[str] | Forked
    lines: list[str] = field(default_factory=list)
    _reader: threading.Thread | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def collect(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait_for_line(self, words: str, seconds: float = DEADLINE_SECONDS, *, times: int = 1) -> str:
        """The first line with these words (or the second, ...), as soon as it is there."""

        def found() -> str | None:
            return next(
                itertools.islice((line for line in self.lines if words in line), times - 1, None), None
            )

        with self._changed:
            self._changed.wait_for(lambda: found() or self.popen.poll() is not None, timeout=seconds)
        line = found()
        assert line is not None, f"{self.replica} never printed {words!r}:\n{self.output}"
        return line

    def wait(self, seconds: float = DEADLINE_SECONDS) -> int:
        """The exit code (negative: a signal)."""
        try:
            code = self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.replica} did not end within {seconds} s:\n{self.output}") from None
        self.finish_reading()
        return code

    def finish_reading(self) -> None:
        if self._reader is not None:
            self._reader.join()

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.popen.pid, number)

    def freeze(self) -> None:
        """SIGSTOP, and return when it has stopped."""
        self.kill(signal.SIGSTOP)
        if isinstance(self.popen, Forked):
            self.popen.wait_until_stopped()
        else:
            os.waitid(os.P_PID, self.popen.pid, os.WSTOPPED)


class WorkerGroup:
    """Workers and perhaps an evaluator, running one script; a context manager that leaves nobody behind.

    `more` are numbers of replicas of other roles.
    """

    def __init__(
        self,
        script: Path,
        output: Path,
        *,
        workers: int = 2,
        evaluator: bool = False,
        uid: str = "uid-1",
        attempt: int = 1,
        env: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        ports: tuple[int, ...] = (),
        interpreter: tuple[str, ...] = (sys.executable,),
        uri: str = "",
        more: Mapping[str, int] | None = None,
    ) -> None:
        self._output = output
        self._uri = uri
        self._script, self._arguments, self._interpreter = script, arguments, interpreter
        self._common = {
            "TRAINJOB_NAME": "test",
            "TRAINJOB_UID": uid,
            "TRAINJOB_ATTEMPT": str(attempt),
            **(env or {}),
        }
        counts = {"worker": workers, "evaluator": int(evaluator), **(more or {})}
        left = iter(ports or free_ports(sum(counts.values())))
        self._cluster = {
            role: [f"127.0.0.1:{next(left)}" for _ in range(count)] for role, count in counts.items() if count
        }
        self.processes: dict[str, Process] = {}

    def __enter__(self) -> WorkerGroup:
        for role, addresses in self._cluster.items():
            for index in range(len(addresses)):
                self._start(role, index)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.popen.pid, signal.SIGKILL)
            process.popen.wait()
            if process.popen.stdout is not None:
                process.finish_reading()
                process.popen.stdout.close()

    def __getitem__(self, replica: str) -> Process:
        return self.processes[replica]

    def wait(self, seconds: float = DEADLINE_SECONDS) -> dict[str, int]:
        """Exit codes by replica, when all have ended."""
        deadline = time.monotonic() + seconds
        codes = {}
        for name, process in self.processes.items():
            codes[name] = process.wait(deadline - time.monotonic())
            in_bucket = bool(self._uri) and name.startswith("evaluator")
            if (name == "worker-0" or in_bucket) and codes[name] == 0:  # as an agent does
                env = {**os.environ, **self._common, **self._folders(name), "TF_CONFIG": self._config(name)}
                mark_finished(env, env.get("TRAINJOB_GENERATION", ""))
        return codes

    @property
    def report(self) -> str:
        return "\n".join(f"--- {name}\n{process.output}" for name, process in self.processes.items())

    def progress(self, replica: str) -> dict[str, Any]:
        text = self._progress_file(replica).read_text(encoding="utf-8")
        report: dict[str, Any] = json.loads(text)
        return report

    def _progress_file(self, replica: str) -> Path:
        return self._output.parent / f"progress-{self._output.name}-{replica}.json"

    def _start(self, role: str, index: int) -> None:
        replica = f"{role}-{index}"
        env = {
            **os.environ,
            **QUIET,
            **self._common,
            "TF_CONFIG": self._config(replica),
            **self._folders(replica),
            "TRAINJOB_PROGRESS_FILE": str(self._progress_file(replica)),
        }
        self.processes[replica] = Process(replica, self._popen(env))
        self.processes[replica].collect()

    def _config(self, replica: str) -> str:
        role, _, index = replica.rpartition("-")
        return json.dumps({"cluster": self._cluster, "task": {"type": role, "index": int(index)}})

    def _folders(self, replica: str) -> dict[str, str]:
        """With an address in a bucket each replica has a folder of its own, as pods have."""
        root = self._output / replica if self._uri else self._output
        of_evaluator = "/evaluator" if replica.startswith("evaluator") else ""
        return {
            "TRAINJOB_OUTPUT_DIR": f"{root}{of_evaluator}",
            "TRAINJOB_CHECKPOINT_DIR": f"{root}/checkpoints",
            "TRAINJOB_LOG_DIR": f"{root}{of_evaluator}/logs{'' if of_evaluator else '/train'}",
            **({"TRAINJOB_OUTPUT_URI": f"{self._uri}{of_evaluator}"} if self._uri else {}),
        }

    def _popen(self, env: Mapping[str, str]) -> subprocess.Popen[str] | Forked:
        if can_fork(self._interpreter, self._common):
            path = self._common.get("PYTHONPATH", "")
            return fork(self._script, self._arguments, env, REPOSITORY, path=path)
        return subprocess.Popen(
            [*self._interpreter, str(self._script), *self._arguments],
            env=env,
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )


def jsonl(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)
