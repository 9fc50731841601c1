"""A disk that fails on demand, in a real process: DISK_FAULT is `listdir ESTALE 1 1 /checkpoints$`.

That is the function of `os`, the error, the first and last call that fail, and a pattern of paths.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
from typing import Any


def spoil(name: str, error: str, first: str, last: str, pattern: str) -> None:
    real, numbers, code = getattr(os, name), itertools.count(1), getattr(errno, error)

    def spoilt(path: Any = ".", **more: Any) -> Any:
        if re.search(pattern, str(path)) and int(first) <= next(numbers) <= int(last):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, **more)

    setattr(os, name, spoilt)


if os.environ.get("DISK_FAULT"):
    spoil(*os.environ["DISK_FAULT"].split())
