"""Requests to the API server through the official client: plain JSON, and two kinds of problems."""

from __future__ import annotations

import json
import socket
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

import urllib3
import websocket
import yaml
from kubernetes.client import ApiClient, ApiException
from kubernetes.stream import ws_client

from trainjob.api import TRAINER_CONTAINER
from trainjob.cli.cluster.errors import Refused, Request, ServerProblem, Unreachable, read_answer
from trainjob.cli.cluster.resources import PODS, Resource

# A program run in a pod's container, as `kubectl exec` does it.


_SECONDS = 30.0
"""Timeout of the connection, and then of the program."""


@dataclass(frozen=True)
class Executed:
    """The result of a program.

    Attributes:
        code: the program's exit code; None where it could not be started.
        output: what it printed.
        complaint: what it printed on stderr, or why it could not be started.
    """

    code: int | None
    output: str
    complaint: str


def execute(client: ApiClient, namespace: str, pod: str, container: str, command: Sequence[str]) -> Executed:
    """Run a program to its end.

    Raises:
        Refused: the API server refuses it.
        Unreachable: there was no response, or the connection broke off.
    """
    request = Request("create", "pods/exec", namespace, pod)
    address = str(client.configuration.host)
    query = [("command", word) for word in command]
    query += [("container", container), ("stdout", "true"), ("stderr", "true")]
    headers: dict[str, str] = {}
    client.update_params_for_auth(headers, query, ["BearerToken"])
    url = ws_client.get_websocket_url(address + PODS.path(namespace, pod, "exec"), query)
    websocket.setdefaulttimeout(_SECONDS)
    try:
        stream = ws_client.WSClient(client.configuration, url, headers, capture_all=False)
        try:
            stream.run_forever(timeout=_SECONDS)
            if stream.is_open():
                raise Unreachable(request, f"no end of the program within {_SECONDS:g} s", address)
            channels = [stream.read_channel(number) for number in (1, 2, 3)]
        finally:
            stream.close()
            stream.sock.shutdown()  # after the server's close frame, `close` leaves the socket open
    except websocket.WebSocketBadStatusException as error:
        raise Refused(request, read_answer(error.status_code, error.resp_body)) from error
    except (websocket.WebSocketException, OSError) as error:
        raise Unreachable(request, str(error) or type(error).__name__, address) from error
    output, complaint, status = channels
    return _executed(output, complaint, _parsed(status))


def _executed(output: str, complaint: str, status: Mapping[str, Any]) -> Executed:
    if status.get("status") == "Success":
        return Executed(0, output, complaint)
    causes = (status.get("details") or {}).get("causes") or ()
    codes = [str(cause.get("message")) for cause in causes if cause.get("reason") == "ExitCode"]
    if codes and codes[0].isdecimal():
        return Executed(int(codes[0]), output, complaint)
    return Executed(None, output, str(status.get("message") or complaint or "the connection broke off"))


def _parsed(status: str) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(status)
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


# Requests without the client's typed classes, which drop unknown fields and take seconds to build.


Manifest = dict[str, Any]
Query = Mapping[str, str]

_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 30.0
_STRICT = {"fieldValidation": "Strict"}
_DRY_RUN = {"dryRun": "All"}
_TEXT = "text/plain, application/json, */*"


