"""Runs a program in a pod's container, as `kubectl exec` does it, over the official client's WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from trainjob.cluster.kube.config import Access, Token
from trainjob.cluster.kube.resources import PODS
from trainjob.cluster.kube.responses import error_of, unreachable
from trainjob.cluster.protocol import RequestFailure

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


async def execute(
    access: Access, namespace: str, pod: str, container: str, command: Sequence[str]
) -> Executed:
    """Run a program to its end.

    Raises:
        ClusterError: the API server refuses it, there was no response, or the connection broke off.
    """
    token = await Token(access.read_token, asyncio.get_running_loop().time).current()
    headers = {"authorization": token} if token else {}
    query = [("command", word) for word in command]
    query += [("container", container), ("stdout", "true"), ("stderr", "true")]
    url = access.server + PODS.path(namespace, pod, "exec")
    request = RequestFailure("create", "pods/exec", pod, access.server)
    output, complaint, status = await asyncio.to_thread(_run, access, url, query, headers, request)
    return _executed(output, complaint, _parsed(status))


def _run(
    access: Access,
    url: str,
    query: Sequence[tuple[str, str]],
    headers: Mapping[str, str],
    request: RequestFailure,
) -> tuple[str, str, str]:
    """Return what the program printed on its two streams, and how it ended."""
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
        stream = ws_client.WSClient(
            configuration, ws_client.get_websocket_url(url, query), dict(headers), capture_all=False
        )
        try:
            stream.run_forever(timeout=_SECONDS)
            if stream.is_open():
                raise unreachable(request, f"no end of the program within {_SECONDS:g} s")
            output, complaint, status = (str(stream.read_channel(number)) for number in (1, 2, 3))
        finally:
            stream.close()
            stream.sock.shutdown()  # after the server's close frame, `close` leaves the socket open
    except websocket.WebSocketBadStatusException as error:
        raise error_of(error.status_code, error.resp_body or b"", request=request) from error
    except (websocket.WebSocketException, OSError) as error:
        raise unreachable(request, str(error) or type(error).__name__) from error
    return output, complaint, status


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


def _text(file: object) -> str | None:
    return str(file) if file is not None else None
