"""One rule: its message, the same condition in CEL and in Python, and the check of all such rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.api.errors import FieldError, shown, value_at
from trainjob.api.fields import read_quantity


@dataclass(frozen=True)
class Rule:
    """A rule that the schema's types and ranges can't express.

    Attributes:
        at: its path in the schema, `spec.output`; `[]` means a list's items; empty for the root.
        cel: the expression for the API server, with `self` for the value at `at`.
        message: what is wrong and what to do.
        field_path: the field below `at` that the message is about, `.minReplicas`.
        message_expression: CEL for the message, if it depends on the object.
        holds: the same in Python, see `text_is` and `fields_are`; None where the `check` of the rule's module
            has more to say than the message.
    """

    at: str
    cel: str
    message: str
    field_path: str = ""
    message_expression: str = ""
    holds: Callable[[Any], object] | None = None

    @property
    def is_about_changes(self) -> bool:
        """Return whether it compares with the old object, so that a creation can't break it."""
        return "oldSelf" in self.cel


def text_is(predicate: Callable[[str], object]) -> Callable[[Any], object]:
    """Return a condition on text that isn't empty; a value of another type is another rule's to refuse."""
    return lambda value: not isinstance(value, str) or not value or predicate(value)


def fields_are(predicate: Callable[[Mapping[str, Any]], object]) -> Callable[[Any], object]:
    """Return a condition on an object; a value of another type is another rule's to refuse."""
    return lambda value: not isinstance(value, Mapping) or predicate(value)


def is_positive_quantity(at: str) -> Rule:
    """Return the rule for a text at this path that must be a quantity of Kubernetes above zero."""
    return Rule(
        at=at,
        cel="isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
        message='must be a quantity above zero, such as "10Gi"',
        holds=text_is(lambda text: (read_quantity(text) or 0) > 0),
    )


def find_broken(rules: Iterable[Rule], raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield an error for each rule that doesn't hold in Python."""
    for rule in rules:
        value = value_at(raw, *rule.at.split("."))
        if rule.holds is not None and value is not None and not rule.holds(value):
            got = f"; got {shown(value)}" if isinstance(value, str) else ""
            yield FieldError(f"{rule.at}{rule.field_path}", rule.message + got)
