"""Which objects of a file are TFJobs, lists of objects included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.api.paths import mapping_at

GROUP = "kubeflow.org"
KIND = "TFJob"
_LIST_KINDS = (("v1", "List"), (GROUP, f"{KIND}List"))


@dataclass(frozen=True)
class Item:
    """One object of a document.

    Attributes:
        raw: the object as plain JSON.
        place: where it stands in its document, `items[2]`; empty when it is the whole document.
    """

    raw: Mapping[str, Any]
    place: str = ""


def is_tfjob(raw: Mapping[str, Any]) -> bool:
    """Tell whether an object is a TFJob, of whatever version."""
    return raw.get("kind") == KIND and _group(raw) == GROUP


def list_items(raw: Mapping[str, Any]) -> tuple[Item, ...]:
    """Return the objects of a list (`kind: List`, `kind: TFJobList`), or what isn't such a list itself.

    The items of a TFJobList are TFJobs even where they don't say so, as the API server answers a list.
    """
    items = raw.get("items")
    is_list = any(
        raw.get("kind") == kind and owner in (raw.get("apiVersion"), _group(raw))
        for owner, kind in _LIST_KINDS
    )
    if not (is_list and isinstance(items, list) and items and all(isinstance(i, Mapping) for i in items)):
        return (Item(raw),)
    implied = {"apiVersion": raw.get("apiVersion"), "kind": KIND} if raw.get("kind") == f"{KIND}List" else {}
    return tuple(Item({**implied, **item}, f"items[{index}]") for index, item in enumerate(items))


def describe(raw: Mapping[str, Any]) -> str:
    """Return kind and name, as a person would call the object."""
    metadata = mapping_at(raw, "metadata")
    words = (raw.get("kind"), metadata.get("name") or metadata.get("generateName"))
    return " ".join(str(word) for word in words if word) or "an object without a kind"


def _group(raw: Mapping[str, Any]) -> str:
    return str(raw.get("apiVersion")).split("/", maxsplit=1)[0]
