"""The stages of a Dockerfile: which of them a target is made of."""

import re
from collections.abc import Iterator
from pathlib import Path

FROM = re.compile(r"FROM +(\S+)(?: +AS +(\S+))?", re.IGNORECASE)
COPY_FROM = re.compile(r"(?:COPY|ADD) .*?--from=(\S+)", re.IGNORECASE)


def stages_of(dockerfile: Path, target: str | None) -> list[str]:
    """The named stages that a target builds on or copies from, first ones first, itself left out."""
    needs = _needs(dockerfile.read_text())
    wanted = {target or list(needs)[-1]}
    for stage in reversed(needs):  # a stage can only need earlier ones
        if stage in wanted:
            wanted |= needs[stage]
    return [stage for stage in needs if stage in wanted and stage and stage != target]


def _needs(text: str) -> dict[str, set[str]]:
    """Each stage's name ("" if it has none), and what its instructions refer to."""
    found: dict[str, set[str]] = {}
    name = ""
    for line in _instructions(text):
        if starts := FROM.match(line):
            name = starts[2] or ""
            found[name] = {starts[1]}
        elif copies := COPY_FROM.match(line):
            found[name].add(copies[1])
    return found


def _instructions(text: str) -> Iterator[str]:
    return map(str.strip, re.sub(r"\\\n", " ", text).splitlines())
