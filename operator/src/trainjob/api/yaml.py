"""Read YAML and JSON as kubectl does, with the line of each field; write YAML for every reader."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from yaml import (
    BaseLoader,
    CollectionNode,
    MappingNode,
    MarkedYAMLError,
    Node,
    SafeDumper,
    ScalarNode,
    SequenceNode,
    compose_all,
)
from yaml.reader import ReaderError

from trainjob.api.constants import GROUP, KIND
from trainjob.api.errors import FieldError, InvalidTrainJob, Step, format_path, parent_path, shown
from trainjob.api.parsing import parse
from trainjob.api.types import TrainJob

LARGEST = 1_500_000
"""In characters; a cluster can store about as many bytes."""
DEEPEST = 100
MOST_NODES = 50_000
LONGEST_NUMBER = 400

# YAML scalars as Kubernetes' own tools read them.
#
# The tools follow go-yaml v2: YAML 1.1's words for true and false, octal integers, no base 60, dates as
# text. PyYAML's own rules would read `12:30` as 750 and `2026-01-31` as a date.

_PLAIN = "plain"
"""The tag of a scalar without quotes and without a tag of its own."""
_TYPES = {"int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),)}
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
}
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|(?P<octal>0[oO]?[0-7]+)|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")

Scalar = str | int | float | bool | None
Path = tuple[Step, ...]
Nodes = tuple[Node, ...]


def _read_scalar(tag: str, text: str) -> Scalar:
    if tag == _PLAIN:
        return _read_plain(text)
    kind = tag.removeprefix("tag:yaml.org,2002:")
    if kind in ("str", "timestamp"):
        return _read_text(text)
    if kind not in _TYPES:
        raise ValueError(f"the tag {tag} isn't supported; remove it")
    value = _read_plain(text)
    if type(value) not in _TYPES[kind]:
        raise ValueError(f"isn't of the type that its tag !!{kind} says")
    return float(value) if kind == "float" and isinstance(value, int) else value


def _read_plain(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text} can't be written as JSON; put it in quotes if it is meant as text")
    if text[0] not in "+-.0123456789":
        return text
    digits = text if text[0] == "." else text.replace("_", "")
    integer, decimal = _INTEGER.fullmatch(digits), _FLOAT.fullmatch(digits)
    if decimal and len(digits) > LONGEST_NUMBER:
        raise ValueError("has too many digits; put it in quotes if it is meant as text")
    if integer:
        return int(digits, 8 if integer["octal"] else 0)
    if decimal and abs(float(digits)) == float("inf"):
        raise ValueError("is too large a number; put it in quotes if it is meant as text")
    return float(digits) if decimal else text


def _read_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character, which no program and no file name can; remove it")
    try:
        # JSON writes an emoji as two escapes; PyYAML reads them as two lone surrogates.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ValueError("has half of a character (a lone surrogate); write the whole one") from None


class _Loader(BaseLoader):
    """PyYAML's parser with limits on depth and size."""

    depth = nodes = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        self.depth, self.nodes = self.depth + 1, self.nodes + 1
        if self.depth > DEEPEST or self.nodes > MOST_NODES:
            problem = "it is nested too deeply" if self.depth > DEEPEST else "it is too large"
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise MarkedYAMLError(problem=problem, problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


# PyYAML's own resolvers would guess types by YAML 1.1.
_Loader.add_implicit_resolver(_PLAIN, re.compile(""), None)


def _compose(text: str, source: str) -> Iterator[Node]:
    try:
        yield from compose_all(text, _Loader)
    except ReaderError as problem:
        message = f"holds a character that YAML does not allow (number {problem.character:#x})"
        raise _refusal(message, source, text.count("\n", 0, problem.position) + 1) from None
    except MarkedYAMLError as problem:
        what = f"{problem.problem} {problem.context or ''}".rstrip()
        if "'\\t'" in what:
            what = "a tab stands where only spaces may indent"
        line = problem.problem_mark.line + 1 if problem.problem_mark else None
        raise _refusal(f"is not valid YAML: {what}", source, line) from None


def _refusal(message: str, source: str, line: int | None = None, path: Path = ()) -> InvalidTrainJob:
    return InvalidTrainJob([FieldError(format_path(path), message, line, source)])


@dataclass
class _Reading:
    """The state of reading one document: lines of fields, and mistakes after which reading can continue."""

    source: str
    lines: dict[str, int] = field(default_factory=dict)
    errors: list[FieldError] = field(default_factory=list)
    nodes: int = 0

    def build(self, node: Node, path: Path, outer: Nodes, key: Node) -> Any:
        """Return the value of the node; `outer` nodes hold it, and its field has the line of `key`."""
        self.lines[format_path(path)] = _line(key)
        outer = self._enter(node, path, outer)
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if node.tag not in (_Loader.DEFAULT_MAPPING_TAG, _Loader.DEFAULT_SEQUENCE_TAG):
            self._add(node, path, f"the tag {node.tag} isn't supported; remove it")
        if isinstance(node, SequenceNode):
            return [self.build(item, (*path, index), outer, item) for index, item in enumerate(node.value)]
        values: dict[str, Any] = {}
        for name, key_node, value_node, within in self._pairs(node, path, outer):
            # The mapping's own keys come before merged ones.
            if name not in values:
                values[name] = self.build(value_node, (*path, name), within, key_node)
        return values

    def _enter(self, node: Node, path: Path, outer: Nodes) -> Nodes:
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise _refusal("is too large once its aliases are written out", self.source, _line(node), path)
        if node in outer:
            raise _refusal("holds an alias of itself", self.source, _line(node), path)
        return (*outer, node)

    def _pairs(self, node: Node, path: Path, outer: Nodes) -> Iterator[tuple[str, Node, Node, Nodes]]:
        merged: list[Node] = []
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _PLAIN and key_node.value == "<<":
                merged += value_node.value if isinstance(value_node, SequenceNode) else [value_node]
                continue
            value = self._scalar(key_node, path) if isinstance(key_node, ScalarNode) else None
            # JSON keys are always text; Kubernetes' tools write true and 1 as "true" and "1".
            key = value if isinstance(value, str) else shown(value)
            if value is None:
                self._add(key_node, path, "has a key that isn't text; put it in quotes")
            elif key in lines:
                self._add(key_node, (*path, key), f"is there twice, first on line {lines[key]}; remove one")
            else:
                lines[key] = _line(key_node)
                yield key, key_node, value_node, outer
        for other in merged:
            if isinstance(other, MappingNode):
                self.nodes += len(other.value)
                yield from self._pairs(other, path, self._enter(other, path, outer))
            else:
                self._add(other, path, '"<<" must be followed by a mapping or a list of mappings')

    def _scalar(self, node: ScalarNode, path: Path) -> Scalar:
        try:
            return _read_scalar(node.tag, node.value)
        except ValueError as problem:
            self._add(node, path, str(problem))
            return None

    def _add(self, node: Node, path: Path, message: str) -> None:
        self.errors.append(FieldError(format_path(path), message, _line(node), self.source))


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


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
        while path and path not in self._lines:
            path = parent_path(path)
        return self._lines.get(path, self.first_line)

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
            located = map(self.locate, invalid.errors)
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
    documents: list[Document] = []
    errors: list[FieldError] = []
    for node in _compose(_content(text, source), source):
        reading = _Reading(source)
        raw = reading.build(node, (), (), node)
        errors += reading.errors
        if isinstance(raw, dict):
            documents.append(Document(raw, source, _line(node), reading.lines))
        elif raw is not None:
            kind = "a list" if isinstance(raw, list) else "plain text"
            errors.append(FieldError("", f"must be an object, got {kind}", _line(node), source))
    if not documents and not errors:
        raise _refusal(f"is empty; a {expected} is expected", source)
    if errors:
        raise InvalidTrainJob(errors)
    return tuple(documents)


def _content(text: str | bytes, source: str) -> str:
    try:
        content = text.removeprefix("\ufeff") if isinstance(text, str) else text.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = problem.object.count(b"\n", 0, problem.start) + 1
        raise _refusal("is not UTF-8 text; save it as UTF-8", source, line) from None
    if len(content) > LARGEST:
        raise _refusal(f"is larger than {LARGEST} characters", source)
    # JSON may be indented with tabs, YAML may not. In valid JSON no string contains a tab.
    if "\t" in content and content.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            json.loads(content)
            return content.replace("\t", " ")
    return content


# YAML that every reader reads the same way.


_WIDEST = 240
_PLAIN_TEXT = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_SPECIAL_WORDS = frozenset([*_WORDS, "nan", "inf", "infinity"])


class _Dumper(SafeDumper):
    """Quotes all text that is not a plain word: some readers don't read `1e3`, `0o7` or `on` as text."""

    inline_depth = 0

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True

    def represent_data(self, data: Any) -> Node:
        node = super().represent_data(data)
        if isinstance(node, CollectionNode):
            node.flow_style = self._is_inline(data)
        return node

    def represent_text(self, text: str) -> ScalarNode:
        is_plain = _PLAIN_TEXT.fullmatch(text) is not None and text.lower() not in _SPECIAL_WORDS
        style = None if is_plain else "|" if _is_script(text) else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    def _is_inline(self, data: Any) -> bool:
        is_shallow = self.inline_depth > 0 and _depth(data) <= self.inline_depth
        return is_shallow and len(json.dumps(data, ensure_ascii=False)) <= _WIDEST


_Dumper.add_representer(str, _Dumper.represent_text)


def _is_script(text: str) -> bool:
    """Return whether text is a block of lines; PyYAML quotes it anyway if a line ends with spaces."""
    lines = text.split("\n")
    return len(lines) > 2 and text[0] not in " \n" and all(line.isprintable() for line in lines)


def _depth(data: Any) -> int:
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, (list, tuple)) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def dump_yaml(data: Any, *, inline_depth: int = 0) -> str:
    """Return JSON as one YAML document without a start line; the order of fields is kept.

    Args:
        data: a mapping or a list.
        inline_depth: the number of levels that a short mapping or list may have to be written on one line.
    """
    stream = io.StringIO()
    dumper = _Dumper(stream, sort_keys=False, allow_unicode=True, width=float("inf"))
    dumper.inline_depth = inline_depth
    dumper.open()
    dumper.represent(data)
    dumper.close()
    return stream.getvalue()
