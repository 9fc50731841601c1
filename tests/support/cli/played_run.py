"""A run of this process whose states a test sets, reached through its socket as any other run is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.cli.program import NOW
from support.cli.stored_jobs import store_run
from trainjob.client.runs import serve
from trainjob.client.view import JobView


class PlayedRun:
    """See `RunControls`."""

    def __init__(self, folder: Path, view: JobView) -> None:
        self.folder, self.latest = folder, view
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[PlayedRun]:
        """Be there, and at the end of the context leave a record of the last state."""
        async with serve(self) as socket:
            store_run(self.folder, self.latest, socket=socket)
            try:
                yield self
            finally:
                store_run(self.folder, self.latest, ended=NOW, end="complete")

    def show(self, view: JobView) -> None:
        """Change the state."""
        self.latest = view
        self._changed.set()
        self._changed = asyncio.Event()

    def write_log(self, replica: str, *lines: str) -> None:
        """Have a replica write lines."""
        log = self.folder / "logs/replicas" / f"{replica}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    async def later_than(self, view: JobView) -> JobView:
        while self.latest is view:
            await self._changed.wait()
        return self.latest

    def patch(self, spec: Mapping[str, Any]) -> None:
        raise AssertionError(f"the page only reads: {spec}")

    def delete(self) -> None:
        raise AssertionError("the page only reads")
