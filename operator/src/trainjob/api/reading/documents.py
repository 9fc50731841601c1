"""The documents of a file, each knowing the lines of its fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from yaml.nodes import Node, SequenceNode

from trainjob.api.errors import FieldError, InvalidTrainJob
from trainjob.api.group import GROUP, KIND
from trainjob.api.job import TrainJob
from trainjob.api.parsing import parse
from trainjob.api.paths import parent_path
from trainjob.api.reading.nodes import compose_documents
from trainjob.api.reading.values import Values

LARGEST = 1_500_000
"""In characters; what a cluster can store is about as much in bytes."""


@dataclass(frozen=True)
class Document:
    """One object of a file.

    Attributes:
        raw: the object as plain JSON.
        source: the name of the file.
        first_line: where it begins, counted from 1.
    """

    raw: dict[str, Any]
    source: str
    first_line: int = 1
    _lines: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_trainjob(self) -> bool:
        """Whether it is meant as a TrainJob: a wrong version, or a missing kind, is for `parse` to refuse."""
        kind, api_version = self.raw.get("kind"), self.raw.get("apiVersion")
        if kind is None or str(kind).lower() == KIND.lower():
            return True
        return str(api_version).split("/", maxsplit=1)[0] == GROUP

    def line_of(self, path: str) -> int:
        """Return the line of a field; of one that is missing, the line of what should hold it."""
        while path:
            if path in self._lines:
                return self._lines[path]
            path = parent_path(path)
        return self.first_line

    def locate(self, error: FieldError) -> FieldError:
        """Return the error with its file and line."""
        return replace(error, line=self.line_of(error.path), source=self.source)

    def parse(self) -> TrainJob:
        """Check it as `trainjob.api.parse` does.

        Raises:
            InvalidTrainJob: its errors have lines, and are in their order.
        """
        try:
            return parse(self.raw)
        except InvalidTrainJob as invalid:
            located = [self.locate(error) for error in invalid.errors]
            raise InvalidTrainJob(sorted(located, key=lambda error: error.line or 0)) from None


def read_documents(text: str | bytes, *, source: str, expected: str = KIND) -> tuple[Document, ...]:
    """Read all documents of a YAML or JSON file; empty ones are left out.

    Args:
        text: the file, as bytes where its encoding is to be checked.
        source: its name, for messages.
        expected: the kind of object that it should hold, for the message about an empty one.

    Raises:
        InvalidTrainJob: it can't be read: wrong syntax, a key that is there twice, no object at all.
    """
    content = _without_tabs_of_json(_decoded(text, source))
    if len(content) > LARGEST:
        raise InvalidTrainJob([FieldError("", f"is larger than {LARGEST} characters", None, source)])
    documents: list[Document] = []
    errors: list[FieldError] = []
    for node in compose_documents(content, source=source):
        values = Values(source)
        raw = values.build(node)
        errors += values.errors
        line = int(node.start_mark.line) + 1
        if isinstance(raw, dict):
            documents.append(Document(raw, source, line, values.lines))
        elif raw is not None:
            errors.append(FieldError("", f"must be an object, got {_kind_of(node)}", line, source))
    if not documents and not errors:
        errors.append(FieldError("", f"is empty; a {expected} is expected", None, source))
    if errors:
        raise InvalidTrainJob(errors)
    return tuple(documents)


def _decoded(text: str | bytes, source: str) -> str:
    if isinstance(text, str):
        return text.removeprefix("\ufeff")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = text.count(b"\n", 0, problem.start) + 1
        raise InvalidTrainJob([FieldError("", "is not UTF-8 text; save it as UTF-8", line, source)]) from None


def _without_tabs_of_json(text: str) -> str:
    # JSON may be indented by tabs, YAML may not. In valid JSON no tab can be part of a string.
    if "\t" not in text or not text.lstrip().startswith("{"):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text.replace("\t", " ")


def _kind_of(node: Node) -> str:
    return "a list" if isinstance(node, SequenceNode) else "plain text"
