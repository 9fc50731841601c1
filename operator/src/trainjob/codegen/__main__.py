"""Writes every generated file, or with `--check` says what would change.

Run from anywhere in the repository: `python -m trainjob.codegen [--check]`. The schema of pods changes with
Kubernetes, not with the sources: `kubectl get --raw /openapi/v3/api/v1 | python -m trainjob.codegen --pods`.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from trainjob.codegen import pod_schema
from trainjob.codegen.crd import released_crd_text
from trainjob.codegen.reference import (
    NOTEBOOK,
    editor_schema_text,
    notebook_text,
    patches_text,
    reference_text,
)

# The repository of the generated files, and its version.


_PROJECT = "operator/pyproject.toml"
_SOURCES = "operator/src/trainjob/api"


@dataclass(frozen=True)
class Repository:
    """A working tree of this project.

    Attributes:
        root: its root folder.
        version: the version of the next release, from the operator's project file.
    """

    root: Path
    version: str


def find_repository(folder: Path) -> Repository:
    """Return the working tree that contains `folder`.

    Raises:
        FileNotFoundError: no working tree contains it.
    """
    for candidate in (folder, *folder.parents):
        if (candidate / _SOURCES).is_dir():
            project = tomllib.loads((candidate / _PROJECT).read_text(encoding="utf-8"))["project"]
            return Repository(candidate, project["version"])
    raise FileNotFoundError(f"{folder} is not inside the repository: no {_SOURCES} there or above")


# The generated files by path, and how each is built for a version.


_MOST_LINES = 40

GENERATED: Mapping[str, Callable[[str], str]] = {
    "manifests/crd/crd.yaml": released_crd_text,  # the chart has a symbolic link to it, which Helm follows
    "docs/reference/trainjob.schema.json": lambda _: editor_schema_text(),
    "docs/reference/api.md": lambda _: reference_text(),
    "docs/reference/patches.md": lambda _: patches_text(),
    "docs/notebook.md": lambda _: notebook_text(_read_source(NOTEBOOK)),
}


def _read_source(name: str) -> str:
    return (find_repository(Path(__file__)).root / name).read_text(encoding="utf-8")


def drift(repository: Repository) -> str:
    """Return a diff from what is committed to what would be generated; empty when they are the same."""
    parts: list[str] = []
    for name, build in GENERATED.items():
        path = repository.root / name
        present = path.read_text(encoding="utf-8") if path.is_file() else ""
        wanted = build(repository.version).splitlines()
        lines = difflib.unified_diff(
            present.splitlines(), wanted, name, f"{name} (generated)", n=1, lineterm=""
        )
        parts += islice(lines, _MOST_LINES)
    return "\n".join(parts)


def write(repository: Repository) -> None:
    """Write every generated file."""
    for name, build in GENERATED.items():
        path = repository.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(build(repository.version), encoding="utf-8")


def main(arguments: Sequence[str] | None = None, *, folder: Path | None = None) -> int:
    """Generate or check; return the exit code, 1 for drift."""
    parser = argparse.ArgumentParser(prog="python -m trainjob.codegen", description=__doc__)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="change nothing, exit 1 on a difference")
    action.add_argument("--pods", action="store_true", help="write the schema of pods from standard input")
    options = parser.parse_args(arguments)
    repository = find_repository(folder or Path.cwd())
    if options.pods:
        text = pod_schema.pod_schema_text(json.load(sys.stdin))
        (repository.root / pod_schema.PATH).write_text(text, encoding="utf-8")
        return 0
    if not options.check:
        write(repository)
        return 0
    if difference := drift(repository):
        print(f"{difference}\nGenerated files are out of date: run `make generate`.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
