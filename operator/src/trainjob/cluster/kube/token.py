"""The bearer token, read again while it is in use: the kubelet rotates it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

REREAD_SECONDS = 30.0


class TokenFile:
    """A file with a token.

    Args:
        path: the file.
        time: seconds on a clock that only goes forward.
    """

    def __init__(self, path: Path, time: Callable[[], float]) -> None:
        self._path = path
        self._time = time
        self._token = ""
        self._read_at = float("-inf")

    def current(self) -> str:
        """Return the token, at most half a minute old."""
        if self._time() - self._read_at >= REREAD_SECONDS:
            self.reread()
        return self._token

    def reread(self) -> bool:
        """Read the file now, and tell whether it holds another token; one that can't be read stays."""
        self._read_at = self._time()
        try:
            token = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return False  # the kubelet is about to replace it, or the API server will say 401
        changed = token != self._token
        self._token = token
        return changed
