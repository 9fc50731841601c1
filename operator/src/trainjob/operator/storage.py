"""Stores that keep nothing: kopf has nothing to remember about an object that it only watches.

Its own ones copy each object on each event, to look for what they might have stored in it.
"""

from __future__ import annotations

from typing import Any

import kopf


class NoDiffBase(kopf.DiffBaseStorage):
    """There is no last handled state."""

    def build(self, **_: Any) -> Any:
        """Return an empty state."""
        return {}

    def fetch(self, **_: Any) -> None:
        """Return nothing."""

    def store(self, **_: Any) -> None:
        """Do nothing."""


class NoProgress(kopf.ProgressStorage):
    """There is no handler that would be tried again."""

    def fetch(self, **_: Any) -> None:
        """Return nothing."""

    def store(self, **_: Any) -> None:
        """Do nothing."""

    def purge(self, **_: Any) -> None:
        """Do nothing."""

    def touch(self, **_: Any) -> None:
        """Do nothing."""

    def clear(self, *, essence: Any) -> Any:
        """Return the state as it is."""
        return essence
