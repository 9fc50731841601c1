"""How deeply nested the objects may be that the process can read."""

from __future__ import annotations

import sys

DEEPEST_OBJECT = 10_000
"""Levels of JSON that the API server takes; a pod template may have any fields, so anybody can send that."""

_FRAMES_A_LEVEL = 2  # what `copy.deepcopy` takes


def allow_deep_objects() -> None:
    """Have Python follow any object that the API server stores.

    Its own limit is reached at a tenth of that: one object, in any namespace, would end the list and the
    watch of everybody's jobs.
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _FRAMES_A_LEVEL * DEEPEST_OBJECT + 5_000))
