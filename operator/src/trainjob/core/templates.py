"""Jinja2 templates of manifests, rendered so that no value can become structure.

Every scalar goes through `tojson` and the text is then parsed as YAML: a name such as `a: b` or `{{ 7*7 }}`
comes out as the string that it is.
"""

from __future__ import annotations

import json
import re
from typing import Any

import jinja2
import yaml

_SURROGATE_PAIR = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _join_surrogates(match: re.Match[str]) -> str:
    high, low = (int(half, 16) for half in match.groups())
    return f"\\U{0x10000 + (high - 0xD800) * 0x400 + (low - 0xDC00):08x}"


def yaml_json(value: Any) -> str:
    r"""Return `value` as JSON that is also YAML: ASCII only, and `\U0001f600` where JSON has two halves."""
    return _SURROGATE_PAIR.sub(_join_surrogates, json.dumps(value))


_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("trainjob", "templates"),
    undefined=jinja2.StrictUndefined,
    autoescape=False,  # noqa: S701 - this is YAML, not HTML: `tojson` below is what quotes
    keep_trailing_newline=True,
)
_environment.filters["tojson"] = yaml_json


def render_template(name: str, **values: Any) -> dict[str, Any]:
    """Return the object that the template `name` describes.

    Raises:
        jinja2.UndefinedError: the template uses a value that wasn't given.
    """
    rendered = yaml.load(_environment.get_template(name).render(**values), _LOADER)  # noqa: S506 - a safe loader
    assert isinstance(rendered, dict)  # noqa: S101 - our own templates
    return rendered
