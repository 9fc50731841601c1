"""The sentences for mistakes that pydantic finds: plain words instead of a library's terms."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_LONGEST_VALUE = 60
_LARGEST_DIGITS = 20


def shown(value: object) -> str:
    """Return a value as it may stand in a sentence: as JSON, and short."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_LARGEST_DIGITS:
        return f"a number of more than {_LARGEST_DIGITS} digits"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 4]}...{text[-1]}"


def fields_by_alias(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return a model's fields by the names that users write."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def model_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model that a field holds, alone, in a list, or in a choice with None."""
    return _model_in(field.annotation)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part))), None)


def _model_at(root: type[BaseModel], steps: Sequence[str | int]) -> type[BaseModel] | None:
    model: type[BaseModel] | None = root
    for step in steps:
        if isinstance(step, int) or model is None:
            continue
        field = fields_by_alias(model).get(step)
        model = model_of(field) if field else None
    return model


def suggestion(word: object, known: Sequence[str]) -> str:
    """Return `; did you mean "replicas"?` for the nearest known word, or nothing."""
    near = difflib.get_close_matches(str(word), known, n=1, cutoff=0.6) if isinstance(word, str) else []
    return f'; did you mean "{near[0]}"?' if near else ""


def say(root: type[BaseModel], error: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors as a sentence.

    Args:
        root: the model that was validated.
        error: an item of `ValidationError.errors()`.
    """
    steps = error["loc"]
    if error["type"] == "missing":
        return _say_missing(_model_at(root, steps[:-1]), steps[-1])
    if error["type"] == "extra_forbidden":
        return _say_unknown(_model_at(root, steps[:-1]), steps[-1])
    if sentence := _SENTENCES.get(error["type"]):
        return sentence(error.get("ctx", {}), error["input"])
    message = str(error["msg"])
    return message[:1].lower() + message[1:]


def _say_missing(model: type[BaseModel] | None, name: str | int) -> str:
    field = fields_by_alias(model).get(str(name)) if model else None
    examples = field.examples if field else None
    return f'required; for example "{name}: {examples[0]}"' if examples else "required"


def _say_unknown(model: type[BaseModel] | None, name: str | int) -> str:
    known = sorted(fields_by_alias(model)) if model else []
    return "unknown field" + (suggestion(name, known) or f"; the fields here are {', '.join(known)}")


def _say_choice(context: Mapping[str, Any], value: object) -> str:
    # pydantic gives the choices as one string: 'Auto' or 'Never'.
    choices = [word.strip(" '") for word in str(context["expected"]).replace(" or ", ",").split(",")]
    words = " or ".join(shown(choice) for choice in choices)
    return f"must be {words}, got {shown(value)}{suggestion(value, choices) if len(choices) > 1 else ''}"


def _say_string(_: Mapping[str, Any], value: object) -> str:
    hint = "; put it in quotes" if isinstance(value, (bool, int, float)) else ""
    return f"must be a string, got {shown(value)}{hint}"


def _must_be(what: str) -> Callable[[Mapping[str, Any], object], str]:
    return lambda _, value: f"must be {what}, got {shown(value)}"


def _bounded(words: str, key: str) -> Callable[[Mapping[str, Any], object], str]:
    return lambda context, value: f"must be {words} {context[key]}, got {shown(value)}"


def _sized(words: str, key: str, unit: str) -> Callable[[Mapping[str, Any], object], str]:
    return lambda context, value: f"must have {words} {context[key]} {unit}, got {len(value)}"  # type: ignore[arg-type]


_SENTENCES: dict[str, Callable[[Mapping[str, Any], object], str]] = {
    "int_type": _must_be("an integer"),
    "int_from_float": _must_be("an integer"),
    "float_type": _must_be("a number"),
    "bool_type": _must_be("true or false"),
    "dict_type": _must_be("an object"),
    "model_type": _must_be("an object"),
    "tuple_type": _must_be("a list"),
    "datetime_type": _must_be('a time such as "2026-01-31T12:00:00Z"'),
    "datetime_parsing": _must_be('a time such as "2026-01-31T12:00:00Z"'),
    "datetime_from_date_parsing": _must_be('a time such as "2026-01-31T12:00:00Z"'),
    "string_type": _say_string,
    "string_unicode": lambda *_: "must be valid Unicode text",
    "literal_error": _say_choice,
    "greater_than_equal": _bounded("at least", "ge"),
    "less_than_equal": _bounded("at most", "le"),
    "string_too_short": lambda *_: "must not be empty",
    "string_too_long": _sized("at most", "max_length", "characters"),
    "too_short": lambda *_: "must not be empty",
    "too_long": _sized("at most", "max_length", "items"),
}
