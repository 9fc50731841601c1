"""The API server's end of `kubectl exec`: a WebSocket with a program's output and its end."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
_BINARY, _CLOSE = 0x82, 0x88

Program = Callable[[Sequence[str]], tuple[int | str | None, str | bytes, str]]
"""Gets a command; returns its exit code, or why it can't be started, and what it prints on its streams.

None instead of a code: the connection breaks off after the output.
"""

_LONGEST = 30_000  # as containerd cuts it


def serve_exec(handler: BaseHTTPRequestHandler, program: Program) -> None:
    key = handler.headers["Sec-WebSocket-Key"] + _GUID
    accept = base64.b64encode(hashlib.sha1(key.encode(), usedforsecurity=False).digest()).decode()
    handler.send_response(101)
    for name, value in (
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", accept),
        ("Sec-WebSocket-Protocol", handler.headers["Sec-WebSocket-Protocol"]),
    ):
        handler.send_header(name, value)
    handler.end_headers()
    handler.close_connection = True
    code, output, complaint = program(parse_qs(urlsplit(handler.path).query)["command"])
    status = "" if code is None else json.dumps(_status(code))
    for channel, text in ((1, output), (2, complaint), (3, status)):
        content = text.encode() if isinstance(text, str) else text
        for start in range(0, len(content), _LONGEST):
            piece = content[start : start + _LONGEST]
            handler.wfile.write(_frame(_BINARY, bytes([channel]) + piece))
    if code is not None:
        handler.wfile.write(_frame(_CLOSE, b""))
    handler.wfile.flush()


def _status(code: int | str) -> dict[str, object]:
    if code == 0:
        return {"status": "Success"}
    if isinstance(code, str):
        return {"status": "Failure", "reason": "InternalError", "message": code}
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}


def _frame(kind: int, data: bytes) -> bytes:
    size = bytes([len(data)]) if len(data) < 126 else b"\x7e" + len(data).to_bytes(2, "big")
    return bytes([kind]) + size + data
