"""Writes what is generated from the model, or with `--check` says what would change.

Run from anywhere in the repository: `python -m trainjob.api.generate [--check]`.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from trainjob.api.generate.crd import crd_text
from trainjob.api.generate.editors import editor_schema_text
from trainjob.api.generate.reference import reference_text

GENERATED: Mapping[str, Callable[[], str]] = {
    "manifests/crd.yaml": crd_text,
    "docs/reference/trainjob.schema.json": editor_schema_text,
    "docs/reference/api.md": reference_text,
}

_SOURCES = "operator/src/trainjob/api"
_MOST_LINES = 40


def find_root(folder: Path) -> Path:
    """Return the repository's root: `folder` or the nearest one above it that holds the API's sources.

    Raises:
        FileNotFoundError: there is none.
    """
    for candidate in (folder, *folder.parents):
        if (candidate / _SOURCES).is_dir():
            return candidate
    raise FileNotFoundError(f"{folder} is not inside the repository: no {_SOURCES} there or above")


def drift(root: Path) -> str:
    """Return a diff from what is committed to what would be generated; empty when they are the same."""
    parts: list[str] = []
    for name, build in GENERATED.items():
        path = root / name
        present = path.read_text(encoding="utf-8") if path.is_file() else ""
        lines = difflib.unified_diff(
            present.splitlines(), build().splitlines(), name, f"{name} (generated)", n=1, lineterm=""
        )
        parts += islice(lines, _MOST_LINES)
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None, *, folder: Path | None = None) -> int:
    """Generate or check; return the exit code, 1 for drift."""
    parser = argparse.ArgumentParser(prog="python -m trainjob.api.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 on a difference")
    options = parser.parse_args(arguments)
    root = find_root(folder or Path.cwd())
    if options.check:
        if difference := drift(root):
            print(f"{difference}\nGenerated files are out of date: run `make generate`.", file=sys.stderr)
            return 1
        return 0
    for name, build in GENERATED.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(build(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
