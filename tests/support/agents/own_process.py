"""Tests that run in a process of their own: an agent waits for, and kills, every child that its process has.

    @in_own_process
    async def test_something(tmp_path: Path) -> None: ...

The process is a copy of one that has imported the agent; it loads the test's module and runs the coroutine
function.
"""

import asyncio
import importlib.util
import inspect
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.forked import fork
from trainjob_trainer.agent.child import Child

SECONDS = 400
PYTHON = sys.executable

Scenario = Callable[..., Coroutine[Any, Any, None]]


def in_own_process(scenario: Scenario) -> Callable[..., None]:
    """Make a test of a coroutine function; its arguments must be paths, or what JSON can say."""

    def test(**arguments: Any) -> None:
        __tracebackhide__ = True
        given = {key: str(value) if isinstance(value, Path) else value for key, value in arguments.items()}
        with tempfile.TemporaryFile() as printed:
            process = fork(
                ("pytest", "trainjob_trainer.agent.child"),
                f"{__name__}:run",
                [inspect.getfile(scenario), scenario.__name__, given],
                os.environ,
                printed.fileno(),
            )
            try:
                ended = process.wait(SECONDS)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            if ended:
                printed.seek(0)
                text = printed.read().decode(errors="replace")
                pytest.fail(f"{text[-10_000:]}\nIt ended with {ended}.", pytrace=False)

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    test.__signature__ = inspect.signature(scenario)  # type: ignore[attr-defined]
    test.scenario = scenario  # type: ignore[attr-defined]
    if hasattr(scenario, "pytestmark"):
        test.pytestmark = scenario.pytestmark  # type: ignore[attr-defined]
    return test


class Trainee:
    """A child of the process that the test runs in, and what it has printed; its folder is the test's own.

    A command that is a string is a Python program. `env` is the container's environment, beside what Python
    needs.
    """

    def __init__(
        self, folder: Path, command: str | Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self._output = folder / "output"
        self.changes = 0
        state_dir = folder / "state"
        state_dir.mkdir()
        if isinstance(command, str):
            (folder / "program.py").write_text(command, encoding="utf-8")
            command = [PYTHON, str(folder / "program.py")]
        with self._output.open("wb") as file:
            os.dup2(file.fileno(), 1)
        self.progress = state_dir / "progress.json"
        self.child = Child(
            command,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), **(env or {})},
            state_dir=state_dir,
            tf_port=options.pop("tf_port", None),
            changed=self._changed,
            **options,
        )

    @property
    def output(self) -> str:
        """Everything that it has printed so far, in all its starts."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    async def until(self, condition: Callable[[], Any], seconds: float = SECONDS / 2) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, f"not within {seconds} s; output: {self.output[-2000:]}"
            await asyncio.sleep(0.005)

    async def prints(self, text: str) -> None:
        await self.until(lambda: text in self.output)

    async def ends(self) -> Any:
        """Wait for its end, and a moment for its output to be written down; return how it ended."""
        await self.until(lambda: not self.child.running)
        self.child._sink.drain(1.0)
        return self.child.exit

    def _changed(self) -> None:
        self.changes += 1


def run(file: str, name: str, given: Mapping[str, Any]) -> None:
    """Run a scenario of this file, in the process made for it."""
    spec = importlib.util.spec_from_file_location("scenario", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scenario"] = module
    spec.loader.exec_module(module)
    arguments = {key: Path(value) if key == "tmp_path" else value for key, value in given.items()}
    asyncio.run(getattr(module, name).scenario(**arguments))
