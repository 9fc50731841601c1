"""What hostile agents answer: each lie is a kind of report that a true agent never gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from trainjob_trainer.contract.wire import LARGEST_FRAME, TAG_BYTES

Lie = Callable[[str], Callable[[Mapping[str, Any]], bytes]]
"""From the name of the leading pod to what its agent answers; another thing each time, so that it is news."""

MOST_BYTES = LARGEST_FRAME - TAG_BYTES
CROWD = 76_000
PAINT = "\x1b[31mred\x1b[0m\x1b]0;title\x07\r\nnext line\u202eright to left\x00"


def _report(pod: str, number: int, **more: Any) -> dict[str, Any]:
    member = {"pod": pod, "incarnation": 1, "state": "running", "seconds": 1.0}
    return {
        "type": "report",
        "role": "leader",
        "phase": "running",
        "attempt": 1,
        "world": {"worker": 1},
        "restarts": {"attempt": 1},
        "failure": None,
        "members": {"worker-0": {**member, "report": {"state": "training", "step": number}}},
        **more,
    }


def _long(pod: str) -> Callable[[Mapping[str, Any]], bytes]:
    """Answer with a mebibyte of one text."""
    numbers = count(1)

    def answer(_order: Mapping[str, Any]) -> bytes:
        number = next(numbers)
        failure = {"replica": "worker-0", "pod": pod, "reason": "Crashed", "counted": False, "exitCode": 1}
        failure |= {"message": "m" * 400_000, "logTail": "l" * 600_000, "step": number}
        restarts = {"attempt": number, "notCounted": number}
        return json.dumps(_report(pod, number, attempt=number, failure=failure, restarts=restarts)).encode()

    return answer


def _crowd(pod: str) -> Callable[[Mapping[str, Any]], bytes]:
    """Answer with as many members as a frame holds."""
    numbers = count(1)
    others = ",".join(f'"w-{number}":1' for number in range(CROWD))

    def answer(_order: Mapping[str, Any]) -> bytes:
        report = _report(pod, number := next(numbers))
        members = json.dumps(report.pop("members"))[1:-1]
        rest = json.dumps({**report, "attempt": number})[1:-1]
        return f'{{{rest},"members":{{{members},{others}}}}}'.encode()

    return answer


def _junk(pod: str) -> Callable[[Mapping[str, Any]], bytes]:
    """Answer with a mebibyte of small lists below keys that nobody knows."""
    numbers = count(1)
    junk = "[[],{}]," * 100_000

    def answer(_order: Mapping[str, Any]) -> bytes:
        number = next(numbers)
        report = json.dumps({**_report(pod, number), f"key-{number}": 0})[:-1]
        return f'{report},"junk":[{junk}0]}}'.encode()

    return answer


def _types(pod: str) -> Callable[[Mapping[str, Any]], bytes]:
    """Answer with values of other types than are meant."""
    values: tuple[Any, ...] = ([], {}, -1, 1e308, "x", True, None, [[1]], {"a": {"b": []}}, 10**300)
    numbers = count()

    def answer(_order: Mapping[str, Any]) -> bytes:
        number = next(numbers)
        wrong = values[number % len(values)]
        report = _report(
            pod, number, attempt=wrong, failure=wrong, restarts={"attempt": wrong, "counted": wrong}
        )
        report |= (
            {"phase": wrong, "world": wrong, "role": wrong} if number % 2 else {"world": {"worker": wrong}}
        )
        figures = {"state": wrong, "step": wrong, "metrics": {"a": wrong}, "evaluation": wrong}
        report["members"]["worker-0"] |= {"seconds": wrong, "report": figures}
        report["members"] |= {
            "": wrong,
            "worker-": wrong,
            "worker--1": wrong,
            "ps-99999999999999999999": wrong,
        }
        return json.dumps(report).encode()

    return answer


def _paint(pod: str) -> Callable[[Mapping[str, Any]], bytes]:
    """Answer with what drives a terminal, wherever there may be text."""
    numbers = count(1)

    def answer(_order: Mapping[str, Any]) -> bytes:
        number = next(numbers)
        failure = {
            "replica": f"{PAINT}-0",
            "pod": PAINT,
            "reason": f"Bad{PAINT}",
            "message": PAINT,
            "logTail": PAINT,
        }
        replicas = (failure["replica"], "worker-0", "worker-7")
        failure |= {"replica": replicas[number % len(replicas)], "counted": False, "exitCode": 1}
        report = _report(pod, number, failure=failure, restarts={"attempt": number, "notCounted": number})
        figures = {"state": PAINT, "step": number, "totalSteps": 1, "waitingForStorage": PAINT}
        figures |= {
            "metrics": {PAINT: 1.0, "\u202eloss": 0.5},
            "evaluation": {"step": 1, "metrics": {PAINT: 1.0}},
        }
        report["members"]["worker-0"]["report"] = figures
        report["members"][f"{PAINT}-0"] = report["members"]["worker-0"]
        return json.dumps({**report, "attempt": number}).encode()

    return answer


def _huge(pod: str) -> Callable[[Mapping[str, Any]], bytes]:
    """Answer with numbers that no status can hold."""
    numbers = count(1)

    def answer(_order: Mapping[str, Any]) -> bytes:
        number, most = next(numbers), 2**63 - 1
        failure = {"replica": "worker-0", "pod": pod, "reason": "Crashed", "exitCode": most, "step": most}
        restarts = dict.fromkeys(("counted", "notCounted", "reset", "sinceProgress", "furthestStep"), most)
        report = _report(
            pod,
            number,
            failure=failure,
            restarts={"attempt": most - number, **restarts},
            world={"worker": most},
        )
        figures = {
            "step": most,
            "totalSteps": most,
            "epoch": most,
            "stepSeconds": "HUGE",
            "checkpointStep": most,
        }
        report["members"]["worker-0"] |= {"seconds": "HUGE", "report": figures}
        return json.dumps(report).replace('"HUGE"', "1e400").encode()

    return answer


LIES: dict[str, Lie] = {
    "long": _long,
    "crowd": _crowd,
    "junk": _junk,
    "types": _types,
    "paint": _paint,
    "huge": _huge,
}
