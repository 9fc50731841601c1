"""Progress reports, as they travel: JSON that every reader takes, and no longer than need be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_NO_NUMBERS = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}

_LARGEST_REPORT = 1 << 14
"""Characters; a report of ours has some hundred."""


def readable_report(report: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a progress report as others can read it: JSON knows no NaN, and a frame has an end."""
    if report is None:
        return None
    text = json.dumps(report)
    if len(text) > _LARGEST_REPORT:
        text = json.dumps({key: value for key, value in report.items() if isinstance(value, (int, float))})
    plain: dict[str, Any] = json.loads(text, parse_constant=_NO_NUMBERS.__getitem__)
    return {"state": str(report.get("state", ""))[:64], **plain} if len(text) <= _LARGEST_REPORT else None
