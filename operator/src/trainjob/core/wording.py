"""Texts for people that several policies use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from trainjob_trainer.contract.reports import shorten

_QUOTED = 500
"""Bytes of quoted text in a sentence: with ours around it, it fits an event's message (1,024 bytes)."""

_LONGEST_NAME = 200
"""Characters of a name that is shown."""

_CONTROL = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
_CONTROL_STRING = r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
_TERMINAL_SEQUENCE = re.compile(f"{_CONTROL}|{_CONTROL_STRING}")
"""Colours and cursor movements; window titles, links and the like."""

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")

_REASON = re.compile(r"[A-Z][A-Za-z]{0,63}")


def count_roles(counts: Mapping[str, int]) -> str:
    """Return `2 workers and 1 evaluator`."""
    parts = [f"{n} {role}{'s' if n != 1 and role != 'ps' else ''}" for role, n in counts.items() if n]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def short_duration(length: timedelta) -> str:
    """Return `45s`, `3m20s`, `2h5m` or `3d4h`: the two largest parts, as kubectl shows ages."""
    seconds = max(0, int(length.total_seconds()))
    for size, name, below, below_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            rest = seconds % size // below
            return f"{seconds // size}{name}" + (f"{rest}{below_name}" if rest else "")
    return f"{seconds}s"


def utc(moment: datetime) -> str:
    """Return `2026-01-01T12:00:00Z`: unlike a duration it stays, so that a message isn't written again."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def parse_duration(text: str) -> float | None:
    """Return the seconds of `90s`, `15m`, `1h30m` or a bare number; None for other texts."""
    found = _DURATION.fullmatch(text)
    if not found or not any(found.groups()):
        return None
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return 3600 * hours + 60 * minutes + seconds


def printable(text: str) -> str:
    """Return the text without what controls a terminal, turns text or can't be stored; lines stay."""
    if text.isprintable():
        return text
    plain = _TERMINAL_SEQUENCE.sub("", text)
    return "".join(c for c in plain if c in "\n\t" or c.isprintable())


def visible(name: object) -> str:
    """Return a name on one line, cut; in Python's quotes if a terminal wouldn't show it as it is."""
    plain = isinstance(name, str) and name.isprintable() and name
    return shorten(plain or repr(name), _LONGEST_NAME)


def reason_word(text: object, otherwise: str) -> str:
    """Return a reason in the form of conditions, such as `OutOfMemory`; `otherwise` for any other value."""
    return text if isinstance(text, str) and _REASON.fullmatch(text) else otherwise


def quoted(text: str, most: int = _QUOTED) -> str:
    """Return text of a cluster or a program for use in a sentence: one line, printable, short."""
    return shorten(printable(" ".join(text.split())), most, in_bytes=True)


def last_line(text: str) -> str:
    """Return the last line of a log, quoted: a traceback ends with the error."""
    lines = [line for line in map(quoted, text.splitlines()) if line]
    return lines[-1] if lines else ""


def listed(sentences: Iterable[str]) -> str:
    """Return the first of many sentences as one text, and how many more there are."""
    clauses: list[str] = []
    every = list(sentences)
    for sentence in every:
        if len("; ".join([*clauses, quoted(sentence)]).encode()) > 2 * _QUOTED - 50:
            return f"{'; '.join(clauses)}; and {len(every) - len(clauses)} more"
        clauses.append(quoted(sentence))
    return "; ".join(clauses)
