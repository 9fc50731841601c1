"""What an API server refuses, in its own words, beside the lines of the file that they are about."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainjob.api import Document
from trainjob.cli.cluster.answers import Answer

_UNKNOWN = re.compile(r'unknown field "([^"]+)"')
_VARIABLE = re.compile(r"\.env\[\d+\].*")
_STRICT = "strict decoding error: "
_ROOT = ("", "<nil>")


def describe_refusal(answer: Answer, document: Document, root: str = "", about: str = "") -> tuple[str, ...]:
    """Return one line for each mistake.

    Args:
        answer: of the API server.
        document: what it refuses, or what that was made from.
        root: where in the document the fields that it names begin, such as `spec.template`.
        about: the object, if it isn't the document itself.
    """
    return tuple(
        f"{document.source}:{document.line_of(_within(root, field))} {about}{words}"
        for field, words in _mistakes(answer)
    )


def _mistakes(answer: Answer) -> Iterable[tuple[str, str]]:
    named = [(str(c.get("field", "")), str(c.get("message", ""))) for c in answer.causes]
    # Two causes may say the same of one field: of the structural schema and of a rule.
    told = dict.fromkeys((f, f"{f}: {m}" if f not in _ROOT else m) for f, m in named if m)
    if told:
        return told
    _, strict, rest = answer.message.partition(_STRICT)
    if strict:
        return [(found[1] if (found := _UNKNOWN.search(part)) else "", part) for part in rest.split(", ")]
    return [("", answer.message or answer.reason or f"HTTP status {answer.code}")]


def _within(root: str, field: str) -> str:
    if field in _ROOT:
        return root
    # Variables of ours come before the user's, so that the number is another one in the file.
    plain = _VARIABLE.sub(".env", field) if root else field
    return f"{root}.{plain}" if root else plain
