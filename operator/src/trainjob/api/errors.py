"""Validation errors of TrainJobs: all mistakes at once, each with its field, in plain English."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trainjob.api.constants import TRAINER_CONTAINER

# Field paths in Kubernetes' style, and values of plain JSON by path.


Step = str | int

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


def format_path(steps: Sequence[Step]) -> str:
    """Return `spec.env[0].name`; keys with other characters get brackets: `labels[example.com/team]`."""
    path = ""
    for step in steps:
        if isinstance(step, int) or not _PLAIN_KEY.fullmatch(step):
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path


def parent_path(path: str) -> str:
    """Return the path without its last step; for a single step, the empty path."""
    return path[: max(path.rfind("."), path.rfind("["), 0)]


def value_at(raw: object, *steps: Step) -> Any:
    """Return the value at `steps`, or None if it is missing or a value on the way has another type."""
    for step in steps:
        if isinstance(step, str) and isinstance(raw, Mapping):
            raw = raw.get(step)
        elif isinstance(step, int) and isinstance(raw, list) and step < len(raw):
            raw = raw[step]
        else:
            return None
    return raw


def mapping_at(raw: object, *steps: Step) -> Mapping[str, Any]:
    """Return the mapping at `steps`, or an empty mapping."""
    value = value_at(raw, *steps)
    return value if isinstance(value, Mapping) else {}


def objects_at(raw: object, *steps: Step) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the index and value of each mapping in the list at `steps`."""
    value = value_at(raw, *steps)
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, Mapping):
            yield index, item


def trainer_of(pod: object) -> dict[str, Any]:
    """Return the container that trains of a pod's spec, or an empty object."""
    containers = value_at(pod, "containers")
    for container in containers if isinstance(containers, list) else ():
        if isinstance(container, dict) and container.get("name") == TRAINER_CONTAINER:
            return container
    return {}


# One error per mistake, and the exception that holds them all.


@dataclass(frozen=True)
class FieldError:
    """One mistake.

    Attributes:
        path: the field as Kubernetes writes it, `spec.template.spec.containers[0].name`; empty for the root.
        message: what is wrong and what to do.
        line: the line in `source`, counted from 1, if read from text.
        source: the name of the file, if read from a file.
    """

    path: str
    message: str
    line: int | None = None
    source: str | None = None

    def __str__(self) -> str:
        place = self.source or ""
        if self.line is not None:
            place = f"{place}:{self.line}" if place else f"line {self.line}"
        field = f"{self.path}:" if self.path else ""
        if place and not field:
            place += ":"
        return " ".join(part for part in (place, field, self.message) if part)


class InvalidTrainJob(Exception):
    """The object or the text isn't a valid TrainJob.

    Attributes:
        errors: all mistakes found, at least one.
    """

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors))


# Messages for pydantic's errors, in plain English.


_LONGEST_VALUE = 60
_LARGEST_DIGITS = 20


def shown(value: object) -> str:
    """Return a value for a message: short, as JSON."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_LARGEST_DIGITS:
        return f"a number of more than {_LARGEST_DIGITS} digits"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 4]}...{text[-1]}"


def fields_by_alias(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return a model's fields by their names in YAML."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def model_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model in a field's type: the type itself, an item of a list, or a part of a union."""
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


def suggestion(word: object, known: Sequence[str], *, prefix: str = "", cutoff: float = 0.6) -> str:
    """Return `; did you mean "replicas"?` for the nearest known word, or an empty string.

    All words begin with `prefix`, which makes none of them nearer; `cutoff` is that of difflib.
    """
    if not isinstance(word, str):
        return ""
    rests = [each.removeprefix(prefix) for each in known]
    near = difflib.get_close_matches(word.removeprefix(prefix), rests, n=1, cutoff=cutoff)
    return f'; did you mean "{prefix}{near[0]}"?' if near else ""


_NO_SPACE = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):([^\s:/]\S*)")


def missing_space(value: object) -> str:
    """Return what to write if the text `replicas:2` stands where YAML has an object, or an empty string."""
    found = _NO_SPACE.fullmatch(value) if isinstance(value, str) else None
    return f'; write a space after the colon: "{found[1]}: {found[2]}"' if found else ""


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
        return _say_unknown(root, steps)
    if sentence := _SENTENCES.get(error["type"]):
        return sentence(error.get("ctx", {}), error["input"])
    message = str(error["msg"])
    return message[:1].lower() + message[1:]


def _say_missing(model: type[BaseModel] | None, name: str | int) -> str:
    field = fields_by_alias(model).get(str(name)) if model else None
    examples = field.examples if field else None
    return f'required; for example "{name}: {examples[0]}"' if examples else "required"


def _say_unknown(root: type[BaseModel], steps: Sequence[Step]) -> str:
    *way, name = steps
    known = sorted(_fields_at(root, way))
    for end in range(len(way) - 1, -1, -1):
        if name in _fields_at(root, way[:end]):
            holder = format_path(way[:end]) or "the TrainJob itself"
            return f"unknown field; it is a field of {holder}: indent it less"
    return "unknown field" + (suggestion(name, known) or f"; the fields here are {', '.join(known)}")


def _fields_at(root: type[BaseModel], steps: Sequence[Step]) -> Mapping[str, FieldInfo]:
    model = _model_at(root, steps)
    return fields_by_alias(model) if model else {}


def _say_choice(context: Mapping[str, Any], value: object) -> str:
    # pydantic gives the choices as one string: 'Auto' or 'Never'.
    choices = [word.strip(" '") for word in str(context["expected"]).replace(" or ", ",").split(",")]
    words = " or ".join(shown(choice) for choice in choices)
    return f"must be {words}, got {shown(value)}{suggestion(value, choices) if len(choices) > 1 else ''}"


def _say_string(_: Mapping[str, Any], value: object) -> str:
    hint = "; put it in quotes" if isinstance(value, (bool, int, float)) else ""
    return f"must be a string, got {shown(value)}{hint}"


def _say_object(_: Mapping[str, Any], value: object) -> str:
    return f"must be an object, got {shown(value)}{missing_space(value)}"


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
    "dict_type": _say_object,
    "model_type": _say_object,
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
