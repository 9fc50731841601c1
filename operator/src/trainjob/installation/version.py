"""Which of two releases is the newer one."""

from __future__ import annotations

import re

from trainjob.api.group import GROUP

VERSION_ANNOTATION = f"{GROUP}/version"
"""On the CRD: the release that it is from."""

Release = tuple[int, int, int, int, int]

UNKNOWN: Release = (0, 0, 0, 0, 0)
"""Older than any release."""

_FORM = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:-?(a|alpha|b|beta|rc)\.?(\d+))?")
_STAGES = {"a": 1, "alpha": 1, "b": 2, "beta": 2, "rc": 3}
_FINAL = 4


def read_release(text: str | None) -> Release:
    """Return a version as something that sorts; both Python's (`1.2.0rc1`) and Helm's form (`1.2.0-rc.1`).

    What nobody here has written counts as older than everything.
    """
    found = _FORM.fullmatch(text or "")
    if not found:
        return UNKNOWN
    major, minor, patch, stage, number = found.groups()
    return int(major), int(minor), int(patch), _STAGES.get(stage, _FINAL), int(number or 0)
