"""An API server for commands: objects, watches and logs over real HTTP, and streams that break off.

It runs in threads, so that the commands, which block, can be called from the test itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from support.cli.exec_stream import Program, serve_exec
from support.cli.requests import KINDS, Answer, Asked, Break, Log, Manifest, matches, read_request
from support.kube.api_server import merge

GUARD_SECONDS = 60.0
"""Against hanging only."""


class CliServer:
    """Each of the `rules` is given every request, and may raise `Answer` or `Break`.

    With `ends_watches_at_once` it ends watches as some proxies do. `program` runs in pods; those that are
    created have the status `pod_status`.
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.rules: list[Callable[[Asked], None]] = []
        self.logs: dict[str, Log] = {}
        self.program: Program | None = None
        self.pod_status: Manifest = {}
        self.url = ""
        self.oldest = 0
        self.ends_watches_at_once = False
        self._objects: dict[tuple[str, str, str], Manifest] = {}
        self._events: list[tuple[int, str, str, Manifest]] = []
        self._version = 100
        self.cuts = 0
        self.changed = threading.Condition()

    # -- what tests do --------------------------------------------------------------------------------

    def put(self, manifest: Manifest) -> Manifest:
        """Store an object, new or changed, and notify the watches."""
        with self.changed:
            stored = deepcopy(manifest)
            plural = {kind: plural for plural, kind in KINDS.items()}[stored["kind"]]
            meta = stored["metadata"]
            key = plural, meta.setdefault("namespace", "default"), meta["name"]
            self._version += 1
            meta["resourceVersion"] = str(self._version)
            meta.setdefault("uid", f"uid-of-{meta['name']}")
            meta.setdefault("creationTimestamp", "2026-01-02T03:04:05Z")
            kind = "MODIFIED" if key in self._objects else "ADDED"
            self._objects[key] = stored
            self._events.append((self._version, kind, plural, stored))
            self.changed.notify_all()
            return deepcopy(stored)

    def delete(self, plural: str, name: str, namespace: str = "default") -> None:
        with self.changed:
            gone = deepcopy(self._objects.pop((plural, namespace, name)))
            self._version += 1
            gone["metadata"]["resourceVersion"] = str(self._version)
            self._events.append((self._version, "DELETED", plural, gone))
            self.changed.notify_all()

    def get(self, plural: str, name: str, namespace: str = "default") -> Manifest | None:
        return deepcopy(self._objects.get((plural, namespace, name)))

    def write_log(self, pod: str, *lines: str, whole: bool = False, end: str = "\n") -> None:
        """Have a container write lines, which begin with their time stamps; `whole`: it has ended."""
        with self.changed:
            log = self.logs.setdefault(pod, Log())
            log.lines += [(line + end).encode() for line in lines]
            log.is_whole = whole
            self.changed.notify_all()

    def forget_history(self) -> None:
        """Watches from any version so far are answered by 410, and those that are open end so."""
        with self.changed:
            self._version += 1
            self.oldest = self._version
            self._events.clear()
            self.changed.notify_all()

    def cut_watches(self) -> None:
        with self.changed:
            self.cuts += 1
            self.changed.notify_all()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that requests or objects show."""
        with self.changed:
            assert self.changed.wait_for(condition, GUARD_SECONDS), self.asked

    @contextmanager
    def once(self, condition: Callable[[], bool], work: Callable[[], object]) -> Iterator[None]:
        """Do something in a thread once requests or objects show what the condition asks for."""

        def wait_and_work() -> None:
            self.wait_until(condition)
            work()

        thread = threading.Thread(target=wait_and_work, daemon=True)
        thread.start()
        yield
        thread.join()

    def count(self, verb: str, plural: str = "trainjobs") -> int:
        return sum((a.verb, a.plural) == (verb, plural) for a in self.asked)

    def write_kubeconfig(self, path: Path, namespace: str | None = None) -> Path:
        context = {"cluster": "c", "user": "u", **({"namespace": namespace} if namespace else {})}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "main",
            "contexts": [{"name": "main", "context": context}],
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    @contextmanager
    def serve(self) -> Iterator[CliServer]:
        """Listen on a port of 127.0.0.1."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients go when they like
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            self.cut_watches()
            server.server_close()
            thread.join()

    # -- what it answers ------------------------------------------------------------------------------

    def work(self, asked: Asked) -> Manifest:
        """Return the answer to anything but a stream."""
        if asked.plural not in KINDS:
            raise Answer(404, "NotFound", "the server could not find the requested resource")
        if asked.verb == "list":
            items = [deepcopy(o) for o in self._objects.values() if matches(asked, o)]
            kind = f"{KINDS[asked.plural]}List"
            return {"kind": kind, "metadata": {"resourceVersion": str(self._version)}, "items": items}
        key = asked.plural, asked.namespace or "", asked.name
        if asked.verb == "create":
            return self._create(asked)
        if key not in self._objects:
            message = f'{asked.plural} "{asked.name}" not found'
            raise Answer(404, "NotFound", message, name=asked.name, kind=asked.plural)
        found = deepcopy(self._objects[key])
        if asked.verb == "patch":
            return self._patch(asked, found)
        if asked.verb == "delete":
            self.delete(asked.plural, asked.name, asked.namespace or "")
        return found

    def _patch(self, asked: Asked, found: Manifest) -> Manifest:
        if "dryRun" in asked.query:
            return {**found, **(asked.body or {})}
        merge(found, asked.body or {})
        return self.put(found)

    def _create(self, asked: Asked) -> Manifest:
        manifest = deepcopy(asked.body or {})
        meta = manifest["metadata"]
        key = asked.plural, asked.namespace or "", meta["name"]
        if key in self._objects:
            message = f'{asked.plural} "{meta["name"]}" already exists'
            raise Answer(409, "AlreadyExists", message, name=meta["name"])
        meta["namespace"] = asked.namespace
        if asked.plural == "pods" and self.pod_status:
            manifest["status"] = deepcopy(self.pod_status)
        return manifest if "dryRun" in asked.query else self.put(manifest)

    def events(self, asked: Asked, cut: int) -> Iterator[Manifest]:
        """Yield events until the watch's time is over, or it is cut."""
        if self.ends_watches_at_once:
            return
        seen = int(asked.query["resourceVersion"])
        while True:
            with self.changed:
                if self.cuts != cut:
                    raise Break
                if seen < self.oldest:
                    gone = Answer(410, "Expired", "too old resource version")
                    yield {"type": "ERROR", "object": gone.status}
                    return
                fresh = [e for e in self._events if e[0] > seen]
                seen = self._version
                if not fresh and not self.changed.wait(float(asked.query["timeoutSeconds"])):
                    return
            for version, kind, plural, manifest in fresh:
                if plural == asked.plural and matches(asked, manifest) and version > self.oldest:
                    yield {"type": kind, "object": manifest}

    def log(self, asked: Asked) -> Iterator[bytes]:
        """Yield a log as the kubelet does: from the whole second of `sinceTime`; to its end if followed."""
        log = self.logs.get(asked.name)
        if log is None:
            raise Answer(400, "BadRequest", f'container "trainer" in pod "{asked.name}" is waiting to start')
        left = log.breaks.pop(0) if log.breaks else None
        at = max(0, len(log.lines) - int(asked.query["tailLines"])) if "tailLines" in asked.query else 0
        since = asked.query.get("sinceTime", "").removesuffix("Z").encode()
        while True:
            with self.changed:
                while at >= len(log.lines) and not log.is_whole and "follow" in asked.query and left is None:
                    assert self.changed.wait(GUARD_SECONDS)
                lines = [line for line in log.lines[at:] if line[: len(since)] >= since]
                at = len(log.lines)
                over = log.is_whole or "follow" not in asked.query
            data = b"".join(lines)
            if left is not None:
                yield data[:left]
                raise Break
            yield data
            if over and at == len(log.lines):
                return


