"""What a YAML scalar means to Kubernetes' own tools.

They follow go-yaml v2: YAML 1.1's words for true and false, octal integers, no base 60, and dates stay text.
PyYAML's own rules would read `12:30` as 750 and `2026-01-31` as a date.
"""

from __future__ import annotations

import re

PLAIN = "plain"
"""The tag of a scalar without quotes and without a tag of its own."""

_STANDARD = "tag:yaml.org,2002:"
TEXT = f"{_STANDARD}str"

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
}
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))")
_BASES = (16, 2, 8, 10)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LONGEST_NUMBER = 400
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "null": (type(None),),
}

Scalar = str | int | float | bool | None


class UnreadableScalar(Exception):
    """The scalar has no meaning in JSON; the message says what to write instead."""


def read_scalar(tag: str, text: str) -> Scalar:
    """Return the value of a scalar.

    Args:
        tag: `PLAIN`, or the full name of its type.
        text: the scalar without quotes and escapes.

    Raises:
        UnreadableScalar: it can't be written as JSON, or isn't of the type that its tag names.
    """
    if tag == PLAIN:
        return _read_plain(text)
    if tag == TEXT:
        if "\0" in text:
            raise UnreadableScalar("holds a NUL character, which no program and no file name can; remove it")
        return _joined_surrogates(text)
    kind = tag.removeprefix(_STANDARD)
    if kind == "timestamp":
        return text
    if kind not in _TYPES:
        raise UnreadableScalar(f"the tag {tag} isn't supported; remove it")
    value = _read_plain(text)
    if type(value) not in _TYPES[kind]:
        raise UnreadableScalar(f"isn't of the type that its tag !!{kind} says")
    return float(value) if kind == "float" and isinstance(value, int) else value


def _read_plain(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_FINITE.fullmatch(text):
        raise UnreadableScalar(f"{text} can't be written as JSON; put it in quotes if it is meant as text")
    if text[0] not in "+-.0123456789":
        return text
    digits = text if text[0] == "." else text.replace("_", "")
    if len(digits) > _LONGEST_NUMBER and _FLOAT.fullmatch(digits):
        raise UnreadableScalar("has too many digits; put it in quotes if it is meant as text")
    if match := _INTEGER.fullmatch(digits):
        sign, *by_base = match.groups()
        value = next(int(part, base) for part, base in zip(by_base, _BASES, strict=True) if part)
        return -value if sign == "-" else value
    if _FLOAT.fullmatch(digits):
        number = float(digits)
        if number in (float("inf"), float("-inf")):
            raise UnreadableScalar("is too large a number; put it in quotes if it is meant as text")
        return number
    return text


def _joined_surrogates(text: str) -> str:
    # JSON writes an emoji as two escapes, which PyYAML reads as two halves.
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise UnreadableScalar("has half of a character (a lone surrogate); write the whole one") from None
