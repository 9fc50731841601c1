"""What Horovod's Gloo controller needs: variables in each process, and a store in the leading agent.

Horovod's own launcher starts processes by ssh and serves the store itself. Here the agents start the
processes; each start of the worker group has a store of its own, on a port of its own, so that a process of
an earlier attempt can't put its address into a later ring.

The protocol is that of `horovod/runner/http/http_server.py` 0.28.1: PUT, GET and DELETE of `/SCOPE/KEY`. GET
of a missing key gives 404, and the client asks again. Clients send no credentials. As for TensorFlow's
own port, the job's NetworkPolicy admits the job's pods only.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from trainjob_trainer.agent.log import log

# The variables of one process.


CHOICES = (
    "HOROVOD_CONTROLLER",
    "HOROVOD_CPU_OPERATIONS",
    "HOROVOD_GLOO_IFACE",
    "HOROVOD_GLOO_TIMEOUT_SECONDS",
)
"""Variables that a job may set itself; the others depend on the attempt."""

LONGEST_START_SECONDS = 600
"""How long a rank waits for the others; Horovod's 30 s are shorter than a slow import of TensorFlow."""


def build_variables(
    tf_config: Mapping[str, Any],
    rendezvous: Mapping[str, Any] | None,
    interface: str,
    chosen: Mapping[str, str],
) -> dict[str, str]:
    """Return Horovod's variables of one process, empty if this attempt has no ring.

    Ranks are in TF_CONFIG's order: the chief, then the workers. Each replica is a host, as its pod is.

    Args:
        tf_config: of this process and attempt.
        rendezvous: `host` and `port` of the store, from the start message; None without one.
        interface: the network interface that has this replica's address; empty if it is unknown.
        chosen: the container's environment, whose `CHOICES` are kept.
    """
    if rendezvous is None:
        return {}
    ranks = rank_replicas(tf_config["cluster"])
    task = tf_config["task"]
    replica = f"{task['type']}-{task['index']}"
    rank, size = str(ranks.index(replica)), str(len(ranks))
    choices = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(LONGEST_START_SECONDS),
    }
    return {
        "HOROVOD_RANK": rank,
        "HOROVOD_SIZE": size,
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": rank,
        "HOROVOD_CROSS_SIZE": size,
        "HOROVOD_HOSTNAME": replica,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": str(rendezvous["host"]),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(rendezvous["port"]),
        **{name: value for name, value in choices.items() if value and name not in chosen},
    }


def rank_replicas(cluster: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the training replicas in the order of their ranks; none with parameter servers."""
    if cluster.get("ps"):
        return []
    return [f"{role}-{index}" for role in ("chief", "worker") for index in range(len(cluster.get(role, ())))]


def find_interface(host: str) -> str:
    """Return the name of the interface with this IPv4 address, or an empty text; Linux only."""
    if sys.platform != "linux":
        return ""
    import fcntl  # noqa: PLC0415 - it doesn't exist everywhere

    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        wanted = socket.inet_aton(host)
        for _, name in socket.if_nameindex():
            request = array.array("B", struct.pack("256s", name.encode()[:15]))
            with contextlib.suppress(OSError):  # the interface has no address
                fcntl.ioctl(asking.fileno(), _GET_ADDRESS, request)
                if request.tobytes()[20:24] == wanted:
                    return name
    return ""


_GET_ADDRESS = 0x8915
"""SIOCGIFADDR of <linux/sockios.h>."""


# The store.


LARGEST_NAME = 256
LARGEST_VALUE = 1 << 20
"""Bytes; a rank's addresses take about 150 bytes for each other rank."""
LARGEST_STORE = 64 << 20
MOST_KEYS = 1 << 16


class StoreFull(Exception):
    """A value doesn't fit into the store."""


class Store:
    """Small values by scope and key, within limits."""

    def __init__(self, largest: int = LARGEST_STORE, most_keys: int = MOST_KEYS) -> None:
        self._values: dict[tuple[str, str], bytes] = {}
        self._bytes = 0
        self._largest = largest
        self._most_keys = most_keys

    def put(self, scope: str, key: str, value: bytes) -> None:
        """Set a value, or raise StoreFull and keep the earlier one."""
        before = self._values.get((scope, key))
        total = self._bytes + _size(scope, key, value) - (0 if before is None else _size(scope, key, before))
        if total > self._largest or (before is None and len(self._values) >= self._most_keys):
            raise StoreFull(f"{scope}/{key}: {len(self._values)} keys with {self._bytes} bytes are there")
        self._values[scope, key], self._bytes = value, total

    def get(self, scope: str, key: str) -> bytes | None:
        """Return the value, or None."""
        return self._values.get((scope, key))

    def delete(self, scope: str, key: str) -> None:
        """Remove the value, if there is one: a rank does so once all have connected."""
        before = self._values.pop((scope, key), None)
        if before is not None:
            self._bytes -= _size(scope, key, before)


def _size(scope: str, key: str, value: bytes) -> int:
    return len(scope) + len(key) + len(value)


# The store's HTTP server.


REQUEST_SECONDS = 5.0
LOOK_SECONDS = 1.0
"""How long GET waits for a missing key: clients ask every 10 ms, for each rank that isn't there yet."""
MOST_CONNECTIONS = 4096
LARGEST_HEAD = 8192

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 413: "Payload Too Large", 507: "Store Full"}


