"""Metrics as the numbers that reports, results and TensorBoard take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those that are single numbers; others, such as an F1 score by class, are left out."""
    return {str(name): float(value) for name, value in metrics.items() if is_scalar(value)}


def is_scalar(value: Any) -> bool:
    """Whether it is one number, of whichever library."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return int(np.ndim(value)) == 0
