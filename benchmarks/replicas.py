"""Controllers as processes of this machine: what they log, what they count, and what they take."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import aiohttp

if TYPE_CHECKING:
    from testbed import Cluster

ROOT = Path(__file__).parents[1]
OPERATOR = "trainjob-system"
"""The controllers' namespace, as in `manifests/`."""

AS_IN_A_POD = (
    "import os, pathlib, sys; sys.modules['kubernetes'] = None;"
    "from trainjob.cluster.kube import config;"
    "config.in_cluster.__defaults__ = (os.environ, pathlib.Path(sys.argv.pop(1)));"
    "from trainjob.cli import main; main(prog_name='trainjob')"
)
"""As in the image: without the package `kubernetes`, which kopf would import, and with a service account.

The first argument names the folder with the account's files.
"""

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """What a process takes.

    Attributes:
        resident_bytes: its resident set.
        peak_bytes: the largest one that it has had.
        processor_seconds: the processor time that it has taken.
    """

    resident_bytes: int
    peak_bytes: int
    processor_seconds: float

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return what the process takes now.

        Raises:
            OSError: it has ended.
        """
        folder = Path("/proc") / str(pid)
        lines = (line.partition(":") for line in (folder / "status").read_text().splitlines())
        sizes = {name: value.split()[0] for name, _, value in lines if name in ("VmRSS", "VmHWM")}
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        if not sizes:
            raise ProcessLookupError(f"process {pid} is a zombie")
        seconds = (int(fields[11]) + int(fields[12])) / TICKS
        return cls(int(sizes["VmRSS"]) * 1024, int(sizes["VmHWM"]) * 1024, seconds)


class Replica:
    """A controller as a process.

    Attributes:
        began: when it was started.
    """

    def __init__(self, process: asyncio.subprocess.Process, kept: Path | None = None) -> None:
        """Follow a process; its log is also written to the file `kept`."""
        self._process = process
        self._file = kept.open("w") if kept is not None else None
        self._lines: list[str] = []
        self._changed = asyncio.Condition()
        self._reading = asyncio.ensure_future(self._read())
        self.began = time.perf_counter()

    async def says(self, text: str) -> str:
        """Return the first line of its log with this text, once it is there.

        Raises:
            SystemExit: it has ended before.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._find(text) or self._reading.done())
        if not self._find(text):
            raise self._gone()
        return self._find(text)

    async def ready(self) -> None:
        """Return once its readiness probe would succeed."""
        async with aiohttp.ClientSession() as session:
            while True:
                with suppress(aiohttp.ClientError):
                    async with session.get(f"{await self._url()}/readyz") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.02)

    async def metrics(self) -> str:
        """Return its metrics as Prometheus gets them.

        Raises:
            SystemExit: it has ended.
        """
        url = f"{await self._url()}/metrics"
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return await answer.text()
        except aiohttp.ClientError as error:
            raise self._gone() from error

    def usage(self) -> Usage:
        """Return what it takes; see `Usage.of`."""
        return Usage.of(self._process.pid)

    def sockets(self) -> int:
        """Return how many sockets it has open."""
        files = list(Path(f"/proc/{self._process.pid}/fd").iterdir())
        return sum(_link(file).startswith("socket:") for file in files)

    def log(self) -> str:
        """Return all that it has said."""
        return "".join(self._lines)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    @property
    def ended(self) -> bool:
        """Return whether it has ended."""
        return self._process.returncode is not None

    async def stop(self) -> None:
        """Stop it as the kubelet does, and return once it has ended."""
        if not self.ended:
            self.send(signal.SIGTERM)
        await self._process.wait()
        await self._reading

    async def kill(self) -> None:
        """End it at once."""
        if not self.ended:
            self._process.kill()
        await self._process.wait()
        await self._reading

    def _gone(self) -> SystemExit:
        return SystemExit("a controller has ended:\n" + "".join(self._lines[-20:]))

    def _find(self, text: str) -> str:
        return next((line for line in self._lines if text in line), "")

    async def _url(self) -> str:
        return f"http://127.0.0.1:{(await self.says('on port ')).split()[-1]}"

    async def _read(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - it is a pipe
        while line := (await self._process.stderr.readline()).decode(errors="replace"):
            self._lines.append(line)
            if self._file is not None:
                self._file.write(line)
                self._file.flush()
            async with self._changed:
                self._changed.notify_all()
        if self._file is not None:
            self._file.close()
        async with self._changed:
            self._changed.notify_all()


def _link(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:  # closed meanwhile
        return ""


async def start_replica(
    command: Sequence[str], environment: Mapping[str, str] | None = None, log: Path | None = None
) -> Replica:
    """Start a controller; `environment` comes on top of this process's. Its log is also written to `log`."""
    pipe = asyncio.subprocess.PIPE
    env = {**os.environ, **(environment or {})}
    return Replica(await asyncio.create_subprocess_exec(*command, stderr=pipe, limit=1 << 24, env=env), log)


@asynccontextmanager
async def a_replica(command: Sequence[str]) -> AsyncIterator[Replica]:
    """Run a controller here."""
    replica = await start_replica(command)
    try:
        yield replica
    finally:
        await replica.kill()


class Controllers:
    """Starts controllers as pods of the chart would be: with its account, its permissions and its options."""

    def __init__(self, cluster: Cluster, folder: Path, logs: Path | None = None) -> None:
        """Install what they need; the account's files go into a new folder, their logs into `logs`."""
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR}})
        account = {"name": "trainjob", "namespace": OPERATOR}
        cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        cluster.apply(ROOT / "manifests" / "base" / "rbac.yaml")
        token = cluster.kubectl("create", "token", "trainjob", "-n", OPERATOR, "--duration=24h")
        authority = cluster.get("configmap", "kube-root-ca.crt", namespace="default")["data"]["ca.crt"]
        folder.mkdir()
        for name, text in (("token", token), ("ca.crt", authority), ("namespace", OPERATOR)):
            (folder / name).write_text(text)
        host, _, port = cluster.server.removeprefix("https://").rpartition(":")
        service = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        self._environment = {**service, "POD_NAMESPACE": OPERATOR}
        words = ("controller", "--http-address", "127.0.0.1:0", "--lease-name", "trainjob")
        self._command = [sys.executable, "-c", AS_IN_A_POD, str(folder), *words]
        self._logs = logs
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
        self._all: list[Replica] = []

    async def start(self, version: str = "") -> Replica:
        """Start one more; the packages come from these folders first, separated as in PYTHONPATH."""
        path = os.pathsep.join(filter(None, (version, os.environ.get("PYTHONPATH"))))
        kept = self._logs / f"controller-{len(self._all) + 1}.log" if self._logs is not None else None
        replica = await start_replica(self._command, {**self._environment, "PYTHONPATH": path}, kept)
        self._all.append(replica)
        return replica

    async def close(self) -> None:
        """End those that still run."""
        for replica in self._all:
            await replica.kill()

    def logs(self) -> list[str]:
        """Return all that each of them has said."""
        return [replica.log() for replica in self._all]
