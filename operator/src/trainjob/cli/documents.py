"""The input files of commands and the YAML that commands print."""

import re
import secrets
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from trainjob.api import KIND, Document, InvalidTrainJob, dump_yaml, read_documents
from trainjob.api.errors import mapping_at
from trainjob.cli.ending import print_lines


def dump_stream(objects: Iterable[dict[str, Any]]) -> str:
    """Return the objects as documents of one YAML stream."""
    return "".join(f"---\n{dump_yaml(manifest)}" for manifest in objects)


STDIN = "-"
"""The file name that means standard input."""


class RefusedFile(click.ClickException):
    """The content of a file is wrong or can't be carried out.

    Args:
        lines: one mistake each.
    """

    exit_code = 1

    def __init__(self, *lines: str) -> None:
        self.lines = lines
        super().__init__("\n".join(lines))

    def show(self, file: object = None) -> None:
        """Print one line for each mistake on stderr."""
        del file
        print_lines(self.lines, err=True)


class UnreadableFile(RefusedFile):
    """The file doesn't exist or can't be read, so its content is unknown."""

    exit_code = 2


def is_script(file: str) -> bool:
    """Return whether a file is a Python script by its name."""
    return file.endswith(".py")


def read_trainjobs(file: str) -> tuple[Document, ...]:
    """Return the TrainJobs of a file, at least one; other documents are reported on stderr and left out.

    Raises:
        UnreadableFile: there is no such file, or it can't be read.
        RefusedFile: it isn't YAML or JSON, or holds no TrainJob.
    """
    documents, hint = read_objects(file), ""
    for other in documents:
        if other.is_trainjob:
            continue
        kind, name = other.raw.get("kind"), mapping_at(other.raw, "metadata").get("name")
        more = f"; trainjob convert {file} prints TFJobs as TrainJobs" if kind == "TFJob" else ""
        what = " ".join(str(part) for part in (kind, name) if part) or "a document"
        click.echo(
            f"{_title(file)}:{other.first_line} {what} is skipped: it isn't a TrainJob{more}", err=True
        )
        hint = hint or more
    jobs = tuple(_with_name(document) for document in documents if document.is_trainjob)
    if not jobs:
        raise RefusedFile(f"{_title(file)}: holds no TrainJob{hint}")
    return jobs


def check_valid(documents: Iterable[Document]) -> Iterable[Document]:
    """Return these TrainJobs.

    Raises:
        RefusedFile: every mistake of every TrainJob.
    """
    lines = list[str]()
    for document in documents:
        try:
            document.parse()
        except InvalidTrainJob as invalid:
            lines += [str(error) for error in invalid.errors]
    if lines:
        raise RefusedFile(*lines)
    return documents


def read_objects(file: str, *, expected: str = KIND) -> tuple[Document, ...]:
    """Return all objects of a file, of any kind, at least one.

    Args:
        file: its name, or `-`.
        expected: the expected kind, for the message about an empty file.

    Raises:
        UnreadableFile: there is no such file, or it can't be read.
        RefusedFile: it isn't YAML or JSON.
    """
    content = sys.stdin.buffer.read() if file == STDIN else _read_file(file)
    documents, errors = tuple[Document, ...](), list[str]()
    try:
        documents = read_documents(content, source=_title(file), expected=expected)
    except InvalidTrainJob as invalid:
        errors = [str(error) for error in invalid.errors]
    # Others write `{{ }}` into valid manifests, such as Argo Workflows.
    if template := re.search(rb"\{\{" if errors else rb"\{\{[^}]*\.(Values|Release|Chart)\.", content):
        line = content.count(b"\n", 0, template.start()) + 1
        how = "render it first (helm template CHART), and use the result"
        errors = [f"{_title(file)}:{line} is a template, such as Helm's, and not a manifest: {how}", *errors]
    if errors:
        raise RefusedFile(*errors)
    return documents


def choose(documents: tuple[Document, ...], name: str | None, file: str) -> Document:
    """Return the TrainJob of that name, or the only one.

    Raises:
        click.UsageError: there are several and no name is given, or none has that name.
    """
    named = {str(mapping_at(document.raw, "metadata").get("name")): document for document in documents}
    if name is None and len(documents) == 1:
        return documents[0]
    names = ", ".join(named)
    if name is None:
        raise click.UsageError(
            f"{_title(file)} holds {len(documents)} TrainJobs: choose one by --name: {names}"
        )
    if name not in named:
        raise click.UsageError(f"{_title(file)} holds no TrainJob {name!r}, but {names}")
    return named[name]


def _with_name(document: Document) -> Document:
    """Return a TrainJob that has only `generateName` with a name, made as the API server makes it."""
    metadata = mapping_at(document.raw, "metadata")
    prefix = metadata.get("generateName")
    if metadata.get("name") is not None or not isinstance(prefix, str):
        return document
    name = prefix + "".join(secrets.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))
    return replace(document, raw={**document.raw, "metadata": {**metadata, "name": name}})


def _read_file(file: str) -> bytes:
    if is_script(file):
        raise RefusedFile(
            f"{file} is a script, not a file with a job: train it here with trainjob run {file}, or write a "
            f"file for its job with trainjob init {file}"
        )
    if file.endswith(".ipynb"):
        script = f"{file.removesuffix('.ipynb')}.py"
        raise RefusedFile(
            f"{file} is a notebook: train from a cell (from trainjob import Trainer), or turn it into a"
            f" script: jupyter nbconvert --to script {file}, then trainjob run {script}"
        )
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UnreadableFile(f"{file}: can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UnreadableFile(f"{file!r}: can't be read: {error}") from error


def _title(file: str) -> str:
    return "stdin" if file == STDIN else file
