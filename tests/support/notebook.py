"""Runs the example notebook, or a part of it, as Jupyter does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
MINUTES = 10
"""Of one cell; against hanging only."""


def run_notebook(part: str, folder: Path, environ: Mapping[str, str]) -> list[Any]:
    """Run the cells of a part, and those of all parts, in a kernel of their own; return each one's outputs.

    Args:
        part: `here` or `cluster`: a tag of cells.
        folder: the working directory.
        environ: the kernel's environment.
    """
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells = [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.metadata.get("tags", [part]) == [part]
    ]
    client = NotebookClient(
        notebook,
        timeout=MINUTES * 60,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        coalesce_streams=True,
    )
    client.execute(env=dict(environ))
    return [cell.outputs for cell in notebook.cells]


def text_of(outputs: list[Any]) -> str:
    """Return all that a cell shows as text."""
    shown = (output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)
    return "\n".join(shown)


def html_of(outputs: list[Any]) -> str:
    """Return what a cell shows as HTML, without the styles of words and with single spaces."""
    shown = "\n".join(output.get("data", {}).get("text/html", "") for output in outputs)
    return " ".join(re.sub(r"</?(?:span|pre)\b[^>]*>", "", shown).split())
