"""The termination message that Kubernetes keeps of a container that failed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MAX_CHARACTERS = 3072
"""ASCII characters; the kubelet keeps the last 4,096 bytes, and JSON that is cut can't be read."""

_NOT_KEPT = ("metrics",)
_KEPT_TO_THE_END = ("state", "step", "totalSteps", "checkpointStep", "time")
_SHORTENED = ("logTail", "message")

Message = dict[str, Any]


def write_termination(
    path: Path | None,
    *,
    gave_up: bool,
    failure: Mapping[str, Any] | None,
    counts: Mapping[str, Any],
    report: Mapping[str, Any] | None,
) -> None:
    """Write the message to `terminationMessagePath`, which exists only in a container. Never raises."""
    with contextlib.suppress(OSError):
        if path is not None and path.is_file():
            message = {"agent": 1, "gaveUp": gave_up, "failure": failure, "restarts": counts}
            # In place: the kubelet's file is a mount.
            path.write_text(termination_message(message, report), encoding="ascii")


def termination_message(message: Mapping[str, Any], report: Mapping[str, Any] | None) -> str:
    """Return the JSON text; the least important parts are dropped until it is short enough."""
    kept = None if report is None else {k: v for k, v in report.items() if k not in _NOT_KEPT}
    brief = None if kept is None else {k: v for k, v in kept.items() if k in _KEPT_TO_THE_END}
    whole: Message = {**message, "report": kept}
    for shorter in (_as_it_is, lambda m: {**m, "report": brief}, *_shorteners(), _bare):
        whole = shorter(whole)
        text = _dumped(whole)
        if len(text) <= MAX_CHARACTERS:
            return text
    return _dumped({"agent": 1, "gaveUp": bool(message.get("gaveUp"))})


def _shorteners() -> list[Callable[[Message], Message]]:
    """Return steps that halve the log tail, then the message, repeatedly."""
    return [_cutter(name, length) for name in _SHORTENED for length in (1024, 512, 256, 128, 64)]


def _cutter(name: str, length: int) -> Callable[[Message], Message]:
    def cut(message: Message) -> Message:
        failure = message.get("failure")
        if not isinstance(failure, Mapping):
            return message
        text = str(failure.get(name) or "")
        part = text[-length:] if name == "logTail" else text[:length]
        return {**message, "failure": {**failure, name: part}}

    return cut


def _as_it_is(message: Message) -> Message:
    return message


def _bare(message: Message) -> Message:
    failure = message.get("failure")
    plain = (
        {k: v for k, v in failure.items() if isinstance(v, (int, float)) or len(str(v)) < 100}
        if isinstance(failure, Mapping)
        else None
    )
    return {**message, "failure": plain, "report": None}


def _dumped(message: Mapping[str, Any]) -> str:
    try:
        return json.dumps(message, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError):  # values that JSON lacks: write a message all the same
        return json.dumps(_plain(message), separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return str(value)
