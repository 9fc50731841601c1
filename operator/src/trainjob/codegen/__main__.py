"""Writes every generated file, or with `--check` says what would change.

`python -m trainjob.codegen [--check]`. The schema of pods changes with Kubernetes, not with the sources:
`kubectl get --raw /openapi/v3/api/v1 | python -m trainjob.codegen --pods`.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from trainjob.codegen import pod_schema
from trainjob.codegen.crd import crd_text
from trainjob.codegen.reference import (
    NOTEBOOK,
    editor_schema_text,
    notebook_text,
    patches_text,
    reference_text,
)

ROOT = Path(__file__).resolve().parents[4]
"""The working tree that this file is in."""

_MOST_LINES = 40


def build_files(root: Path) -> Mapping[str, str]:
    """Return the texts of the generated files by their paths in a working tree."""
    project = tomllib.loads((root / "operator/pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        # The chart has a symbolic link to it, which Helm follows.
        "manifests/crd/crd.yaml": crd_text(project["version"]),
        "docs/reference/trainjob.schema.json": editor_schema_text(),
        "docs/reference/api.md": reference_text(),
        "docs/reference/patches.md": patches_text(),
        "docs/notebook.md": notebook_text((root / NOTEBOOK).read_text(encoding="utf-8")),
    }


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Generate or check; return the exit code, 1 if committed files differ from what would be generated."""
    parser = argparse.ArgumentParser(prog="python -m trainjob.codegen", description=__doc__)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="change nothing, exit 1 on a difference")
    action.add_argument("--pods", action="store_true", help="write the schema of pods from standard input")
    options = parser.parse_args(arguments)
    if options.pods:
        text = pod_schema.pod_schema_text(json.load(sys.stdin))
        (root / pod_schema.PATH).write_text(text, encoding="utf-8")
        return 0
    differences: list[str] = []
    for name, text in build_files(root).items():
        path = root / name
        if options.check:
            present = path.read_text(encoding="utf-8") if path.is_file() else ""
            lines = (present.splitlines(), text.splitlines())
            diff = difflib.unified_diff(*lines, name, f"{name} (generated)", n=1, lineterm="")
            differences += islice(diff, _MOST_LINES)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if differences:
        print(
            *differences, "Generated files are out of date: run `make generate`.", sep="\n", file=sys.stderr
        )
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
