"""Builders of jobs and pods as an API server stores them, and a command that runs beside the test."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from support.cli.program import NOW, build_run
from support.world.jobs import build_job
from trainjob.cli import main
from trainjob.client.run_record import RunRecord, identify_process, remember
from trainjob.client.view import JobView

GUARD_SECONDS = 60.0
"""Against hanging only."""

RUNNING = {"running": {"startedAt": "2026-01-02T03:04:05Z"}}


def condition(kind: str, message: str = "", reason: str = "Because", status: str = "True") -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }


def stored_job(
    state: str = "Running", *, name: str = "digits", uid: str = "", **status: Any
) -> dict[str, Any]:
    """Return a job with a status; of one that is over, with the condition that says so."""
    job = build_job(name=name, uid=uid or f"uid-of-{name}")
    job["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z"
    if state in ("Complete", "Failed"):
        status.setdefault("conditions", [condition(state, status.get("message", ""))])
    job["status"] = {"state": state, **status}
    return job


def stored_pod(
    role: str = "worker",
    index: int = 0,
    incarnation: int = 1,
    *,
    job: str = "digits",
    owner: str = "",
    container: dict[str, Any] | None = None,
    **status: Any,
) -> dict[str, Any]:
    """Return a pod of a job; `container` is the state of its container, None: there is none yet."""
    labels = {"job": job, "role": role, "index": str(index), "incarnation": str(incarnation), "live": "true"}
    states = [{"name": "trainer", "state": container}] if container else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job}-{role}-{index}-{incarnation}",
            "labels": {f"trainjob.dev/{key}": value for key, value in labels.items()},
            "ownerReferences": [{"uid": owner or f"uid-of-{job}", "controller": True}],
            "creationTimestamp": "2026-01-02T03:04:05Z",
        },
        "spec": {"nodeName": "node-1"} if container else {},
        "status": {"phase": "Running" if container else "Pending", "containerStatuses": states, **status},
    }


def ended(exit_code: int = 0, **terminated: Any) -> dict[str, Any]:
    """Return the state of a container that has ended."""
    return {"terminated": {"exitCode": exit_code, **terminated}}


def store_run(folder: Path, view: JobView | None = None, **fields: Any) -> Path:
    """Write a record into a folder, as of a run of this process that goes on, and add it to the index."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {"host": platform.node(), "pid": os.getpid(), "process": identify_process(os.getpid())}
    RunRecord(**{"view": view or build_run(), "began": NOW, **own, **fields}).write(folder)
    remember(folder)
    return folder


def call(*arguments: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(main, arguments, input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def interrupt() -> None:
    """Have the main thread receive what Ctrl-C sends."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def let_time_pass(limit: float, condition: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a command's limit of so many seconds end once the condition holds, however long that takes."""

    def timeout(seconds: float | None) -> asyncio.Timeout:
        if seconds != limit:
            return usual(seconds)
        ends, loop = usual(None), asyncio.get_running_loop()

        def end() -> None:
            if condition():
                ends.reschedule(loop.time())
            else:
                loop.call_later(0.01, end)

        loop.call_soon(end)
        return ends

    usual = asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", timeout)


class Beside:
    """A command that runs while the test changes the world."""

    def __init__(self, *arguments: str) -> None:
        self._results: list[Result] = []
        self._thread = threading.Thread(
            target=lambda: self._results.append(CliRunner().invoke(main, arguments)), daemon=True
        )
        self._thread.start()

    def finish(self) -> Result:
        self._thread.join(GUARD_SECONDS)
        assert self._results, "it has not ended"
        result = self._results[0]
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result
