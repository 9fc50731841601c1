"""Where the generated files lie, and which version they are of."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

_PROJECT = "operator/pyproject.toml"
_SOURCES = "operator/src/trainjob/api"


@dataclass(frozen=True)
class Repository:
    """A working tree of this project.

    Attributes:
        root: its topmost folder.
        version: what the next release is called, from the operator's project file.
    """

    root: Path
    version: str


def find_repository(folder: Path) -> Repository:
    """Return the working tree that `folder` is in.

    Raises:
        FileNotFoundError: it is in none.
    """
    for candidate in (folder, *folder.parents):
        if (candidate / _SOURCES).is_dir():
            project = tomllib.loads((candidate / _PROJECT).read_text(encoding="utf-8"))["project"]
            return Repository(candidate, project["version"])
    raise FileNotFoundError(f"{folder} is not inside the repository: no {_SOURCES} there or above")
