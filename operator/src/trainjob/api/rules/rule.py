"""One rule in two languages: a sentence and CEL for the API server; its check in Python stands beside it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A rule that the shape of the object alone can't say.

    Attributes:
        at: where it stands in the schema, `spec.output`; `[]` means a list's items; empty for the root.
        cel: the expression, with `self` for the value at `at`.
        message: what is wrong and what to do; the check in Python says the same and may add the value.
        field_path: the field below `at` that the API server names, `.minReplicas`.
        message_expression: CEL that gives the message, where it depends on the object.
    """

    at: str
    cel: str
    message: str
    field_path: str = ""
    message_expression: str = ""

    @property
    def is_about_changes(self) -> bool:
        """Tell whether it compares an object with what it was: the creation of one can't break it."""
        return "oldSelf" in self.cel
