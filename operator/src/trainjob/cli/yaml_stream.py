"""Kubernetes objects as a YAML stream that every reader of YAML understands alike."""

import re
from collections.abc import Iterable
from typing import Any

import yaml

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = frozenset(["y", "n", "yes", "no", "true", "false", "on", "off", "null", "nan", "inf", "infinity"])


class _Dumper(yaml.SafeDumper):
    """Quotes all text that is not plainly a word: `1e3`, `0o7` or `on` are no text to some readers."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS
    style = None if plain else "|" if _is_script(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _is_script(text: str) -> bool:
    """Tell whether text is better read in lines; PyYAML itself quotes it where spaces end a line."""
    lines = text.split("\n")
    return len(lines) > 2 and text[0] not in " \n" and all(line.isprintable() for line in lines)


_Dumper.add_representer(str, _represent_text)


def dump_stream(objects: Iterable[dict[str, Any]]) -> str:
    """Return the objects as documents of one YAML stream, fields in the order that they have."""
    stream: str = yaml.dump_all(
        objects,
        Dumper=_Dumper,
        explicit_start=True,
        sort_keys=False,
        allow_unicode=True,
        width=float("inf"),
    )
    return stream
