"""From YAML nodes to plain JSON, with the line of each field."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from trainjob.api.errors import FieldError, InvalidTrainJob
from trainjob.api.paths import Step, format_path
from trainjob.api.reading.nodes import MOST_NODES
from trainjob.api.reading.scalars import PLAIN, UnreadableScalar, read_scalar
from trainjob.api.wording import shown

_COLLECTION_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")

Path = tuple[Step, ...]


class Values:
    """Builds the value of one document.

    Attributes:
        lines: the line of each field, counted from 1, by path.
        errors: mistakes that leave the document readable.
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
            InvalidTrainJob: it refers to itself, or its aliases make it grow beyond all bounds.
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
            # What the mapping says itself comes before what it merges in.
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
        # JSON has only text as keys; Kubernetes' tools write true and 1 as "true" and "1".
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
