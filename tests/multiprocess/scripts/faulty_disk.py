"""`library_run.py` on a disk that fails on demand: DISK_FAULT is `listdir ESTALE 1 1 /checkpoints$`.

That is the function of `os`, the error, the first and last call that fail, and a pattern of paths.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import runpy
from pathlib import Path
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
runpy.run_path(str(Path(__file__).with_name("library_run.py")), run_name="__main__")
