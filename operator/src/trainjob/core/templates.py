"""Jinja2 templates of manifests, rendered so that no value can become structure.

A template is YAML. Every value passes the filter `value`, which writes a numbered placeholder into the text.
The text is parsed, and then the values replace the placeholders. So the YAML parser never reads a value. A
text without values is the same for thousands of pods and is parsed once: parsing took three quarters of the
time to render a pod.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import jinja2
import yaml
from jinja2.runtime import Context

_PLACES = "_places"
_TAG = "!place"


class _Place(int):
    """The placeholder for the value of this number."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A safe loader that also reads placeholders."""


def _read_place(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> _Place:
    return _Place(loader.construct_scalar(node))


_Loader.add_constructor(_TAG, _read_place)


@jinja2.pass_context
def _leave_place(context: Context, value: Any) -> str:
    if isinstance(value, jinja2.Undefined):
        str(value)  # raises, and names what is missing
    places: list[Any] = context[_PLACES]
    # A copy, and a check that it is JSON: the values are shared with the job.
    places.append(value if isinstance(value, str) else json.loads(json.dumps(value)))
    return f"{_TAG} {len(places) - 1}"


_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("trainjob", "templates"),
    undefined=jinja2.StrictUndefined,
    autoescape=False,  # noqa: S701 - this is YAML, not HTML, and holds no values
    keep_trailing_newline=True,
    auto_reload=False,
)
_environment.filters["value"] = _leave_place


@lru_cache(maxsize=256)
def _parse(text: str) -> Any:
    return yaml.load(text, _Loader)  # noqa: S506 - a safe loader


def _fill(tree: Any, values: list[Any]) -> Any:
    if isinstance(tree, _Place):
        return values[tree]
    if isinstance(tree, dict):
        return {key: _fill(branch, values) for key, branch in tree.items()}
    if isinstance(tree, list):
        return [_fill(branch, values) for branch in tree]
    return tree


def render_template(name: str, **values: Any) -> dict[str, Any]:
    """Return the object that the template `name` describes.

    Raises:
        jinja2.UndefinedError: the template uses a value that wasn't given.
        TypeError: a value can't be written as JSON.
    """
    places: list[Any] = []
    text = _environment.get_template(name).render(**values, **{_PLACES: places})
    rendered = _fill(_parse(text), places)
    assert isinstance(rendered, dict)  # noqa: S101 - our own templates
    return rendered