class BadRequest(Exception):
    """A request that isn't answered from the store; `status` is HTTP's."""

    def __init__(self, status: int) -> None:
        super().__init__(_REASONS[status])
        self.status = status


def read_head(head: bytes) -> tuple[str, str, str, int]:
    """Return method, scope, key and the length of the body; BadRequest if it is no request of Horovod's."""
    try:
        first, *lines = head.decode("ascii").split("\r\n")
        method, path, version = first.split(" ")
        fields = {name.strip().lower(): value for name, _, value in (line.partition(":") for line in lines)}
        empty, scope, key = path.split("/")
        length = int(fields.get("content-length") or 0)
    except ValueError:  # UnicodeDecodeError is one
        raise BadRequest(400) from None
    names = empty == "" and 0 < len(scope) <= LARGEST_NAME and 0 < len(key) <= LARGEST_NAME
    if method not in ("PUT", "GET", "DELETE") or not version.startswith("HTTP/1.") or not names or length < 0:
        raise BadRequest(400)
    if length > LARGEST_VALUE:
        raise BadRequest(413)
    return method, scope, key, length


class StoreServer:
    """Serves one attempt's store on a free port of `host`; the constructor raises OSError without one."""

    def __init__(self, host: str, store: Store | None = None, patience: float = REQUEST_SECONDS) -> None:
        self._socket = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=512
        )
        self.port: int = self._socket.getsockname()[1]
        self._store = store or Store()
        self._patience = patience
        self._changed = asyncio.Event()
        self._handlers: set[asyncio.Task[None]] = set()
        self._server: asyncio.AbstractServer | None = None
        self._opening = asyncio.get_running_loop().create_task(self._open())

    def close(self) -> None:
        """Stop serving and end all connections."""
        self._opening.cancel()
        if self._server is not None:
            self._server.close()
        self._socket.close()
        for handler in self._handlers:
            handler.cancel()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._accept, sock=self._socket, limit=LARGEST_HEAD)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._handlers) >= MOST_CONNECTIONS:
            writer.transport.abort()  # the client tries again
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            status, value = await self._respond(reader)
            head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: {len(value)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + value)
            await asyncio.wait_for(writer.drain(), self._patience)
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), self._patience)
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.LimitOverrunError):
            pass  # garbage, a slow client, or one that has gone
        finally:
            writer.transport.abort()

    async def _respond(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self._patience)
            method, scope, key, length = read_head(head[:-4])
            if method == "PUT":
                value = await asyncio.wait_for(reader.readexactly(length), self._patience)
                self._put(scope, key, value)
            elif method == "DELETE":
                self._store.delete(scope, key)
            else:
                found = await self._look(scope, key)
                return (404, b"") if found is None else (200, found)
        except BadRequest as refused:
            return refused.status, b""
        except StoreFull as full:
            log(f"Horovod's rendezvous takes no more values: {full}")
            return 507, b""
        return 200, b""

    def _put(self, scope: str, key: str, value: bytes) -> None:
        self._store.put(scope, key, value)
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()

    async def _look(self, scope: str, key: str) -> bytes | None:
        """Return the value, once it is there; None after a while."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LOOK_SECONDS
        while (value := self._store.get(scope, key)) is None and (left := until - loop.time()) > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return value


class Ring:
    """The leading agent's stores: one for each start of the worker group, the earlier one closed."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._generation = ""
        self._server: StoreServer | None = None

    def add_rendezvous(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a member's message; a start message also gets `rendezvous`, the address of its store."""
        if message.get("type") != "start" or not rank_replicas(message["tfConfig"]["cluster"]):
            return message
        if message["epoch"] != self._generation:
            self.close()
            self._generation = message["epoch"]
            try:
                self._server = StoreServer(self._host)
            except OSError as error:
                log(f"no rendezvous for Horovod: can't listen on {self._host}: {error.strerror}")
        if self._server is None:
            return message
        return {**message, "rendezvous": {"host": self._host, "port": self._server.port}}

    def close(self) -> None:
        """Close the current store."""
        if self._server is not None:
            self._server.close()
            self._server = None
