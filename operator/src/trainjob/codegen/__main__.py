"""Writes every generated file, or with `--check` says what would change.

Run from anywhere in the repository: `python -m trainjob.codegen [--check]`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainjob.codegen.files import drift, find_repository, write


def main(arguments: Sequence[str] | None = None, *, folder: Path | None = None) -> int:
    """Generate or check; return the exit code, 1 for drift."""
    parser = argparse.ArgumentParser(prog="python -m trainjob.codegen", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 on a difference")
    options = parser.parse_args(arguments)
    repository = find_repository(folder or Path.cwd())
    if not options.check:
        write(repository)
        return 0
    if difference := drift(repository):
        print(f"{difference}\nGenerated files are out of date: run `make generate`.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
