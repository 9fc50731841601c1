"""Curves: the values of a job's metrics over its steps, thinned out, as text in a report and in the status.

A curve's text is its points in the order of their steps, `10:2.3026 20:1.9`: a report of every few seconds
has it, and text costs less to pass on and to check than lists of pairs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from itertools import islice

from trainjob_trainer.contract.wire import LARGEST_INTEGER

Curves = Mapping[str, Mapping[int, float]]
"""Values by step, in the order of the steps, by metric."""

MOST_CURVES = 32
MOST_POINTS = 200
"""Of all curves together."""

LARGEST_CURVES = 4096
"""Characters of one process's curves as JSON."""

LONGEST_NAME = 160
"""Characters of a metric's name, `val_` included."""

_POINT = re.compile(r"([0-9]{1,19}):(-?[0-9][0-9.]{0,16}(?:e[+-][0-9]{1,3})?)")


def thinned(points: Mapping[int, float], most: int) -> dict[int, float]:
    """Return at most so many of ordered points, evenly over the steps: the first of each equal interval.

    `most` is two or more, and the last point is always among them. The intervals are powers of two, so a
    curve of each step that is thinned while it grows ends as one that is thinned as a whole.
    """
    if len(points) <= most:
        return dict(points)
    steps = list(points)
    first, last, width = steps[0], steps[-1], 1
    while last // width - first // width + 1 >= most:
        width *= 2
    firsts = {step // width: step for step in reversed(steps)}
    return {step: points[step] for step in sorted({*firsts.values(), last})}


def write_curves(curves: Curves, largest: int = LARGEST_CURVES) -> dict[str, str]:
    """Return the first `MOST_CURVES` as text, thinned to `MOST_POINTS` and to so many characters as JSON.

    They are {} where not even their first and last points fit.
    """
    shown = dict(islice(curves.items(), MOST_CURVES))
    most = max(2, MOST_POINTS // max(1, len(shown)))
    while True:
        texts = {
            name: " ".join(f"{step}:{value:.5g}" for step, value in thinned(points, most).items())
            for name, points in shown.items()
        }
        if len(json.dumps(texts)) <= largest:
            return texts
        if most == 2:
            return {}
        most = max(2, most * 3 // 4)


def read_curves(texts: Mapping[str, object]) -> dict[str, dict[int, float]]:
    """Return the curves of texts from anywhere: what is no finite point of a printable metric is left out."""
    curves: dict[str, dict[int, float]] = {}
    for name, text in texts.items():
        found = (_POINT.fullmatch(each) for each in (text.split(" ") if isinstance(text, str) else ()))
        points = sorted((int(each[1]), float(each[2])) for each in found if each and each[2].count(".") < 2)
        known = {step: value for step, value in points if step <= LARGEST_INTEGER and math.isfinite(value)}
        if known and name.isprintable() and 0 < len(name) <= LONGEST_NAME and len(curves) < MOST_CURVES:
            curves[name] = known
    return curves
