"""The TrainJob's metadata: what people wrote is kept, what the cluster or kubectl wrote is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainjob.api.wording import shown
from trainjob.convert.ledger import Ledger, Path

PATH: Path = ("metadata",)

_KEPT = ("name", "namespace", "labels", "annotations")
_BY_THE_CLUSTER = frozenset(
    [
        *("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"),
        *("deletionTimestamp", "deletionGracePeriodSeconds"),
    ]
)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_KUEUE_PREFIX = "kueue.x-k8s.io/"


def convert_metadata(raw: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Return the TrainJob's metadata."""
    metadata = raw.get("metadata")
    if not isinstance(metadata, Mapping):
        problem = "required" if metadata is None else f"must be an object, got {shown(metadata)}"
        ledger.refuse(PATH, problem)
        return {}
    kept = {key: metadata[key] for key in _KEPT if metadata.get(key) is not None}
    if not kept.get("name") and (prefix := metadata.get("generateName")):
        kept = {"name": str(prefix).rstrip("-"), **{k: v for k, v in kept.items() if k != "name"}}
        ledger.note(
            (*PATH, "generateName"), "becomes metadata.name: a TrainJob's name is part of its addresses"
        )
    elif metadata.get("generateName") is not None:
        ledger.note((*PATH, "generateName"), "left out beside metadata.name")
    for key, value in metadata.items():
        if key not in (*_KEPT, "generateName") and value is not None:
            why = "the cluster sets it" if key in _BY_THE_CLUSTER else "the new object is yours alone"
            ledger.note((*PATH, str(key)), f"left out: {why}")
    for kind in ("labels", "annotations"):
        if isinstance(kept.get(kind), Mapping):
            kept[kind] = _without_tools(kept[kind], (*PATH, kind), ledger)
            if not kept[kind]:
                del kept[kind]
    return kept


def _without_tools(texts: Mapping[str, Any], path: Path, ledger: Ledger) -> dict[str, Any]:
    for key in texts:
        if key == _LAST_APPLIED:
            ledger.note((*path, key), "left out: kubectl writes its own for the new object")
        elif key.startswith(_KUEUE_PREFIX):
            ledger.note(
                (*path, key), "kept, but Kueue doesn't know this kind: the job starts without waiting for it"
            )
    return {key: value for key, value in texts.items() if key != _LAST_APPLIED}
