"""`trainjob convert`: turns Kubeflow TFJobs and MPIJobs into TrainJobs, and notes what isn't carried over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import click

from trainjob.api import Document, FieldError, dump_yaml
from trainjob.cli.documents import RefusedFile, read_objects
from trainjob.cli.ending import command
from trainjob.cli.options import file_arguments
from trainjob.convert import (
    TFJOB,
    Item,
    describe,
    describe_other,
    is_convertible,
    list_items,
)
from trainjob.convert import convert as convert_job


@dataclass
class ConvertedFiles:
    """The result for all files.

    Attributes:
        printed: the objects to print, each with the lines above it.
        notes: one line each.
        refusals: one line each, with headings; empty when every TrainJob is valid.
    """

    printed: list[tuple[dict[str, Any], list[str]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


@command("Turn Kubeflow TFJobs and MPIJobs into TrainJobs.")
@file_arguments
@click.option("--claim", metavar="NAME", help="The claim for checkpoints and logs.")
@click.option("--force", is_flag=True, help="Also print TrainJobs that `trainjob validate` refuses.")
def convert(files: tuple[str, ...], claim: str | None, force: bool) -> None:
    """Convert the Kubeflow TFJobs in FILEs into TrainJobs, and print them; `-` reads the standard input.

    MPIJobs are converted if they have Horovod's usual form: a launcher with horovodrun or mpirun, and
    workers. Objects of other kinds are printed as they are.

    For each field that isn't carried over unchanged, a line on stderr and a comment above the TrainJob say
    what happens instead, and what to do.

    A TrainJob needs a volume for its output. If exactly one claim is mounted by all training replicas, it is
    used. Otherwise name the claim with --claim, or replace the placeholder that is printed.

    If a job can't be converted into a valid TrainJob, the exit code is 1 and nothing is printed, unless
    --force is given. If a file can't be read, the exit code is 2.
    """
    outcome = ConvertedFiles()
    problems: list[RefusedFile] = []
    for file in files:
        try:
            _convert_file(file, claim, outcome)
        except RefusedFile as found:
            problems.append(found)
    for line in (*outcome.notes, *outcome.refusals):
        click.echo(line, err=True)
    for problem in problems:
        problem.show()
    code = max((problem.exit_code for problem in problems), default=1 if outcome.refusals else 0)
    for manifest, comments in outcome.printed if force or not code else ():
        # A line break would end the comment.
        plain = ("".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in line) for line in comments)
        above = "".join(f"# {line}\n" for line in plain)
        click.echo(f"---\n{above}{dump_yaml(manifest)}", nl=False)
    if code:
        raise SystemExit(code)


def _convert_file(file: str, claim: str | None, outcome: ConvertedFiles) -> None:
    documents = read_objects(file, expected=TFJOB)
    items = [(document, item) for document in documents for item in list_items(document.raw)]
    if not any(is_convertible(item.raw) for _, item in items):
        raise RefusedFile(*(f"{_place(d, i)}: {describe_other(i.raw)}" for d, i in items))
    for document, item in items:
        where = _place(document, item)
        if not is_convertible(item.raw):
            outcome.printed.append((dict(item.raw), []))
            outcome.notes.append(f"{where}: {describe_other(item.raw)}, printed as it is")
            continue
        conversion = convert_job(item.raw, claim=claim)
        notes = _in_order_of_file(document, item, (FieldError(n.path, n.message) for n in conversion.notes))
        made = f"Converted from {describe(item.raw)}." + (" Not carried over unchanged:" if notes else "")
        outcome.printed.append((conversion.manifest, [made, *(f"  {note}" for note in notes)]))
        outcome.notes += _located(document, item, notes)
        if conversion.refusals:
            outcome.refusals.append(
                f"{where} can't be converted into a valid TrainJob; correct the following, or print it "
                "anyway with --force:"
            )
            refusals = _in_order_of_file(document, item, conversion.refusals)
            outcome.refusals += _located(document, item, refusals)


def _in_order_of_file(document: Document, item: Item, errors: Iterable[FieldError]) -> list[FieldError]:
    return sorted(errors, key=lambda error: document.line_of(_joined(item.place, error.path)))


def _located(document: Document, item: Item, errors: Iterable[FieldError]) -> list[str]:
    """Return the errors with file and line; the fields of a list's item get the item's path in front."""
    placed = (FieldError(_joined(item.place, error.path), error.message) for error in errors)
    return [str(document.locate(error)) for error in placed]


def _joined(place: str, path: str) -> str:
    return f"{place}.{path}" if place and path else place or path


def _place(document: Document, item: Item) -> str:
    return f"{document.source}:{document.line_of(item.place)} {describe(item.raw)}"
