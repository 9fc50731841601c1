"""One rule for the API server: a message and CEL; the same check in Python is in the rule's module."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A rule that the schema's types and ranges can't express.

    Attributes:
        at: its path in the schema, `spec.output`; `[]` means a list's items; empty for the root.
        cel: the expression, with `self` for the value at `at`.
        message: what is wrong and what to do; the check in Python uses the same and may add the value.
        field_path: the field below `at` that the API server names, `.minReplicas`.
        message_expression: CEL for the message, if it depends on the object.
    """

    at: str
    cel: str
    message: str
    field_path: str = ""
    message_expression: str = ""

    @property
    def is_about_changes(self) -> bool:
        """Return whether it compares with the old object, so that a creation can't break it."""
        return "oldSelf" in self.cel
