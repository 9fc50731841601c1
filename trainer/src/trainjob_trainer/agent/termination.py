"""The termination message that Kubernetes keeps of a container that failed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainjob_trainer.agent.replica_agent import readable_report
from trainjob_trainer.contract.curves import read_curves, write_curves
from trainjob_trainer.contract.reports import LARGEST_TERMINATION_MESSAGE, Failure
from trainjob_trainer.contract.restarts import RestartCounts

_KEPT_TO_THE_END = ("state", "step", "totalSteps", "checkpointStep", "time")


def write_termination(
    path: Path | None,
    failure: Failure | None,
    counts: RestartCounts,
    report: Mapping[str, Any] | None = None,
    *,
    gave_up: bool = False,
) -> None:
    """Write the message to `terminationMessagePath`, which exists only in a container. Never raises."""
    with contextlib.suppress(OSError):
        if path is not None and path.is_file():
            # In place: the kubelet's file is a mount.
            path.write_text(termination_message(failure, counts, report, gave_up=gave_up), encoding="ascii")


def termination_message(
    failure: Failure | None, counts: RestartCounts, report: Mapping[str, Any] | None, *, gave_up: bool
) -> str:
    """Return the JSON text; the least important parts are dropped until it is short enough."""
    facts = readable_report(report) or {}
    kept = {key: value for key, value in facts.items() if key not in ("metrics", "curves")}
    brief = {key: value for key, value in facts.items() if key in _KEPT_TO_THE_END}
    shorter = [(brief, tail, 500) for tail in (2048, 1024, 512, 256, 128, 64)]
    for said, tail, words in [(kept, 2048, 500), *shorter, (brief, 64, 128), ({}, 64, 64)]:
        cut = failure and replace(failure, log_tail=failure.log_tail[-tail:], message=failure.message[:words])
        message = {
            "agent": 1,
            "gaveUp": gave_up,
            "failure": cut and cut.to_json(),
            "restarts": counts.to_json(),
            "report": said or None,
        }
        text = json.dumps(message, separators=(",", ":"))
        if len(text) <= LARGEST_TERMINATION_MESSAGE:
            return _with_curves(message, facts.get("curves"), LARGEST_TERMINATION_MESSAGE - len(text))
    return json.dumps({"agent": 1, "gaveUp": gave_up})


def _with_curves(message: Mapping[str, Any], curves: Any, room: int) -> str:
    """Return the message's text with as much of the curves as there is room for."""
    if message["report"] and isinstance(curves, dict):
        texts = write_curves(read_curves(curves), room - len(',"curves":'))
        message = {**message, "report": {**message["report"], **({"curves": texts} if texts else {})}}
    return json.dumps(message, separators=(",", ":"))
