"""The status in the lengths and ranges of its schema: the API server refuses the whole of one that is not.

A status that can't be written stops the job. So whatever an agent, a termination message or the cluster says,
what is written of it fits; what fits already stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trainjob.api.fields import Longest
from trainjob.core.lenient import INT64_MAX
from trainjob.core.wording import printable

Model = TypeVar("Model", bound=BaseModel)
_Fit = Callable[[Any], Any]

_LARGEST_FLOAT = 1e300


def truncated(model: Model) -> Model:
    """Return the status, or a part of it, with texts and numbers cut to what its schema allows."""
    fitted = {name: fit(value) for name, fit in _fits(type(model)).items() if (value := getattr(model, name))}
    changes = {name: value for name, value in fitted.items() if value != getattr(model, name)}
    return model.model_copy(update=changes) if changes else model


@cache
def _fits(kind: type[BaseModel]) -> Mapping[str, _Fit]:
    hints = get_type_hints(kind, include_extras=True)
    fits = {name: _fit_of(hints[name]) for name in kind.model_fields}
    return {name: fit for name, fit in fits.items() if fit is not None}


def _fit_of(hint: Any, marks: tuple[Any, ...] = ()) -> _Fit | None:
    """Return what cuts a value of this type; None where nothing can be too large."""
    inner = [argument for argument in get_args(hint) if argument not in (type(None), ...)]
    if get_origin(hint) is Annotated:
        return _fit_of(inner[0], (*inner[1:], *marks))
    if get_origin(hint) is tuple:
        return _each(_fit_of(inner[0]))
    if get_origin(hint) is dict:
        return _values(_fit_of(inner[1]))
    if len(inner) == 1:
        return _fit_of(inner[0], marks)  # or None
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return truncated
    return {str: _text, int: _whole, float: _float}[hint](marks) if hint in (str, int, float) else None


def _each(fit: _Fit | None) -> _Fit | None:
    return None if fit is None else lambda values: type(values)(map(fit, values))


def _values(fit: _Fit | None) -> _Fit | None:
    return None if fit is None else lambda values: {key: fit(value) for key, value in values.items()}


def _text(marks: tuple[Any, ...]) -> _Fit:
    longest = next(mark.characters for mark in marks if isinstance(mark, Longest))

    def fit(value: str) -> str:
        kept = printable(value)
        return kept if len(kept) <= longest else f"{kept[: longest - 1]}…"

    return fit


def _whole(marks: tuple[Any, ...]) -> _Fit:
    bounds = [bound for mark in marks if isinstance(mark, FieldInfo) for bound in mark.metadata]
    least = next((bound.ge for bound in bounds if isinstance(bound, Ge)), -INT64_MAX)
    most = next((bound.le for bound in bounds if isinstance(bound, Le)), INT64_MAX)
    return lambda value: min(max(value, least), most)


def _float(_marks: tuple[Any, ...]) -> _Fit:
    return lambda value: min(max(value, -_LARGEST_FLOAT), _LARGEST_FLOAT) if not math.isnan(value) else 0.0
