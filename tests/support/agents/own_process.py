"""Tests that run in a process of their own: an agent waits for, and kills, every child that its process has.

    @in_own_process
    async def test_something(tmp_path: Path) -> None: ...

The process is another interpreter, which loads the test's module and runs the coroutine function.
"""

import asyncio
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from trainjob_trainer.agent.child import Child

SECONDS = 400
PYTHON = sys.executable

Scenario = Callable[..., Coroutine[Any, Any, None]]


def in_own_process(scenario: Scenario) -> Callable[..., None]:
    """Make a test of a coroutine function; its arguments must be paths, or what JSON can say."""

    def test(**arguments: Any) -> None:
        __tracebackhide__ = True
        ended = subprocess.run(
            [PYTHON, __file__, inspect.getfile(scenario), scenario.__name__],
            input=json.dumps(arguments, default=str),
            env={
                **os.environ,
                "PYTHONPATH": f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}",
            },
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if ended.returncode:
            pytest.fail(f"{ended.stdout[-5000:]}\n{ended.stderr[-5000:]}", pytrace=False)

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


def main(file: str, name: str) -> None:
    sys.path.append(str(Path(__file__).parents[3] / "testbed"))  # as pytest has it
    spec = importlib.util.spec_from_file_location("scenario", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scenario"] = module
    spec.loader.exec_module(module)
    raw = json.load(sys.stdin)
    arguments = {key: Path(value) if key == "tmp_path" else value for key, value in raw.items()}
    asyncio.run(getattr(module, name).scenario(**arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
