"""What the controller as a process needs: a kubeconfig, and a reader of its log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import IO

import aiohttp

from support.forked import fork


def write_kubeconfig(folder: Path, server: str, token: str = "") -> Path:
    user = {"token": token} if token else {}
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                "clusters": [{"name": "test", "cluster": {"server": server}}],
                "users": [{"name": "test", "user": user}],
            }
        )
    )
    return path


class ControllerProcess:
    """`trainjob controller` as a process, and what it logs; `url`, once logged, serves health and metrics."""

    def __init__(self, pid: int, log: asyncio.StreamReader, wait: Callable[[], Awaitable[int]]) -> None:
        self._pid = pid
        self._log = log
        self._changed = asyncio.Condition()
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())
        self._end = asyncio.ensure_future(wait())

    @property
    def log(self) -> str:
        return "".join(self.lines)

    async def _read(self) -> None:
        while line := await self._log.readline():
            self.lines.append(line.decode())
            async with self._changed:
                self._changed.notify_all()

    async def says(self, text: str, seconds: float = 60) -> str:
        """Return the first line of the log with this text, once it is there."""

        def find() -> str | None:
            return next((line for line in self.lines if text in line), None)

        try:
            async with asyncio.timeout(seconds), self._changed:
                return str(await self._changed.wait_for(find) and find())
        except TimeoutError:
            raise AssertionError(f"never said {text!r}:\n{self.log}") from None

    async def get(self, path: str) -> tuple[int, str]:
        """Return status and text of a page of its."""
        line = await self.says("on port ")
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{line.split()[-1]}{path}") as answer,
        ):
            return answer.status, await answer.text()

    def send(self, number: signal.Signals) -> None:
        os.kill(self._pid, number)

    async def ended(self, seconds: float = 60) -> int:
        async with asyncio.timeout(seconds):
            await self._reading
            return await asyncio.shield(self._end)

    async def stop(self) -> None:
        with suppress(ProcessLookupError):  # its end is on its way to us
            if not self._end.done():
                self.send(signal.SIGKILL)
        await self._end
        await self._reading


@asynccontextmanager
async def run_controller(
    kubeconfig: Path, *options: str, environment: dict[str, str] | None = None, forked: bool = False
) -> AsyncIterator[ControllerProcess]:
    """Run the controller on any free port; it is killed in the end if it still runs.

    `forked`: not as the program, whose imports take seconds, but by the same function in a process that has
    imported all.
    """
    arguments = ["controller", f"--kubeconfig={kubeconfig}", "--http-address=127.0.0.1:0", *options]
    env = {**os.environ, "PYTHONWARNINGS": "default", **(environment or {})}
    async with AsyncExitStack() as stack:
        if forked:
            log, output = os.pipe()
            with os.fdopen(output, "wb"):
                imports = ("trainjob.cli.controller", "trainjob.controller.operator")
                process = fork(imports, "trainjob.cli.commands:main", [arguments], env, output)
            news = await stack.enter_async_context(_reading(process.news))

            async def wait() -> int:
                return int(await news.readline())

            reader = await stack.enter_async_context(_reading(os.fdopen(log, "rb")))
            running = ControllerProcess(process.pid, reader, wait)
        else:
            program = await asyncio.create_subprocess_exec(
                Path(sys.executable).with_name("trainjob"),
                *arguments,
                stderr=asyncio.subprocess.PIPE,
                env=env,
            )
            assert program.stderr is not None
            running = ControllerProcess(program.pid, program.stderr, program.wait)
        try:
            yield running
        finally:
            await running.stop()


@asynccontextmanager
async def _reading(pipe: IO[bytes]) -> AsyncIterator[asyncio.StreamReader]:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        yield reader
    finally:
        transport.close()
