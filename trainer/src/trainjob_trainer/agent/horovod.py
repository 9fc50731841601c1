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
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from trainjob_trainer.agent.log import log
from trainjob_trainer.task import Task

# The variables of one process.


LONGEST_START_SECONDS = 600
"""How long a rank waits for the others; Horovod's 30 s are shorter than a slow import of TensorFlow."""


def build_variables(
    task: Task, rendezvous: Mapping[str, Any], interface: str, chosen: Mapping[str, str]
) -> dict[str, str]:
    """Return Horovod's variables of one process; each replica is a host, as its pod is.

    Args:
        task: of this process and attempt.
        rendezvous: `host` and `port` of the store, from the start message.
        interface: the network interface that has this replica's address; empty if it is unknown.
        chosen: the container's environment, whose choices of how the ranks connect are kept.
    """
    rank, size = str(task.rank), str(task.num_workers)
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
        "HOROVOD_HOSTNAME": task.replica,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": str(rendezvous["host"]),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(rendezvous["port"]),
        **{name: value for name, value in choices.items() if value and name not in chosen},
    }


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


# The store and its HTTP server, which like Horovod's own is one of the standard library's.


LARGEST_VALUE = 1 << 20
"""Bytes; a rank's addresses take about 150 bytes for each other rank."""
LARGEST_STORE = 64 << 20
_KEY_BYTES = 512
MOST_CONNECTIONS = 1024
LOOK_SECONDS = 1.0
"""How long GET waits for a missing key: clients ask every 10 ms, for each rank that isn't there yet."""


class StoreServer(ThreadingTCPServer):
    """Serves one attempt's store on a free port of `host`; the constructor raises OSError without one."""

    daemon_threads = True
    request_queue_size = 512
    timeout = 0

    def __init__(self, host: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        super().__init__((host, 0), Request)
        self.port: int = self.server_address[1]
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.fileno(), self.handle_request)  # which starts a thread

    def put(self, path: str, value: bytes) -> bool:
        """Set a value, or return False if the store is full."""
        with self._changed:
            size = sum(_KEY_BYTES + len(content) for content in (*self._values.values(), value))
            if size <= LARGEST_STORE:
                self._values[path] = value
                self._changed.notify_all()
        if size > LARGEST_STORE:
            log(f"Horovod's rendezvous takes no more values: {path}")
        return size <= LARGEST_STORE

    def get(self, path: str) -> bytes | None:
        """Return the value, once it is there; None after a while."""
        with self._changed:
            self._changed.wait_for(lambda: path in self._values, LOOK_SECONDS)
            return self._values.get(path)

    def delete(self, path: str) -> None:
        """Remove the value, if there is one: a rank does so once all have connected."""
        with self._changed:
            self._values.pop(path, None)

    def close(self) -> None:
        """Stop serving; requests under way end soon."""
        self._loop.remove_reader(self.fileno())
        self.server_close()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Drop a connection above the limit: the client tries again."""
        del request, client_address
        return threading.active_count() < MOST_CONNECTIONS

    def handle_error(self, *_: Any) -> None:
        """Log nothing: a client has gone."""


class Request(BaseHTTPRequestHandler):
    """One request; garbage and slow clients end their own connection alone."""

    server: StoreServer
    timeout = 5.0

    def do_PUT(self) -> None:
        """Set a value."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit():
            self.send_error(400)
        elif int(length) > LARGEST_VALUE:
            self.send_error(413)
        else:
            value = self.rfile.read(int(length))
            if len(value) == int(length):
                self._answer(200 if self.server.put(self.path, value) else 507)

    def do_GET(self) -> None:
        """Answer with a value."""
        value = self.server.get(self.path)
        self._answer(404 if value is None else 200, value or b"")

    def do_DELETE(self) -> None:
        """Remove a value."""
        self.server.delete(self.path)
        self._answer(200)

    def parse_request(self) -> bool:
        """Refuse a path that is not `/SCOPE/KEY`."""
        if not super().parse_request():
            return False
        is_key = self.path.count("/") == 2 and len(self.path) <= _KEY_BYTES and "//" not in self.path
        if not is_key:
            self.send_error(400)
        return is_key

    def _answer(self, status: int, value: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class Ring:
    """The leading agent's stores: one for each start of the worker group, the earlier one closed."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._generation = ""
        self._server: StoreServer | None = None

    def add_rendezvous(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a member's message; a start message also gets `rendezvous`, the address of its store."""
        if message.get("type") != "start" or "ps" in message["tfConfig"]["cluster"]:
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
