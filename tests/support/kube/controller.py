"""What the controller as a process needs: an API server to explore, a kubeconfig, a reader of its log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from support.kube.apiserver import FakeApiServer
from support.kube.objects import KINDS, Kind

KINDS.setdefault("leases", Kind("leases", "Lease"))

OURS = "trainjob.dev/v1alpha1"
OTHERS = "trainer.example.org/v1alpha1"
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def _resource(name: str, kind: str, *, namespaced: bool = True) -> dict[str, Any]:
    return {"name": name, "singularName": "", "kind": kind, "namespaced": namespaced, "verbs": _VERBS}


def _group(version: str) -> dict[str, Any]:
    group, _, name = version.partition("/")
    entry = {"groupVersion": version, "version": name}
    return {"name": group, "versions": [entry], "preferredVersion": entry}


class ControllerServer(FakeApiServer):
    """An API server that kopf can explore; another group has a kind of the same name and plural."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []
        self.groups = [OURS, OTHERS, "apiextensions.k8s.io/v1"]
        self._served = {
            "/api": {"versions": ["v1"]},
            "/api/v1": [_resource("namespaces", "Namespace", namespaced=False), _resource("events", "Event")],
            f"/apis/{OURS}": [_resource("trainjobs", "TrainJob")],
            f"/apis/{OTHERS}": [_resource("trainjobs", "TrainJob")],
            "/apis/apiextensions.k8s.io/v1": [
                _resource("customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
            ],
        }

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        served = self._served.get(request.path)
        if request.path == "/apis":
            served = {"groups": [_group(version) for version in self.groups]}
        if served is None:
            return await super()._answer(request)
        return web.json_response({"resources": served} if isinstance(served, list) else served)


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

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._changed = asyncio.Condition()
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    @property
    def log(self) -> str:
        return "".join(self.lines)

    async def _read(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
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
        self._process.send_signal(number)

    async def ended(self, seconds: float = 60) -> int:
        async with asyncio.timeout(seconds):
            await self._reading
            return await self._process.wait()

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def run_controller(
    kubeconfig: Path, *options: str, environment: dict[str, str] | None = None
) -> AsyncIterator[ControllerProcess]:
    """Run the controller on any free port; it is killed in the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("trainjob"),
        "controller",
        f"--kubeconfig={kubeconfig}",
        "--http-address=127.0.0.1:0",
        *options,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "default", **(environment or {})},
    )
    running = ControllerProcess(process)
    try:
        yield running
    finally:
        await running.stop()
