"""A program run in a pod's container, as `kubectl exec` does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import websocket
import yaml
from kubernetes.client import ApiClient
from kubernetes.stream import ws_client

from trainjob.cli.cluster.answers import Refused, Request, Unreachable, read_answer
from trainjob.cli.cluster.resources import PODS

_SECONDS = 30.0
"""That connecting, and then the program, may take."""


@dataclass(frozen=True)
class Executed:
    """What came of it.

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
        Refused: the API server doesn't let us.
        Unreachable: it didn't answer, or the connection broke off.
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
            stream.sock.shutdown()  # after the server's own word of the end, `close` leaves the socket open
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
