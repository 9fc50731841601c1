"""Runs a program in a pod's container, as `kubectl exec` does it, over the official client's WebSocket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import yaml

from trainjob.cluster.kube.config import Access, Token
from trainjob.cluster.kube.resources import PODS
from trainjob.cluster.kube.responses import error_of, unreachable
from trainjob.cluster.protocol import RequestFailure

_SECONDS = 30.0
"""Timeout of the connection."""

_OUTPUT, _COMPLAINT, _STATUS = 1, 2, 3
"""Channels of the protocol `v4.channel.k8s.io`: the first byte of each message."""

_LONGEST_TEXT = 1 << 16
"""Bytes that are kept of what a program prints on stderr: the last ones, since its last line is shown."""


@dataclass(frozen=True)
class Executed:
    """The result of a program.

    Attributes:
        code: the program's exit code; None where it could not be started, or the connection broke off.
        complaint: what it printed on stderr, or why it could not be started.
    """

    code: int | None
    complaint: str


async def start(
    access: Access, namespace: str, pod: str, container: str, command: Sequence[str]
) -> RunningProgram:
    """Start a program, whose output is read while it runs.

    Raises:
        ClusterError: the API server refuses it, or there was no response.
    """
    token = await Token(access.read_token, asyncio.get_running_loop().time).current()
    headers = {"authorization": token} if token else {}
    query = [("command", word) for word in command]
    query += [("container", container), ("stdout", "true"), ("stderr", "true")]
    url = access.server + PODS.path(namespace, pod, "exec")
    request = RequestFailure("create", "pods/exec", pod, access.server)
    return RunningProgram(await asyncio.to_thread(_connect, access, url, query, headers, request), request)


class RunningProgram:
    """A program in a container; `close` it at the end. Its methods block.

    Args:
        connection: the open WebSocket.
        request: for errors.
    """

    def __init__(self, connection: Any, request: RequestFailure) -> None:
        self._connection, self.request = connection, request
        self._texts = {_COMPLAINT: bytearray(), _STATUS: bytearray()}
        self._is_over = False

    def read(self) -> bytes:
        """Return the next piece of its output, of any size; an empty one at its end.

        Raises:
            ClusterError: the connection broke off, or was silent for too long.
        """
        import websocket  # noqa: PLC0415 - slow, and not in the controller's image

        try:
            while not self._is_over:
                kind, frame = self._connection.recv_data_frame(control_frame=True)
                if kind == websocket.ABNF.OPCODE_CLOSE:
                    self._is_over = True
                elif kind in (websocket.ABNF.OPCODE_BINARY, websocket.ABNF.OPCODE_TEXT) and frame.data:
                    channel, content = frame.data[0], bytes(frame.data[1:])
                    if channel == _OUTPUT and content:
                        return content
                    if channel in self._texts:
                        self._texts[channel] += content
                        del self._texts[channel][:-_LONGEST_TEXT]
        except (websocket.WebSocketException, OSError, ValueError) as error:
            self._is_over = True
            if not self._texts[_STATUS]:
                raise unreachable(self.request, str(error) or type(error).__name__) from error
        return b""

    def stop(self) -> None:
        """End the connection, and so a `read` of another thread; the program ends when it writes."""
        connected = self._connection.sock
        if connected is not None:
            with suppress(OSError):  # it has ended already
                # Not the method of TLS sockets, which changes what the reading thread uses.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

    @property
    def result(self) -> Executed:
        """Return how it ended; call it at the end."""
        complaint, text = (self._texts[each].decode(errors="replace") for each in (_COMPLAINT, _STATUS))
        try:
            status = yaml.safe_load(text)
        except yaml.YAMLError:
            status = None
        if not isinstance(status, dict):
            status = {}
        if status.get("status") == "Success":
            return Executed(0, complaint)
        causes = (status.get("details") or {}).get("causes") or ()
        codes = [str(cause.get("message")) for cause in causes if cause.get("reason") == "ExitCode"]
        if codes and codes[0].isdecimal():
            return Executed(int(codes[0]), complaint)
        return Executed(None, str(status.get("message") or complaint or "the connection broke off"))

    def close(self) -> None:
        """Release the connection, once nothing reads it any more."""
        self._connection.shutdown()  # after the server's close frame, `close` leaves the socket open


def _connect(
    access: Access,
    url: str,
    query: Sequence[tuple[str, str]],
    headers: Mapping[str, str],
    request: RequestFailure,
) -> Any:
    import websocket  # noqa: PLC0415 - slow, and not in the controller's image
    from kubernetes.client import Configuration  # noqa: PLC0415
    from kubernetes.stream import ws_client  # noqa: PLC0415

    configuration = Configuration()
    configuration.host = access.server
    configuration.verify_ssl = not access.insecure
    configuration.ssl_ca_cert = _text(access.ca_file)
    configuration.cert_file = _text(access.certificate_file)
    configuration.key_file = _text(access.key_file)
    configuration.tls_server_name = access.server_name
    configuration.proxy = access.proxy
    websocket.setdefaulttimeout(_SECONDS)
    try:
        # Not its class for streams: that waits for the socket while TLS has received the data already.
        return ws_client.create_websocket(configuration, ws_client.get_websocket_url(url, query), headers)
    except websocket.WebSocketBadStatusException as error:
        raise error_of(error.status_code, error.resp_body or b"", request=request) from error
    except (websocket.WebSocketException, OSError) as error:
        raise unreachable(request, str(error) or type(error).__name__) from error


def _text(file: object) -> str | None:
    return str(file) if file is not None else None