class Server:
    """One API server; several threads may use it at the same time.

    Every method raises `Refused` or `Unreachable`.
    """

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._open = set[Any]()
        self._lock = Lock()
        self._closed = False

    @property
    def address(self) -> str:
        """Return its URL."""
        return str(self._client.configuration.host)

    def get(self, resource: Resource, namespace: str, name: str) -> Manifest:
        """Return one object."""
        return self._json(
            "GET", resource.path(namespace, name), Request("get", resource.plural, namespace, name)
        )

    def list(
        self,
        resource: Resource,
        namespace: str | None,
        query: Query | None = None,
        seconds: float | None = None,
    ) -> Manifest:
        """Return a raw list, with the `resourceVersion` to watch from.

        Args:
            resource: of what.
            namespace: None for all of them.
            query: selectors.
            seconds: timeout of the response.
        """
        request = Request("list", resource.plural, namespace)
        return self._json("GET", resource.path(namespace), request, query=query, seconds=seconds)

    def create(
        self, resource: Resource, namespace: str, manifest: Manifest, *, dry_run: bool = False
    ) -> Manifest:
        """Create an object with strict validation of fields, and return it as stored."""
        request = Request("create", resource.plural, namespace, manifest["metadata"].get("name") or "")
        query = {**_STRICT, **(_DRY_RUN if dry_run else {})}
        return self._json("POST", resource.path(namespace), request, query=query, body=manifest)

    def try_change(self, resource: Resource, namespace: str, name: str, change: Manifest) -> Manifest:
        """Return an object as it would be after a merge patch, without changing it."""
        request = Request("patch", resource.plural, namespace, name)
        path, query = resource.path(namespace, name), {**_STRICT, **_DRY_RUN}
        kind = "application/merge-patch+json"
        return self._json("PATCH", path, request, query=query, body=change, content=kind)

    def watch(
        self, resource: Resource, namespace: str | None, query: Query, *, seconds: float, silence: float
    ) -> Generator[Manifest]:
        """Yield events as they come, until the API server ends the watch.

        Args:
            resource: of what.
            namespace: None for all of them.
            query: selectors and `resourceVersion`.
            seconds: after which the API server ends it.
            silence: seconds without data after which the connection counts as dead.
        """
        request = Request("watch", resource.plural, namespace)
        asked = {
            **query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        with self._stream(resource.path(namespace), request, asked, silence) as pieces:
            for line in _lines(pieces):
                try:
                    yield json.loads(line)
                except ValueError:
                    return  # broken off in the middle: the next watch repeats it

    @contextmanager
    def log(self, namespace: str, pod: str, query: Query, *, silence: float) -> Iterator[Iterator[bytes]]:
        """Open a container's log, in pieces that are cut anywhere."""
        path = PODS.path(namespace, pod, "log")
        with self._stream(path, Request("get", "pods/log", namespace, pod), query, silence) as pieces:
            yield pieces

    def execute(self, namespace: str, pod: str, command: Sequence[str]) -> Executed:
        """Run a program in the training container to its end."""
        return execute(self._client, namespace, pod, TRAINER_CONTAINER, command)

    def close(self) -> None:
        """End all streams, in any thread; later requests fail."""
        with self._lock:
            self._closed = True
            streams = tuple(self._open)
        for stream in streams:
            _hang_up(stream)

    def _json(
        self,
        method: str,
        path: str,
        request: Request,
        *,
        query: Query | None = None,
        body: Manifest | None = None,
        content: str = "application/json",
        seconds: float | None = None,
    ) -> Manifest:
        with self._problems(request):
            response = self._call(method, path, query, body=body, content=content, seconds=seconds)
            data = response.read()
            response.release_conn()
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Unreachable(request, "something else than Kubernetes answers there", self.address)
        return answer

    @contextmanager
    def _stream(self, path: str, request: Request, query: Query, silence: float) -> Iterator[Iterator[bytes]]:
        with self._problems(request):
            response = self._call("GET", path, query, accept=_TEXT, seconds=silence)
            with self._lock:
                self._open.add(response)
            try:
                yield response.stream(amt=None, decode_content=True)
            finally:
                with self._lock:
                    self._open.discard(response)
                response.close()

    def _call(
        self,
        method: str,
        path: str,
        query: Query | None,
        *,
        body: Manifest | None = None,
        content: str = "application/json",
        accept: str = "application/json",
        seconds: float | None = None,
    ) -> Any:
        if self._closed:
            raise ValueError("nothing is asked any more")
        return self._client.call_api(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": accept, "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _return_http_data_only=True,
            _request_timeout=(_CONNECT_SECONDS, seconds or _ANSWER_SECONDS),
        )

    @contextmanager
    def _problems(self, request: Request) -> Iterator[None]:
        try:
            yield
        except ServerProblem:
            raise
        except ApiException as error:
            if not error.status:  # how the client reports TLS errors
                raise Unreachable(request, _first_line(str(error.reason)), self.address) from error
            wait = (error.headers or {}).get("Retry-After")
            raise Refused(request, read_answer(error.status, error.body, wait)) from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            # The last two: another thread closed the response while it was read.
            raise Unreachable(request, _why(error), self.address) from error


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from filter(None, lines)


def _hang_up(response: Any) -> None:
    # The shutdown wakes the reader, which finds the end; closing would wait for the reader.
    with suppress(AttributeError, RuntimeError, ValueError, OSError):
        if hasattr(response, "shutdown"):
            response.shutdown()
        else:  # before urllib3 2.3
            response.connection.sock.shutdown(socket.SHUT_RDWR)


def _why(error: BaseException) -> str:
    # urllib3 derives the class for refused and unresolved connections from a timeout.
    is_new = isinstance(error, urllib3.exceptions.NewConnectionError)
    if isinstance(error, urllib3.exceptions.ConnectTimeoutError) and not is_new:
        return f"no answer within {_CONNECT_SECONDS:g} s"
    if isinstance(error, urllib3.exceptions.ReadTimeoutError):
        return "it has fallen silent"
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    return _first_line(str(error)).rsplit(": ", maxsplit=1)[-1] or type(error).__name__


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else text
