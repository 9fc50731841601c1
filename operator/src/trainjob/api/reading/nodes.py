"""YAML text as PyYAML's nodes, which know their lines; nothing is resolved but by our own rules."""

from __future__ import annotations

from collections.abc import Iterator

from yaml.composer import Composer, ComposerError
from yaml.error import MarkedYAMLError
from yaml.nodes import Node, ScalarNode
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from trainjob.api.errors import FieldError, InvalidTrainJob
from trainjob.api.reading.scalars import PLAIN, TEXT

DEEPEST = 100
MOST_NODES = 50_000


class _Loader(Reader, Scanner, Parser, Composer, BaseResolver):
    """PyYAML's parser, bounded in depth and size, that leaves plain scalars to us."""

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
    """Yield the root node of each document that has one.

    Raises:
        InvalidTrainJob: the text is not YAML; later documents are not looked at.
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
