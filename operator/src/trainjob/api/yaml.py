"""Read YAML and JSON as kubectl does, with the line of each field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from yaml.composer import Composer, ComposerError
from yaml.error import MarkedYAMLError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from trainjob.api.constants import GROUP, KIND
from trainjob.api.errors import FieldError, InvalidTrainJob, Step, format_path, parent_path, shown
from trainjob.api.parsing import parse
from trainjob.api.types import TrainJob

# YAML scalars as Kubernetes' own tools read them.
#
# The tools follow go-yaml v2: YAML 1.1's words for true and false, octal integers, no base 60, dates as
# text. PyYAML's own rules would read `12:30` as 750 and `2026-01-31` as a date.


PLAIN = "plain"
"""The tag of a scalar without quotes and without a tag of its own."""

_STANDARD = "tag:yaml.org,2002:"
TEXT = f"{_STANDARD}str"

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
}
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))")
_BASES = (16, 2, 8, 10)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LONGEST_NUMBER = 400
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "null": (type(None),),
}

Scalar = str | int | float | bool | None


class UnreadableScalar(Exception):
    """The scalar has no value in JSON; the message says what to write instead."""


def read_scalar(tag: str, text: str) -> Scalar:
    """Return the value of a scalar.

    Args:
        tag: `PLAIN`, or the full name of its type.
        text: the scalar, without quotes and with escapes resolved.

    Raises:
        UnreadableScalar: it can't be written as JSON, or isn't of its tag's type.
    """
    if tag == PLAIN:
        return _read_plain(text)
    if tag == TEXT:
        if "\0" in text:
            raise UnreadableScalar("holds a NUL character, which no program and no file name can; remove it")
        return _joined_surrogates(text)
    kind = tag.removeprefix(_STANDARD)
    if kind == "timestamp":
        return text
    if kind not in _TYPES:
        raise UnreadableScalar(f"the tag {tag} isn't supported; remove it")
    value = _read_plain(text)
    if type(value) not in _TYPES[kind]:
        raise UnreadableScalar(f"isn't of the type that its tag !!{kind} says")
    return float(value) if kind == "float" and isinstance(value, int) else value


def _read_plain(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_FINITE.fullmatch(text):
        raise UnreadableScalar(f"{text} can't be written as JSON; put it in quotes if it is meant as text")
    if text[0] not in "+-.0123456789":
        return text
    digits = text if text[0] == "." else text.replace("_", "")
    if len(digits) > _LONGEST_NUMBER and _FLOAT.fullmatch(digits):
        raise UnreadableScalar("has too many digits; put it in quotes if it is meant as text")
    if match := _INTEGER.fullmatch(digits):
        sign, *by_base = match.groups()
        value = next(int(part, base) for part, base in zip(by_base, _BASES, strict=True) if part)
        return -value if sign == "-" else value
    if _FLOAT.fullmatch(digits):
        number = float(digits)
        if number in (float("inf"), float("-inf")):
            raise UnreadableScalar("is too large a number; put it in quotes if it is meant as text")
        return number
    return text


def _joined_surrogates(text: str) -> str:
    # JSON writes an emoji as two escapes; PyYAML reads them as two lone surrogates.
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise UnreadableScalar("has half of a character (a lone surrogate); write the whole one") from None


# YAML text as PyYAML's nodes, with lines; plain scalars are resolved by `read_scalar`.


DEEPEST = 100
MOST_NODES = 50_000


class _Loader(Reader, Scanner, Parser, Composer, BaseResolver):
    """PyYAML's parser with limits on depth and size; it leaves plain scalars unresolved."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        self._depth += 1
        self._nodes += 1
        if self._depth > DEEPEST or self._nodes > MOST_NODES:
            what = "nested too deeply" if self._depth > DEEPEST else "too large"
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise ComposerError(None, None, f"it is {what}", mark)
        node: Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def resolve(self, kind: type[Node], value: str | None, implicit: object) -> str:
        if kind is ScalarNode and isinstance(implicit, tuple):
            return PLAIN if implicit[0] else TEXT
        return str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]


def compose_documents(text: str, *, source: str) -> Iterator[Node]:
    """Yield the root node of each document that isn't empty.

    Raises:
        InvalidTrainJob: the text is not YAML; later documents are not read.
    """
    try:
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                yield node
    except ReaderError as problem:
        line = text.count("\n", 0, problem.position) + 1
        message = f"holds a character that YAML does not allow (number {problem.character:#x})"
        raise InvalidTrainJob([FieldError("", message, line, source)]) from None
    except MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        raise InvalidTrainJob(
            [FieldError("", _say(problem), mark.line + 1 if mark else None, source)]
        ) from None


def _say(problem: MarkedYAMLError) -> str:
    what = problem.problem or "it can't be read"
    if "'\\t'" in what:
        return "is not valid YAML: a tab stands where only spaces may indent"
    context = f" {problem.context}" if problem.context else ""
    return f"is not valid YAML: {what}{context}"


