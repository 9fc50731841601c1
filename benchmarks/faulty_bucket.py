"""A way to a bucket's server on which requests fail.

A share of the requests meets with one of these:

    refused  503, and the server sees nothing of it
    cut      the connection is closed, and the server sees nothing of it
    lost     the server has done it, and the connection is closed without an answer
    torn     the same, in the midst of the answer if it has a body
    late     the connection is closed after two seconds, and the server does it up to ten seconds later

`late` stands for a client's time-out, which is a minute and would make a run take hours. After a fault, the
next request for the same thing fails with a chance of one half: clients that try three times would otherwise
hide nearly all of them.
"""

from __future__ import annotations

import collections
import contextlib
import http.client
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KINDS = ("refused", "cut", "lost", "torn", "late")
_AGAIN = 0.5
_SECONDS_OF_A_CLIENT = 2.0
_SECONDS_LATE = 10.0


class FaultyBucket(ThreadingHTTPServer):
    """Passes requests on to a port of this machine; a context manager. `url` is its own address."""

    request_queue_size = 64

    def __init__(self, port: int, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.port = port
        self.requests = self.late = 0
        self.faults: collections.Counter[str] = collections.Counter()
        self._share, self._random = 0.0, random.Random(seed)  # noqa: S311 - it chooses faults
        self._failed: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> FaultyBucket:
        threading.Thread(target=self.serve_forever, name="faulty-bucket").start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @contextlib.contextmanager
    def failing(self, share: float) -> Iterator[None]:
        """Have so many requests fail in the block; at its end all that is late has been done."""
        self._share = share
        yield
        self._share = 0.0
        while self.late:
            time.sleep(0.1)

    def choose(self, method: str, path: str) -> tuple[str, float]:
        """Return the fault of a request, "" for none, and how late it is done."""
        with self._lock:
            self.requests += bool(self._share)
            share = _AGAIN if (method, path) in self._failed and self._share else self._share
            self._failed.discard((method, path))
            if self._random.random() >= share:
                return "", 0.0
            self._failed.add((method, path))
            kind = self._random.choice(KINDS)
            self.faults[kind] += 1
            self.late += kind == "late"
            return kind, self._random.uniform(0.0, _SECONDS_LATE)

    def settle(self, kind: str) -> None:
        """A request has been done."""
        with self._lock:
            self.late -= kind == "late"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that has been killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: FaultyBucket
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def _handle(self) -> None:
        size = int(self.headers["Content-Length"] or 0)
        body = self.rfile.read(size)
        if len(body) < size:  # the client has ended
            self.close_connection = True
            return
        kind, seconds = self.server.choose(self.command, self.path)
        try:
            if kind == "late":
                time.sleep(_SECONDS_OF_A_CLIENT)
                with contextlib.suppress(OSError):  # the client may have ended
                    self.connection.shutdown(socket.SHUT_RDWR)
                time.sleep(seconds)
            self.close_connection |= kind in ("cut", "lost", "torn", "late")
            if kind == "refused":
                self._answer(503, [], b"", 0)
            elif kind != "cut":
                self._pass_on(kind, body)
        finally:
            self.server.settle(kind)

    def _pass_on(self, kind: str, body: bytes) -> None:
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.port)
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            upstream.putheader(name, value)
        upstream.endheaders(body)
        found = upstream.getresponse()
        answer = found.read()
        upstream.close()
        if kind in ("lost", "late") or (kind == "torn" and not answer):
            return
        has_body = self.command != "HEAD" and found.status != 304
        size = len(answer) if has_body else int(found.headers["Content-Length"] or 0)
        if kind == "torn":
            answer = answer[: len(answer) // 2]
        self._answer(found.status, found.getheaders(), answer, size)

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, size: int) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - the names are http.server's

    def log_message(self, *_: object) -> None:
        """Requests are no news."""
