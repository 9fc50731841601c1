"""YAML that people can read in a diff: short parts on one line each, one key a line elsewhere."""

from __future__ import annotations

import io
import json
from typing import Any

import yaml

_WIDEST = 240


def as_yaml(data: Any) -> str:
    """Return JSON as YAML, the same text each time."""
    # The copy shares no parts, which the dumper would write as anchors and aliases.
    unshared = json.loads(json.dumps(data))
    node = yaml.SafeDumper(io.StringIO(), sort_keys=False).represent_data(unshared)
    _fold(node, unshared, is_root=True)
    return str(yaml.serialize(node, Dumper=yaml.SafeDumper, width=10_000, allow_unicode=True))


def _fold(node: yaml.Node, data: Any, *, is_root: bool = False) -> None:
    if not isinstance(node, yaml.CollectionNode):
        return
    is_short = len(json.dumps(data, ensure_ascii=False)) <= _WIDEST and _depth(data) <= 3
    node.flow_style = is_short and not is_root
    if isinstance(node, yaml.MappingNode):
        for (_, child), value in zip(node.value, data.values(), strict=True):
            _fold(child, value)
    else:
        for child, value in zip(node.value, data, strict=True):
            _fold(child, value)


def _depth(data: Any) -> int:
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, (list, tuple)) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)