# From YAML nodes to plain JSON, with the line of each field.


_COLLECTION_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")

Path = tuple[Step, ...]


class Values:
    """Builds the value of one document.

    Attributes:
        lines: the line of each field, counted from 1, by path.
        errors: the mistakes after which reading can continue.
    """

    def __init__(self, source: str) -> None:
        self.lines: dict[str, int] = {}
        self.errors: list[FieldError] = []
        self._source = source
        self._open: set[int] = set()
        self._nodes = 0

    def build(self, node: Node, path: Path = ()) -> Any:
        """Return the value of a node.

        Raises:
            InvalidTrainJob: it refers to itself, or is too large with its aliases written out.
        """
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise self._refusal(node, path, "is too large once its aliases are written out")
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if node.tag not in _COLLECTION_TAGS:
            self._add(node, path, f"the tag {node.tag} isn't supported; remove it")
        with self._entered(node, path):
            if isinstance(node, SequenceNode):
                return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
            return self._mapping(node, path)

    def _item(self, node: Node, path: Path) -> Any:
        self.lines[format_path(path)] = _line(node)
        return self.build(node, path)

    def _mapping(self, node: Node, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, key_node, value_node in self._pairs(node, path):
            # The mapping's own keys come before merged ones.
            if key not in values:
                self.lines[format_path((*path, key))] = _line(key_node)
                values[key] = self.build(value_node, (*path, key))
        return values

    def _pairs(self, node: Node, path: Path) -> Iterator[tuple[str, Node, Node]]:
        merged: list[Node] = []
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == PLAIN and key_node.value == "<<":
                merged += value_node.value if isinstance(value_node, SequenceNode) else [value_node]
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            if key in seen:
                message = f"is there twice, first on line {seen[key]}; remove one"
                self._add(key_node, (*path, key), message)
                continue
            seen[key] = _line(key_node)
            yield key, key_node, value_node
        for other in merged:
            if not isinstance(other, MappingNode):
                self._add(other, path, '"<<" must be followed by a mapping or a list of mappings')
                continue
            with self._entered(other, path):
                yield from self._pairs(other, path)

    def _key(self, node: Node, path: Path) -> str | None:
        value = self._scalar(node, path) if isinstance(node, ScalarNode) else None
        if value is None:
            self._add(node, path, "has a key that isn't text; put it in quotes")
            return None
        # JSON keys are always text; Kubernetes' tools write true and 1 as "true" and "1".
        return value if isinstance(value, str) else shown(value)

    def _scalar(self, node: ScalarNode, path: Path) -> Any:
        try:
            return read_scalar(node.tag, node.value)
        except UnreadableScalar as problem:
            self._add(node, path, str(problem))
            return None

    @contextmanager
    def _entered(self, node: Node, path: Path) -> Iterator[None]:
        if id(node) in self._open:
            raise self._refusal(node, path, "holds an alias of itself")
        self._open.add(id(node))
        yield
        self._open.discard(id(node))

    def _error(self, node: Node, path: Path, message: str) -> FieldError:
        return FieldError(format_path(path), message, _line(node), self._source)

    def _add(self, node: Node, path: Path, message: str) -> None:
        self.errors.append(self._error(node, path, message))

    def _refusal(self, node: Node, path: Path, message: str) -> InvalidTrainJob:
        return InvalidTrainJob([self._error(node, path, message)])


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


# The documents of a file, with the lines of their fields.


LARGEST = 1_500_000
"""In characters; a cluster can store about as many bytes."""


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
        """Whether it is meant as a TrainJob; `parse` refuses a wrong version or a missing kind."""
        kind, api_version = self.raw.get("kind"), self.raw.get("apiVersion")
        if kind is None or str(kind).lower() == KIND.lower():
            return True
        return str(api_version).split("/", maxsplit=1)[0] == GROUP

    def line_of(self, path: str) -> int:
        """Return the line of a field; for a missing field, the line of the nearest parent."""
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
            InvalidTrainJob: its errors have lines and are sorted by line.
        """
        try:
            return parse(self.raw)
        except InvalidTrainJob as invalid:
            located = [self.locate(error) for error in invalid.errors]
            raise InvalidTrainJob(sorted(located, key=lambda error: error.line or 0)) from None


def read_documents(text: str | bytes, *, source: str, expected: str = KIND) -> tuple[Document, ...]:
    """Read all documents of a YAML or JSON file; empty ones are left out.

    Args:
        text: the content, as bytes if the encoding is to be checked.
        source: the name of the file, for messages.
        expected: the expected kind, for the message about an empty file.

    Raises:
        InvalidTrainJob: it can't be read: wrong syntax, a duplicate key, no object at all.
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
    # JSON may be indented with tabs, YAML may not. In valid JSON no string contains a tab.
    if "\t" not in text or not text.lstrip().startswith("{"):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text.replace("\t", " ")


def _kind_of(node: Node) -> str:
    return "a list" if isinstance(node, SequenceNode) else "plain text"
