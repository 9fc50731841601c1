"""Read YAML and JSON as kubectl does, with the line of each field; write YAML for every reader."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
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
from trainjob.api.errors import (
    FieldError,
    InvalidTrainJob,
    Step,
    format_path,
    missing_space,
    parent_path,
    shown,
)
from trainjob.api.strict import parse_strictly
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
        line, what = _explain(problem, text.splitlines())
        raise _refusal(f"is not valid YAML: {what}", source, line + 1) from None


# What is wrong with text that is not YAML, in the words of the person who typed it.


_DASHES = re.compile(r" *(- +)*")
_FIELD = re.compile(r"""("[^"]*"|'[^']*'|[^\s#:]([^:]|:(?=\S))*):(\s|$)""")


@dataclass(frozen=True)
class _Row:
    """One line of the text that isn't empty: its number from 0, its content, and where that begins."""

    number: int
    content: str
    indent: int

    @property
    def is_item(self) -> bool:
        return self.content.startswith("- ") or self.content == "-"

    def __str__(self) -> str:
        return f"line {self.number + 1} ({shown(self.content)})"


def _explain(problem: MarkedYAMLError, lines: Sequence[str]) -> tuple[int, str]:
    """Return the number of the line that is to be changed, from 0, and what is wrong with it."""
    mark, context, said = problem.problem_mark, problem.context_mark, str(problem.problem)
    if mark is None:
        return 0, said
    what = f"{said} {problem.context or ''}".rstrip()
    number = min(mark.line, len(lines) - 1)
    row = _Row(number, lines[number].strip(), len(lines[number]) - len(lines[number].lstrip(" ")))
    above = _rows(lines[:number])
    if "'\\t'" in what:
        is_indent = not lines[number][: mark.column].strip(" \t-")
        return (
            number,
            "this line is indented with a tab; use spaces"
            if is_indent
            else "this line has a tab; use a space",
        )
    if said == "mapping values are not allowed here":
        return _explain_second_colon(row, mark.column, above)
    if said == "could not find expected ':'" and context and context.line < len(lines):
        return context.line, _without_colon(lines[context.line].strip())
    if "quoted scalar" in what and context:
        return context.line, "a quote opens here and isn't closed"
    if "flow" in what and context:
        return number, f"{what}, which begins on line {context.line + 1}: a comma or a bracket is missing"
    if "cannot start any token" in what:
        return number, f"no text can begin with {shown(lines[number][mark.column])}; put it in quotes"
    if said.startswith("expected ") and mark.column == row.indent and above:
        return number, _explain_indent(row, above)
    return number, what


def _rows(lines: Sequence[str]) -> list[_Row]:
    """Return the lines, each list item's first field as a row of its own."""
    rows: list[_Row] = []
    for number, line in enumerate(lines):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        if content == "---" or content.startswith("--- "):
            rows.clear()
            continue
        start = len(line) - len(line.lstrip(" "))
        inner = _DASHES.match(line)
        rows.append(_Row(number, content, start))
        if inner and inner.end() > start and line[inner.end() :].strip():
            rows.append(_Row(number, line[inner.end() :].strip(), inner.end()))
    return rows


def _explain_second_colon(row: _Row, column: int, above: list[_Row]) -> tuple[int, str]:
    """Explain "mapping values are not allowed here": a colon in text, or a field inside a value."""
    if re.search(r":\s", row.content[: max(column - row.indent, 0)]) or not above:
        return row.number, "this line has a second colon; put the text in quotes"
    last = above[-1]
    if not _FIELD.match(last.content) and not last.is_item:
        return last.number, _without_colon(last.content)
    return row.number, _explain_indent(row, above)


def _without_colon(content: str) -> str:
    text = content.lstrip("- ")
    return f"{shown(text)} has no colon" + (missing_space(text) or '; write "name: value"')


def _explain_indent(row: _Row, above: list[_Row]) -> str:
    """Say how much a line is indented, and how much the open lines above it are that it may continue."""
    open_rows: list[_Row] = []
    for other in reversed(above):
        if not open_rows or other.indent < open_rows[-1].indent:
            open_rows.append(other)
    beside = [other for other in open_rows if other.is_item == row.is_item]
    if row.indent in [other.indent for other in beside]:
        return "this line doesn't continue the one above it; is a quote, a comma or a bracket missing?"
    # The nearest two, the outer one first.
    nearest = [
        *[other for other in beside if other.indent < row.indent][:1],
        *[other for other in beside if other.indent > row.indent][-1:],
    ]
    mine, its = ("a list item", "a field") if row.is_item else ("a field", "a list item")
    same = next((other for other in open_rows if other.indent == row.indent), None)
    what = f"this line is {f'{mine} and ' if same else ''}indented by {_spaces(row.indent)}"
    ways = " or ".join(f"by {other.indent} as {other}" for other in nearest)
    return f"{what}, and must be indented {ways}" if ways else f"{what}, but {same} is {its}"


def _spaces(count: int) -> str:
    return f"{count} space{'' if count == 1 else 's'}"


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

    def parse(self, *, needs_image: bool = True) -> TrainJob:
        """Check it as `trainjob.api.parse_strictly` does.

        Raises:
            InvalidTrainJob: its errors have lines and are sorted by line.
        """
        try:
            return parse_strictly(self.raw, needs_image=needs_image)
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


def read_value(text: str, *, source: str) -> Any:
    """Return one YAML value, such as a number, as a file would have it; None for an empty text.

    Raises:
        InvalidTrainJob: it can't be read.
    """
    reading = _Reading(source)
    values = [reading.build(node, (), (), node) for node in _compose(text, source)]
    if reading.errors or len(values) > 1:
        raise InvalidTrainJob(reading.errors or [FieldError("", "must be one value", None, source)])
    return values[0] if values else None


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