def _handler(server: CliServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            asked = read_request(self.command, self.path, body)
            with server.changed:
                server.asked.append(asked)
                cut = server.cuts
                server.changed.notify_all()
            try:
                for rule in list(server.rules):
                    rule(asked)
                if asked.verb == "watch":
                    self._stream(_encoded(server.events(asked, cut)))
                elif asked.verb == "log":
                    self._stream(server.log(asked))
                elif asked.verb == "exec" and server.program and server.get("pods", asked.name):
                    serve_exec(self, server.program)
                else:
                    self._send(200, server.work(asked))
            except Answer as answer:
                self._send(answer.code, answer.status, answer.headers)
            except (Break, ConnectionError):
                self.close_connection = True

        do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815 - the names that the base class calls

        def _send(self, code: int, answer: Manifest, headers: dict[str, str] | None = None) -> None:
            data = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, pieces: Iterator[bytes]) -> None:
            begun = False
            for piece in pieces:
                self._begin(begun)
                begun = True
                if piece:
                    self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self._begin(begun)
            self.wfile.write(b"0\r\n\r\n")

        def _begin(self, begun: bool) -> None:
            if not begun:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()

    return Handler


def _encoded(events: Iterator[Manifest]) -> Iterator[bytes]:
    yield b""  # the headers come before the first event
    yield from (json.dumps(event).encode() + b"\n" for event in events)
