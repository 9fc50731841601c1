"""Frames between agents, and between the controller and an agent, as bytes.

The server sends `TRAINJOB-AGENT/1` and 32 random bytes, the client 32 random bytes, and neither waits for
the other. Both derive a key from them and the job's token. After that a frame is a length, a tag and a JSON
object. The tag is an HMAC over the direction, the frame's number in that direction and the content: a frame
needs the token, and can't be repeated, reordered or sent back. The content is not secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Mapping
from typing import Any

GREETING = b"TRAINJOB-AGENT/1"
"""The first bytes from an agent, before its nonce."""

NONCE_BYTES = 32
LENGTH_BYTES = 4
TAG_BYTES = 32

LARGEST_FRAME = 1 << 20
"""Bytes of tag and content of any frame."""

REPORT_BYTES = 1 << 16
"""Bytes of a report beside its replicas: a failure with its log, and the reports of writer and evaluator."""

REPLICA_BYTES = 128
"""Bytes of a report for each replica that the job should have: a missing replica takes that many."""

MEMBER_BYTES = 1 << 11
"""Bytes of a report for each pod: the progress report of its training process."""

LARGEST_FIRST_FRAME = 1 << 16
"""Bytes of tag and content of a frame from a peer that the agent has not authenticated yet."""

_PURPOSE = b"trainjob-agent/1"


class InvalidFrame(ValueError):
    """The peer is not an agent of this job, or violates the protocol."""


class FrameTooLarge(ValueError):
    """The message is larger than the peer accepts."""


def session_key(token: str, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Return the key of one connection; whitespace around the token, as in its file, is ignored."""
    return _hmac(token.strip().encode(), _PURPOSE + server_nonce + client_nonce)


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as JSON, which has no NaN: ValueError, TypeError or RecursionError."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode()


class Sealer:
    """Writes the frames of one direction: `b"C"` from the client, `b"S"` from the server."""

    def __init__(self, key: bytes, direction: bytes) -> None:
        self._key = key
        self._direction = direction
        self._number = 0

    def seal(self, message: Mapping[str, Any], largest: int = LARGEST_FRAME) -> bytes:
        """Return the next frame, or raise FrameTooLarge."""
        payload = encode(message)
        length = TAG_BYTES + len(payload)
        if length > largest:
            raise FrameTooLarge(f"a message of {length} bytes is too large: at most {largest} are accepted")
        tag = _tag(self._key, self._direction, self._number, payload)
        self._number += 1
        return length.to_bytes(LENGTH_BYTES, "big") + tag + payload


class Opener:
    """Reads the frames of one direction."""

    def __init__(self, key: bytes, direction: bytes) -> None:
        self._key = key
        self._direction = direction
        self._number = 0

    def open(self, body: bytes) -> dict[str, Any]:
        """Return the message of the next frame, of tag and content without the length.

        InvalidFrame: the peer did not write it as its next frame, or it holds no JSON object.
        """
        tag, payload = body[:TAG_BYTES], body[TAG_BYTES:]
        if not hmac.compare_digest(tag, _tag(self._key, self._direction, self._number, payload)):
            raise InvalidFrame("a frame has a wrong tag: another token, or the frame was altered")
        self._number += 1
        try:
            message = json.loads(payload.decode(), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise InvalidFrame(f"a frame is no JSON: {error}") from error
        if not isinstance(message, dict):
            raise InvalidFrame("a frame is no JSON object")
        return message


def largest_report(replicas: int, pods: int) -> int:
    """Return the maximum size in bytes of a report of so many replicas that the job should have, and pods.

    Pods cost their owner something, missing replicas don't.
    """
    return min(REPORT_BYTES + REPLICA_BYTES * replicas + MEMBER_BYTES * pods, LARGEST_FRAME)


def read_length(prefix: bytes, largest: int = LARGEST_FRAME) -> int:
    """Return the number of bytes of tag and content that follow, or raise InvalidFrame."""
    length = int.from_bytes(prefix, "big")
    if not TAG_BYTES < length <= largest:
        raise InvalidFrame(f"a frame of {length} bytes: at most {largest} are accepted")
    return length


def _refuse_constant(name: str) -> float:
    # These values may reach a status, and Kubernetes has no NaN.
    raise ValueError(f"{name} is no JSON number")


def _tag(key: bytes, direction: bytes, number: int, payload: bytes) -> bytes:
    return _hmac(key, direction + number.to_bytes(8, "big") + payload)


def _hmac(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, hashlib.sha256).digest()


LARGEST_INTEGER = 2**63 - 1
"""The API server stores no larger number."""


def integer(value: object, least: float = -math.inf) -> int | None:
    """Return a value of a message that is a whole number of at least `least`, and None for any other."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_INTEGER:
        return value if value >= least else None
    return None


def key_of(field: str) -> str:
    """Return the key of a field in messages: `totalSteps` of `total_steps`."""
    first, *rest = field.split("_")
    return first + "".join(word.capitalize() for word in rest)
