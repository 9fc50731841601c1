"""The termination message of a container that ended well: its last progress report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from trainjob.core.pods import Pod, PodState


def last_words(pods: Iterable[Pod]) -> dict[str, Mapping[str, Any]]:
    """Return the last report of each pod that left one, by pod name, as it was written."""
    words = {p.name: _read(p.message) for p in pods if p.state is PodState.SUCCEEDED}
    return {name: report for name, report in words.items() if report is not None}


def _read(message: str) -> Mapping[str, Any] | None:
    try:
        report = json.loads(message)
    except ValueError:
        return None  # the user's program wrote it, or nobody did
    return report if isinstance(report, dict) else None
